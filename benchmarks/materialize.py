"""Measure the materialize stage: against pandas, PyArrow and a bare DuckDB query, and its memory on a large corpus.

    python -m benchmarks.materialize peers FOLDER
    python -m benchmarks.materialize memory FOLDER --documents 7000000 --shards 7

Both make a corpus in FOLDER first (and find it there the next time): documents in FineWeb's columns, of random words
with Zipf's frequencies and lengths like the web's, a score, and a mask that selects a tenth at random. Every way runs
in its own process, in turns; the files are in the page cache. The stage's time is that of the whole job: the
files, their checksums, card and provenance. The peers write the documents' columns, quality and
inclusion (bare DuckDB: the documents' columns alone), with zstd.
"""

import argparse
import multiprocessing
import os
import resource
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from statistics import median

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.tables import show
from fineweb_mask.models.schemas import MASKS, documents_schema, scores_schema
from fineweb_mask.models.settings import MaterializeSettings, PipelineSettings, SourceSettings
from fineweb_mask.models.settings.quality import ColumnScorerSettings, QualitySettings
from fineweb_mask.tasks.dataset.partition import partition_jobs, write_partition
from fineweb_mask.tasks.materialize import MaterializeJob, materialize
from fineweb_mask.tasks.source.discovery import SourceShard
from fineweb_mask.tasks.storage.atomic import tree_files
from fineweb_mask.tasks.workspace.job import StageJob
from fineweb_mask.tasks.workspace.listing import find_file
from fineweb_mask.tasks.workspace.records.counts import Counts
from fineweb_mask.tasks.workspace.references import ShardFiles, StageKey
from fineweb_mask.tasks.workspace.stage_parquet import stage_file_writer
from fineweb_mask.tasks.workspace.workspace import Workspace

RATIO = 10  # one document in so many is selected
BATCH = 20_000
KEYS = {stage: StageKey(stage=stage, version=1, settings="", inputs="") for stage in ("ingest", "score", "select")}
AT_ONCE = 2  # partitions
MIB = 2**20
SPAWN = multiprocessing.get_context("spawn")


def babble(random: np.random.Generator) -> np.ndarray:
    """Return some 80 MB of words, as bytes: a document is a slice of it."""
    letters = np.frombuffer(b"etaoinshrdlcumwfgypbvk", dtype=np.uint8)
    words = [bytes(random.choice(letters, length)) for length in random.integers(2, 11, 50_000)]
    weights = 1 / np.arange(1, len(words) + 1)
    picked = random.choice(len(words), 12_000_000, p=weights / weights.sum())
    return np.frombuffer(b" ".join([words[i] for i in picked]), dtype=np.uint8)


