"""Source files of the tests: written, found and read."""

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

from fineweb_mask.models.schemas import FINEWEB
from fineweb_mask.models.settings import SourceSettings
from fineweb_mask.tasks.source.discovery import SourceShard, find_source
from fineweb_mask.tasks.source.reader import ShardReader

Row = dict[str, Any]
COMPRESSORS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".zst": zstandard.ZstdCompressor().compress,
}


def settings(path: object, **changes: Any) -> SourceSettings:
    return SourceSettings(path=str(path), **changes)


def discover(source: SourceSettings) -> list[SourceShard]:
    """Return the files of a source."""
    return find_source(source).shards


def found(source: SourceSettings) -> dict[str, str]:
    return {shard.relative: shard.name for shard in discover(source)}


def read(source: SourceSettings, columns: Any = None) -> tuple[pa.Table, list[str | None]]:
    """Return the only file's columns and problems."""
    [shard] = discover(source)
    shard = shard.model_copy(update={"columns": columns})
    reader = ShardReader(shard, source)
    batches = list(reader.batches())
    problems = [problem for batch, some in batches for problem in (some or pa.nulls(batch.num_rows)).to_pylist()]
    return pa.Table.from_batches([batch for batch, _ in batches], schema=pa.schema([*FINEWEB, *reader.extra])), problems


def write_lines(path: Path, lines: list[str], suffix: str = "") -> Path:
    path.write_bytes(COMPRESSORS[suffix]("".join(f"{line}\n" for line in lines).encode()))
    return path


def write_table(path: Path, **columns: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path)
    return path
