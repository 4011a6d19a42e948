"""What it costs to verify checksums: to read stage files with and without, and to check files before DuckDB reads them.

    python -m benchmarks.checksums --rows 200000 --repeats 9

The files hold texts of the sample, vectors of float16 and scores, as `documents`, `embeddings` and `scores` do. What is
compared is timed in turns in one process, on files that are in the page cache: reading from a disk takes longer, and
the checksums no longer. Times are those of the processor, of all threads: they depend less on what else the machine
does. Given are the medians and the minima of the repeats, and the ratios of both, which differ where it is not quiet.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fineweb_mask.tasks.storage.parquet import VerifiedFile, _check_once, add_checksums, check_columns
from fineweb_mask.tasks.workspace.references import StageKey
from fineweb_mask.tasks.workspace.stage_parquet import stage_file_writer

ROOT = Path(__file__).resolve().parents[1]
KEY = StageKey(stage="benchmark", version=1, settings="", inputs="")
DIMENSIONS = 768
BATCH_ROWS = 1_000


def tables(rows: int) -> dict[str, pa.Table]:
    random = np.random.default_rng(0)
    sample = pq.read_table(ROOT / "data_samples" / "corpus", columns=["text", "id", "url", "dump"])
    texts = sample.take(pa.array(random.integers(0, len(sample), rows)))
    row = pa.array(np.arange(rows, dtype=np.uint32))
    vectors = random.normal(size=rows * DIMENSIONS).astype(np.float16)
    scores = random.random((2, rows), dtype=np.float32)
    return {
        "documents": texts.add_column(0, "row", row),
        "embeddings": pa.table({"row": row, "embedding": pa.FixedSizeListArray.from_arrays(vectors, DIMENSIONS)}),
        "scores": pa.table({"row": row, "score": scores[0], "quality": scores[1]}),
    }


def write(path: Path, table: pa.Table) -> None:
    options: dict[str, Any] = {}
    if "embedding" in table.column_names:  # as the stage `embed` does
        options = {"use_dictionary": False, "column_encoding": {"embedding.list.element": "BYTE_STREAM_SPLIT"}}
    with stage_file_writer(path, table.schema, KEY, **options) as writer:
        for batch in table.to_batches(max_chunksize=BATCH_ROWS):
            writer.write(batch)


def read(file: pq.ParquetFile) -> int:
    with file:
        return sum(batch.num_rows for batch in file.iter_batches(BATCH_ROWS))


def read_by_duckdb(path: Path) -> int:
    with duckdb.connect() as connection:
        reader = connection.sql("FROM read_parquet($path)", params={"path": str(path)}).to_arrow_reader(8_192)
        return sum(batch.num_rows for batch in reader)


def check(path: Path) -> None:
    _check_once.cache_clear()
    check_columns([path])


def timed(calls: dict[str, Callable[[], object]], repeats: int) -> dict[str, list[float]]:
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for repeat in range(repeats + 1):
        for name, call in calls.items():
            start = time.process_time()
            call()
            if repeat:  # the first warms up
                seconds[name].append(time.process_time() - start)
    return seconds


def report(what: str, size: int, seconds: dict[str, list[float]]) -> None:
    (base, first), *others = seconds.items()
    print(f"{what}, {size / 1e6:,.1f} MB")
    for name, found in seconds.items():
        print(f"  {name:<24} median {1e3 * statistics.median(found):8.1f} ms   least {1e3 * min(found):8.1f} ms")
    for name, found in others:
        by_median, by_least = statistics.median(found) / statistics.median(first), min(found) / min(first)
        print(f"  {name} / {base}: {by_median:.3f} by medians, {by_least:.3f} by the least")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--repeats", type=int, default=9)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for name, table in tables(arguments.rows).items():
            path = Path(folder) / f"{name}.parquet"
            start = time.process_time()
            write(path, table)
            writing = time.process_time() - start
            size = path.stat().st_size
            calls: dict[str, Callable[[], object]] = {
                "read": lambda path=path: read(pq.ParquetFile(path)),
                "read, verified": lambda path=path: read(VerifiedFile(path)),
            }
            report(f"{name}: PyArrow", size, timed(calls, arguments.repeats))
            calls = {"check": lambda path=path: check(path)}
            if name != "embeddings":  # DuckDB does not read float16
                calls = {"read": lambda path=path: read_by_duckdb(path)} | calls
            report(f"{name}: DuckDB", size, timed(calls, arguments.repeats))
            copy = Path(folder) / "copy.parquet"
            copy.write_bytes(path.read_bytes())
            start = time.process_time()
            add_checksums(copy)
            print(f"  written in {writing:.2f} s, of which the checksums are {time.process_time() - start:.3f} s")


if __name__ == "__main__":
    main()
