"""Measure how fast datatrove's filters and trafilatura run here, beside datatrove's own local pipeline.

    python -m benchmarks.filters web_mix.parquet --documents 2000

Both read the same Parquet file of texts, apply the filters of `deployments/recipes/raw-web.yaml` in the same order, and
write what is kept as Parquet; each with one process and with one for each core. `ingest` also hashes every text, and
counts what was dropped. The decisions are compared: they must be the same. Then the same pages as a WARC file, of whose
pages the texts are extracted. Of several runs, the least time counts. Documents/s of a core are those of the time
that processors spent, imports included, which other work on the machine changes little; so are extracted pages.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from benchmarks.tables import show
from fineweb_mask.models.filters import CLASSES
from fineweb_mask.models.settings import IngestSettings, SourceSettings
from fineweb_mask.models.settings.source import FilterSettings
from fineweb_mask.tasks.ingest import IngestJob, ingest
from fineweb_mask.tasks.processes import texts, workers
from fineweb_mask.tasks.source.discovery import find_source

ROOT = Path(__file__).resolve().parents[1]


def recipe_filters() -> list[FilterSettings]:
    """Return the filters of the recipe."""
    recipe = yaml.safe_load((ROOT / "deployments" / "recipes" / "raw-web.yaml").read_text())
    return [FilterSettings.model_validate(one) for one in recipe["ingest"]["filters"]]


def ours(path: Path, folder: Path, processes: int, settings: list[FilterSettings]) -> set[str]:
    """Ingest a file and return the ids of what is kept."""
    texts.cores = lambda: processes  # type: ignore[assignment]
    workers.end_workers()
    source = SourceSettings(path=str(path))
    [shard] = find_source(source).shards
    kept = IngestSettings(min_chars=1, filters=settings, exact_dedup="off")
    job = IngestJob(root=str(folder), shard=shard, source=source, settings=kept)
    ingest(job)
    workers.end_workers()
    return set(pq.read_table(job.output, columns=["id"])["id"].to_pylist())


def datatrove(path: Path, folder: Path, processes: int, settings: list[FilterSettings]) -> set[str]:
    """Run datatrove's local pipeline and return the ids of what is kept."""
    from datatrove.executor import LocalPipelineExecutor
    from datatrove.pipeline.readers import ParquetReader
    from datatrove.pipeline.writers import ParquetWriter

    steps: list[Any] = []
    for one in settings:
        place, name = CLASSES[one.kind]
        step = getattr(import_module(f"datatrove.pipeline.{place}"), name)(**one.options)
        if one.kind == "url":
            step.tldextractor = import_module("tldextract").TLDExtract(suffix_list_urls=())
        steps.append(step)
    pieces = folder / "pieces"  # a file for each process: it reads whole files
    pieces.mkdir()
    table = pq.read_table(path)
    for number in range(processes):
        rows = list(range(number, table.num_rows, processes))
        pq.write_table(table.take(rows), pieces / f"{number}.parquet")
    pipeline = [ParquetReader(str(pieces)), *steps, ParquetWriter(str(folder / "kept"))]
    LocalPipelineExecutor(
        pipeline, tasks=processes, workers=processes, logging_dir=str(folder / "logs"), skip_completed=False
    ).run()
    return {name for file in (folder / "kept").glob("*.parquet") for name in pq.read_table(file)["id"].to_pylist()}


Work = Callable[[Path, Path, int, list[FilterSettings]], set[str]]


def timed(work: Work, path: Path, processes: int, settings: list[FilterSettings]) -> tuple[set[str], float, float]:
    """Run one of the two in a temporary folder: the ids of what is kept, seconds, and seconds of processors."""
    with tempfile.TemporaryDirectory() as folder:
        started, before = time.perf_counter(), sum(os.times()[:4])
        kept = work(path, Path(folder), processes, settings)
        return kept, time.perf_counter() - started, sum(os.times()[:4]) - before


def least(
    work: Work, path: Path, processes: int, settings: list[FilterSettings], repeats: int
) -> tuple[set[str], float, float]:
    """Run one of the two in processes of its own, because ours replaces functions of datatrove; the least times."""
    runs = []
    for _ in range(repeats):
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
            runs.append(process.submit(timed, work, path, processes, settings).result())
    kept, seconds, of_processors = zip(*runs, strict=True)
    return kept[0], min(seconds), min(of_processors)


def extraction(texts: list[str], processes: int) -> float:
    """Return the pages per second of a core of ingesting a WARC file of these texts."""
    from tests.warc import Answer, page_of, warc_bytes

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "pages.warc.gz"
        answers = [Answer(page_of(text), f"https://example.org/{row}") for row, text in enumerate(texts)]
        path.write_bytes(warc_bytes(answers))
        return len(texts) / timed(ours, path, processes, [])[2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help="a Parquet file with the columns `text`, `id` and `url`")
    parser.add_argument("--documents", type=int, default=2_000)
    parser.add_argument("--repeats", type=int, default=1)
    arguments = parser.parse_args()
    os.environ["LOGURU_LEVEL"] = "ERROR"
    table = pq.read_table(arguments.file, columns=["text", "url"])
    table = table.take(list(range(0, table.num_rows, max(1, table.num_rows // arguments.documents))))
    table = table.slice(0, arguments.documents)
    texts = [text or "." for text in table["text"].to_pylist()]
    urls = [url or "https://example.org/" for url in table["url"].to_pylist()]
    ids = [str(row) for row in range(len(texts))]
    settings, rows = recipe_filters(), []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "pages.parquet"
        pq.write_table(pa.table({"text": texts, "id": ids, "url": urls}), path)
        for processes in (1, os.cpu_count() or 1):
            kept, seconds, busy = least(ours, path, processes, settings, arguments.repeats)
            theirs, other, their_busy = least(datatrove, path, processes, settings, arguments.repeats)
            of_core = [f"{len(texts) / time:,.0f}" for time in (busy, their_busy)] + [f"{their_busy / busy:.2f}"]
            rows.append(
                [
                    str(processes),
                    *(f"{len(texts) / time:,.0f}" for time in (seconds, other)),
                    f"{other / seconds:.2f}",
                    *(of_core if processes == 1 else [""] * 3),  # datatrove's processes are no children of this one
                    f"{len(kept):,}",
                    f"{len(kept ^ theirs):,}",
                    f"{extraction(texts, processes):,.0f}",
                ]
            )
    header = ["processes", "documents/s here", "datatrove", "ratio", "a core here", "datatrove", "ratio"]
    header += ["kept", "decided otherwise", "pages/s extracted, a core"]
    show(f"{arguments.file.stem}: {len(texts):,} documents", header, rows)


if __name__ == "__main__":
    main()
