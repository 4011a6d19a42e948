"""Look at the first rows and the columns of source files, before any of them is read as a whole."""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from itertools import islice
from typing import Any, NamedTuple

import pyarrow as pa

from fineweb_mask.models.columns import locate
from fineweb_mask.models.runtime.stopping import raise_if_stopped
from fineweb_mask.tasks.processes.texts import with_texts
from fineweb_mask.tasks.source.discovery import LARGEST_DOCUMENT, SourceShard
from fineweb_mask.tasks.source.jsonl import inferred_type, jsonl_records
from fineweb_mask.tasks.source.opening import PACKED, broken_files, open_parquet_source
from fineweb_mask.tasks.source.warc import COLUMNS as WARC_COLUMNS
from fineweb_mask.tasks.source.warc import warc_records

FILES, ROWS = 16, 1_000
"""Files that are looked at, evenly spaced, and rows of each that has no list of its columns."""
PAGES = 100
"""Pages that are read of a crawl: to extract one takes longer than to read a row."""

Row = Mapping[str, Any]


class Known(NamedTuple):
    """What is known of the columns of a file."""

    schema: pa.Schema  # of JSON Lines, of the first rows; without columns if it cannot be read
    rows: int | None  # None: the file has more rows than were looked at


def read_columns(shard: SourceShard, largest: int = LARGEST_DOCUMENT) -> Known:
    """Return the columns of a file, of JSON Lines those of its first rows.

    Raises
    ------
    BROKEN_FILE_ERRORS, OSError
        If it cannot be read.
    """
    if shard.format == "warc":
        return Known(WARC_COLUMNS, None)
    if shard.format == "jsonl":
        records = list(islice(jsonl_records(shard.url, shard.relative, largest), ROWS))
        inferred = inferred_type(record for record in records if isinstance(record, dict))
        fields = [] if pa.types.is_null(inferred) else list(inferred)
        return Known(pa.schema(fields), len(records) if len(records) < ROWS else None)
    with open_parquet_source(shard.url) as file:
        return Known(file.schema_arrow, file.metadata.num_rows)


@lru_cache(maxsize=1_000)
def known_columns(shard: SourceShard) -> Known:
    """Return the columns of a file, none if it is empty or cannot be read, which ingest reports."""
    raise_if_stopped()
    with broken_files():
        if shard.bytes:
            return read_columns(shard)
    return Known(pa.schema([]), None)


def looked_at(shards: Sequence[SourceShard]) -> list[tuple[SourceShard, Known]]:
    """Return some files, evenly spaced, and what is known of their columns, those aside that cannot be read."""
    files = [shard.model_copy(update={"columns": None}) for shard in shards if shard.bytes]
    files = files[:: max(1, -(-len(files) // FILES))]
    with ThreadPoolExecutor(FILES) as readers:
        known = zip(files, readers.map(known_columns, files), strict=True)
    return [(shard, found) for shard, found in known if found.schema.names]


def first_rows(shard: SourceShard, most: int = ROWS, path: str = "") -> tuple[list[Row], float]:
    """Return the first rows of a file, none if it cannot be read, and about how many of its bytes they are.

    Of a crawl, at most 100 pages are read. Keys in the file's path stand where a row has no value. Of Parquet, nested
    columns are read only if a `path` leads into them.
    """
    rows, read_bytes = _first_rows(shard, most, path)
    return [{**row, **{name: key for name, key in shard.keys if row.get(name) is None}} for row in rows], read_bytes


def _first_rows(shard: SourceShard, most: int, path: str) -> tuple[list[Row], float]:
    is_packed = shard.relative.lower().endswith(tuple(PACKED))
    with broken_files():
        if shard.format == "jsonl":
            records = islice(jsonl_records(shard.url, shard.relative, LARGEST_DOCUMENT), most)
            found: list[Row] = [one for one in records if isinstance(one, dict)]
            return found, sum(len(str(one)) for one in found) * (0.3 if is_packed else 1.0)
        if shard.format == "warc":
            pages = list(islice(warc_records(shard, LARGEST_DOCUMENT), min(most, PAGES)))
            size = sum(len(one.get("page") or one["text"]) for one in pages if isinstance(one, dict))
            found = [one for one in with_texts(pages) if isinstance(one, dict)]
            return found, size * (0.2 if is_packed else 1.0)
        with open_parquet_source(shard.url) as file:
            outer = locate(path, file.schema_arrow)[0][0]
            names = [one.name for one in file.schema_arrow if one.name == outer or not pa.types.is_nested(one.type)]
            if (batch := next(file.iter_batches(most, columns=names), None)) is not None:
                return batch.to_pylist(), shard.bytes * batch.num_rows / max(1, file.metadata.num_rows)
    return [], 0.0