def documents(random: np.random.Generator, words: np.ndarray, shard: int, first: int, n: int) -> pa.RecordBatch:
    lengths = np.clip(random.lognormal(7.6, 0.9, n), 100, 60_000).astype(np.int64)
    starts = random.integers(0, len(words) - lengths.max(), n)
    text = np.concatenate([words[start : start + length] for start, length in zip(starts, lengths, strict=True)])
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    rows = range(first, first + n)
    columns = {
        "row": pa.array(rows, pa.uint32()),
        "source_row": pa.array(rows, pa.uint32()),
        "text": pa.StringArray.from_buffers(n, pa.py_buffer(offsets), pa.py_buffer(text)),
        "id": pa.array([f"<urn:uuid:{shard:08x}-{row:024x}>" for row in rows]),
        "dump": pa.array([f"CC-MAIN-2024-{10 + shard}"] * n),
        "url": pa.array(
            [f"https://host{host}.example.org/{row}" for host, row in zip(starts % 5_000, rows, strict=True)]
        ),
        "date": pa.array(["2024-01-02T03:04:05Z"] * n),
        "file_path": pa.array([f"s3://commoncrawl/segment-{row // 5_000}.warc.gz" for row in rows]),
        "language": pa.array(["en"] * n),
        "language_score": pa.array(random.random(n)),
        "token_count": pa.array(lengths // 4),
        "n_chars": pa.array(lengths, pa.uint32()),
        "content_hash": pa.array([random.bytes(16) for _ in rows], pa.binary(16)),
    }
    return pa.record_batch(columns, schema=documents_schema())


def make_shard(workspace: Workspace, shard: int, n: int, words: np.ndarray) -> None:
    name = f"{shard:04d}"
    if workspace.shard_path("masks", name, KEYS["select"]).exists():
        return
    random = np.random.default_rng(shard)
    with stage_file_writer(
        workspace.shard_path("documents", name, KEYS["ingest"]), documents_schema(), KEYS["ingest"]
    ) as writer:
        for first in range(0, n, BATCH):
            writer.write(documents(random, words, shard, first, min(BATCH, n - first)))
        writer.details = {"rows_in": n, "dropped": {}}
    rows = pa.array(range(n), pa.uint32())
    scores = pa.array(random.standard_normal(n), pa.float32())
    with stage_file_writer(
        workspace.shard_path("scores", name, KEYS["score"]), scores_schema(["edu"]), KEYS["score"]
    ) as writer:
        writer.write(pa.record_batch([rows, scores, scores], schema=scores_schema(["edu"])))
    selected = np.zeros(n, dtype=bool)
    selected[random.choice(n, n // RATIO, replace=False)] = True
    inclusion = pa.array(random.random(n), pa.float32())
    with stage_file_writer(workspace.shard_path("masks", name, KEYS["select"]), MASKS, KEYS["select"]) as writer:
        writer.write(pa.record_batch([rows, pa.array(selected), inclusion, pa.array([name] * n)], schema=MASKS))


def make_corpus(arguments: argparse.Namespace) -> Workspace:
    workspace = Workspace(arguments.folder / f"{arguments.documents}-{arguments.shards}")
    with ProcessPoolExecutor(1, mp_context=SPAWN) as process:  # its memory would count as that of those that follow
        process.submit(make_shards, workspace, arguments.shards, arguments.documents // arguments.shards).result()
    return workspace


def make_shards(workspace: Workspace, shards: int, n: int) -> None:
    words = babble(np.random.default_rng(0))
    for shard in range(shards):
        make_shard(workspace, shard, n, words)


def write_dataset(workspace: Workspace, shards: int, settings: MaterializeSettings) -> None:
    """Run all jobs of the stage, two partitions at a time, as a run with the default settings does."""
    files, sources = [], {}
    for shard in range(shards):
        name = f"{shard:04d}"
        of_shard = {
            kind: find_file(workspace, kind, name, KEYS[stage])
            for kind, stage in (("documents", "ingest"), ("scores", "score"), ("masks", "select"))
        }
        size = of_shard["documents"].bytes
        sources[name] = SourceShard(name=name, relative=name, url=name, format="parquet", bytes=size, fingerprint="")
        files.append(ShardFiles(**of_shard))
    n = sum(of_shard.documents.rows for of_shard in files)
    selected = sum(of_shard.documents.rows // RATIO for of_shard in files)
    recipe = PipelineSettings(
        workspace=str(workspace.root),
        source=SourceSettings(path="unused"),
        quality=QualitySettings(scorers=[ColumnScorerSettings(name="edu", kind="column", column="token_count")]),
        materialize=settings,
    )
    counts = Counts(
        documents_in=n,
        documents_ingested=n,
        documents_eligible=n,
        selected=selected,
        not_selected=n - selected,
        dropped={},
        tokens_in=0,
        tokens_ingested=0,
        tokens_eligible=0,
        tokens_selected=0,
        tokens_estimated=0,
    )
    jobs = partition_jobs(str(workspace.root), files, sources, settings)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        written = list(pool.map(write_partition, map(forced, jobs)))
    job = MaterializeJob(
        root=str(workspace.root),
        counts=counts,
        blocks=[],
        recipe=recipe,
        shards=files,
        partitions=tuple(written),
    )
    materialize(forced(job))


def forced(job: StageJob) -> StageJob:
    return job.model_copy(update={"force": True})


def files_of(workspace: Workspace, kind: str) -> list[str]:
    return [str(path) for path in sorted((workspace.root / kind).glob("*.parquet"))]


def ours(workspace: Workspace, _output: Path) -> None:
    write_dataset(workspace, len(files_of(workspace, "masks")), MaterializeSettings())


def bare_duckdb(workspace: Workspace, output: Path) -> None:
    connection = duckdb.connect()
    connection.execute("SET enable_progress_bar = false")
    connection.execute(
        f"""
        COPY (SELECT * FROM read_parquet($documents) WHERE row IN (SELECT row FROM read_parquet($masks) WHERE selected))
        TO '{output}' (FORMAT parquet, COMPRESSION zstd)
        """,
        {"documents": files_of(workspace, "documents"), "masks": files_of(workspace, "masks")},
    )


def with_scores(table: pa.Table, scores: pa.Table, masks: pa.Table) -> pa.Table:
    wider = table.append_column("quality", scores["quality"]).append_column("inclusion", masks["inclusion"])
    return wider.filter(masks["selected"])


def pyarrow_tables(workspace: Workspace, output: Path) -> None:
    tables = [pq.read_table(files_of(workspace, kind)) for kind in ("documents", "scores", "masks")]
    pq.write_table(with_scores(*tables), output, compression="zstd")


def pyarrow_row_groups(workspace: Workspace, output: Path) -> None:
    writer = None
    for files in zip(*(files_of(workspace, kind) for kind in ("documents", "scores", "masks")), strict=True):
        scores, masks = pq.read_table(files[1]), pq.read_table(files[2])
        with pq.ParquetFile(files[0]) as file:
            row = 0
            for group in range(file.num_row_groups):
                table = file.read_row_group(group)
                n = table.num_rows
                kept = with_scores(table, scores.slice(row, n), masks.slice(row, n))
                row += n
                writer = writer or pq.ParquetWriter(output, kept.schema, compression="zstd")
                writer.write_table(kept)
    writer.close()


def pandas_frames(workspace: Workspace, output: Path) -> None:
    import pandas as pd

    frame, scores, masks = (pd.read_parquet(workspace.root / kind) for kind in ("documents", "scores", "masks"))
    wider = frame.assign(quality=scores["quality"], inclusion=masks["inclusion"])
    wider[masks["selected"]].to_parquet(output, compression="zstd", index=False)


def measured(way: Callable[[Workspace, Path], None], workspace: Workspace) -> tuple[float, float, int]:
    """Return seconds, peak MiB of this process, bytes written."""
    output = workspace.root / "peer.parquet"
    started = time.perf_counter()
    way(workspace, output)
    seconds = time.perf_counter() - started
    written = [output] if output.exists() else tree_files(workspace.dataset)
    size = sum(path.stat().st_size for path in written)
    output.unlink(missing_ok=True)
    return seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, size


def run_alone(way: Callable[[Workspace, Path], None], workspace: Workspace) -> tuple[float, float, int]:
    with ProcessPoolExecutor(1, mp_context=SPAWN) as process:
        return process.submit(measured, way, workspace).result()


def disk_rate(folder: Path, size: int = 1024 * MIB) -> tuple[float, float]:
    """Return bytes per second of writing (synced) and of reading a file that is not in the page cache."""
    path = folder / "rate.bin"
    block = os.urandom(16 * MIB)
    started = time.perf_counter()
    with path.open("wb") as stream:
        for _ in range(size // len(block)):
            stream.write(block)
        stream.flush()
        os.fsync(stream.fileno())
    wrote = time.perf_counter() - started
    with path.open("rb", buffering=0) as stream:
        os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        started = time.perf_counter()
        while stream.read(len(block)):
            pass
        read = time.perf_counter() - started
    path.unlink()
    return size / wrote, size / read


def report(title: str, ways: list[Callable], workspace: Workspace, repeats: int) -> None:
    read = sum(
        Path(file).stat().st_size for kind in ("documents", "scores", "masks") for file in files_of(workspace, kind)
    )
    found = {way.__name__: [] for way in ways}
    for _ in range(repeats):
        for way in ways:
            found[way.__name__].append(run_alone(way, workspace))
    reference = median(seconds for seconds, _, _ in found[ways[0].__name__])
    table = []
    for name, runs in found.items():
        seconds, written = median(run[0] for run in runs), runs[0][2]
        cells = [f"{seconds:.2f}", f"{seconds / reference:.2f}", f"{max(run[1] for run in runs):,.0f}"]
        table.append([name, *cells, f"{written / MIB:,.0f}", f"{(read + written) / seconds / MIB:,.0f}"])
    show(title, ["way", "s", "of ours", "peak MiB", "MiB written", "MiB/s read + written"], table)


def peers(arguments: argparse.Namespace) -> None:
    workspace = make_corpus(arguments)
    write, read = disk_rate(workspace.root)
    print(f"the disk by itself: {write / MIB:,.0f} MiB/s written and synced, {read / MIB:,.0f} MiB/s read")
    size = sum(Path(file).stat().st_size for file in files_of(workspace, "documents"))
    ways = [ours, bare_duckdb, pyarrow_row_groups, pyarrow_tables, pandas_frames]
    title = f"{arguments.documents:,} documents ({size / MIB:,.0f} MiB), one in {RATIO} selected"
    report(f"{title}, {arguments.repeats} repeats", ways, workspace, arguments.repeats)


def memory(arguments: argparse.Namespace) -> None:
    workspace = make_corpus(arguments)
    size = sum(Path(file).stat().st_size for file in files_of(workspace, "documents"))
    with pq.ParquetFile(files_of(workspace, "documents")[0]) as file:
        groups = [file.metadata.row_group(index) for index in range(file.num_row_groups)]
        raw = arguments.shards * sum(group.total_byte_size for group in groups)
    title = f"{arguments.documents:,} documents, {size / 1e9:,.1f} GB of Parquet, {raw / 1e9:,.1f} GB uncompressed"
    report(title, [ours], workspace, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["peers", "memory"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--documents", type=int, default=1_000_000)
    parser.add_argument("--shards", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    {"peers": peers, "memory": memory}[arguments.command](arguments)


if __name__ == "__main__":
    main()
