"""Write the documents of a dataset in the order of training: all in random order, divided evenly among files.

DuckDB sorts them by a hash of the seed and their place in the dataset, and spills what does not fit into memory.
"""

import shutil
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from fineweb_mask.models.runtime.progress import track_by_size
from fineweb_mask.models.runtime.stopping import raise_if_stopped
from fineweb_mask.models.settings.output import ExportSettings
from fineweb_mask.tasks.dataset.verify import DATA_SUFFIXES, Dataset, VerifyError
from fineweb_mask.tasks.source.jsonl import jsonl_records
from fineweb_mask.tasks.storage.parquet import VerifiedFile
from fineweb_mask.tasks.workspace.manifest import Manifest

DOCUMENTS = pa.schema([pa.field("text", pa.string(), nullable=False), pa.field("id", pa.string(), nullable=False)])
ROW_GROUP = 1_000
"""Documents of a row group: trainers read one at a time, and skip to another when they resume."""
LEAST_FILES = 2
"""Some trainers take the last file for validation, the others for training."""
BATCH_ROWS = 5_000
LONGEST_LINE = 2**30
MEMORY_LIMIT = "2GB"


def divide(documents: int, size: int, file_size: int) -> list[range]:
    """Return the documents of each file, for a dataset of so many documents and bytes.

    Every file but the last has the same number, full row groups of them where there are enough.

    >>> divide(5_000, 10_000, 5_000)
    [range(0, 3000), range(3000, 5000)]
    """
    files = max(LEAST_FILES, -(-size // file_size))
    each = max(1, -(-documents // files))
    if each > ROW_GROUP:
        each = -(-each // ROW_GROUP) * ROW_GROUP
    return [range(first, min(first + each, documents)) for first in range(0, documents, each)]


def write_documents(
    dataset: Dataset, manifest: Manifest, settings: ExportSettings, folder: Path, part: tuple[float, float] = (0, 1)
) -> list[Path]:
    """Write the texts and ids of a dataset to Parquet files in a folder, and return these.

    Raises
    ------
    VerifyError
        If the dataset does not hold as many documents as its record says.
    DamagedFileError
        If one of its files is damaged.
    """
    rows = int(manifest.details["rows"])
    size = sum(file.bytes for name, file in manifest.files.items() if name.endswith(DATA_SUFFIXES))
    places = divide(rows, size, settings.file_size)
    folder.mkdir(parents=True)
    batches = _read(dataset, manifest)
    if settings.shuffle:
        batches = _sorted(batches, settings.seed, folder)
    ordered = track_by_size("documents ordered", batches, rows, lambda batch: batch.num_rows, part=part)
    files = [folder / f"{number:05d}.parquet" for number in range(len(places))]
    sizes = [[len(place[first : first + ROW_GROUP]) for first in range(0, len(place), ROW_GROUP)] for place in places]
    groups = _regrouped(ordered, [*chain.from_iterable(sizes), 1])
    written = 0
    for path, of_file in zip(files, sizes, strict=True):
        with pq.ParquetWriter(
            path, DOCUMENTS, compression="zstd", write_page_checksum=True, use_dictionary=False
        ) as file:
            for group in islice(groups, len(of_file)):
                written += group.num_rows
                file.write_table(group, row_group_size=ROW_GROUP)
    if written != rows or next(groups).num_rows:
        raise VerifyError(f"{dataset.url} must hold the {rows:,} documents of its record, it holds others: verify it")
    return files


def _regrouped(batches: Iterator[pa.RecordBatch], sizes: Iterable[int]) -> Iterator[pa.Table]:
    """Yield the documents in groups of these sizes, of which the last ones are smaller if there are too few."""
    held = DOCUMENTS.empty_table()
    for size in sizes:
        while held.num_rows < size and (batch := next(batches, None)) is not None:
            held = pa.concat_tables([held, pa.Table.from_batches([batch])])
        yield held.slice(0, size).combine_chunks()
        held = held.slice(size)


def _read(dataset: Dataset, manifest: Manifest) -> Iterator[pa.RecordBatch]:
    for name in sorted(name for name in manifest.files if name.endswith(DATA_SUFFIXES)):
        raise_if_stopped()
        if name.endswith(".parquet"):
            with dataset.open(name) as stream, VerifiedFile(stream, name) as file:
                for batch in file.iter_batches(BATCH_ROWS, columns=DOCUMENTS.names):
                    yield batch.select(DOCUMENTS.names).cast(DOCUMENTS)
            continue
        lines = jsonl_records(f"{dataset.url.rstrip('/')}/{name}", name, LONGEST_LINE)
        while found := list(islice(lines, BATCH_ROWS)):
            yield pa.RecordBatch.from_pylist(found, schema=DOCUMENTS)


def random_keys(first: int, count: int, seed: int) -> NDArray[np.uint64]:
    """Return a hash of the seed and of each of `count` numbers from `first` on, (count,): that of SplitMix64.

    Source: Steele, Lea, Flood 2014, "Fast splittable pseudorandom number generators".
    """
    with np.errstate(over="ignore"):
        state = np.arange(first, first + count, dtype=np.uint64) + np.uint64(1)
        state = state * np.uint64(0x9E3779B97F4A7C15) + np.uint64(seed) * np.uint64(0xD1342543DE82EF95)
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed: NDArray[np.uint64] = state ^ (state >> np.uint64(31))
        return mixed


def _sorted(batches: Iterator[pa.RecordBatch], seed: int, folder: Path) -> Iterator[pa.RecordBatch]:
    """Yield the documents in the order of their keys; equal keys, which are rare, in that of the dataset."""
    columns = pa.schema([("key", pa.uint64()), ("place", pa.uint64()), *DOCUMENTS])
    failed: list[Exception] = []  # while documents were read; DuckDB raises its text alone

    def with_keys() -> Iterator[pa.RecordBatch]:
        first = 0
        try:
            for batch in batches:
                raise_if_stopped()
                keys = pa.array(random_keys(first, batch.num_rows, seed))
                places = pa.array(np.arange(first, first + batch.num_rows, dtype=np.uint64))
                yield pa.record_batch([keys, places, *batch.columns], schema=columns)
                first += batch.num_rows
        except Exception as error:
            failed.append(error)
            raise

    spilled = folder / "spilled"
    config: dict[str, Any] = {"memory_limit": MEMORY_LIMIT, "temp_directory": str(spilled)}
    try:
        with duckdb.connect(config=config) as connection:
            connection.register("documents", pa.RecordBatchReader.from_batches(columns, with_keys()))
            found = connection.sql("SELECT text, id FROM documents ORDER BY key, place").to_arrow_reader(BATCH_ROWS)
            for batch in found:
                yield batch.cast(DOCUMENTS)
    except duckdb.Error as error:
        raise (failed[0] if failed else error) from None
    finally:
        shutil.rmtree(spilled, ignore_errors=True)
