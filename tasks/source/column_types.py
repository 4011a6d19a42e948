"""Settle columns whose types differ between source files, before any work starts."""

from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache

import pyarrow as pa

from fineweb_mask.models.columns import ColumnTypeError, must_be_text, plain_type
from fineweb_mask.models.runtime.stopping import raise_if_stopped
from fineweb_mask.models.schemas import FINEWEB
from fineweb_mask.models.settings import SourceSettings
from fineweb_mask.tasks.source.discovery import SourceShard
from fineweb_mask.tasks.source.reader import BROKEN_FILE_ERRORS, open_parquet_source
from fineweb_mask.tasks.storage.remote.errors import is_transient

READERS = 16
"""Footers that are read at the same time."""


@lru_cache(maxsize=200_000)
def footer_schema(url: str, fingerprint: str) -> pa.Schema | None:  # noqa: ARG001 - of a changed file, it is another one
    """Return the columns of a Parquet file, or None if it cannot be read; ingest reports it."""
    raise_if_stopped()
    try:
        with open_parquet_source(url) as file:
            return file.schema_arrow
    except (*BROKEN_FILE_ERRORS, OSError) as error:
        if is_transient(error):
            raise
        return None


def schema_of(shard: SourceShard) -> pa.Schema | None:
    """Return the columns of a Parquet file, or None if it is another or cannot be read."""
    return footer_schema(shard.url, shard.fingerprint) if shard.format == "parquet" and shard.bytes else None


def settle(shards: Sequence[SourceShard], settings: SourceSettings) -> list[SourceShard]:
    """Return the shards, each with the names of its columns that are kept as text (`as_text`).

    These are columns whose types in other files are others, and that no type can hold (`must_be_text`). Which columns
    JSON Lines have, only ingest finds out.
    """
    wanted = settings.extra_columns
    if not wanted or all(shard.format != "parquet" for shard in shards):
        return list(shards)
    with ThreadPoolExecutor(READERS) as readers:
        schemas = list(readers.map(schema_of, shards))
    is_mixed = any(shard.format == "jsonl" for shard in shards)
    types = [_extra_types(schema, settings) for schema in schemas]
    kinds: dict[str, set[pa.DataType]] = defaultdict(set)
    for of_shard in types:
        for name, kind in of_shard.items():
            kinds[name].add(kind)
    text = {name for name, found in kinds.items() if must_be_text(found, beside_json=is_mixed)}
    return [
        shard.model_copy(update={"as_text": names})
        if (names := tuple(name for name, kind in of_shard.items() if name in text and kind != pa.string()))
        else shard
        for shard, of_shard in zip(shards, types, strict=True)
    ]


def _extra_types(schema: pa.Schema | None, settings: SourceSettings) -> dict[str, pa.DataType]:
    """Return the plain types of a file's extra columns, those aside that ingest refuses."""
    known = {*FINEWEB.names, settings.text_column, settings.id_column}
    found = {}
    for field in schema or []:
        is_wanted = settings.extra_columns == "all" or field.name in settings.extra_columns
        if is_wanted and field.name not in known:
            try:
                found[field.name] = plain_type(field.type)
            except ColumnTypeError:
                continue
    return found


def differing(shards: Sequence[SourceShard]) -> dict[str, str]:
    """Return the columns that are kept as text, with their types in the files that have others, for people."""
    found: dict[str, dict[str, str]] = defaultdict(dict)  # the first file of each type, by column
    text = {name for shard in shards for name in shard.as_text}
    for shard in shards if text else []:
        for field in schema_of(shard) or []:
            if field.name in text:
                found[field.name].setdefault(str(field.type), shard.relative)
    return {
        name: ", ".join(f"{kind} in {relative}" for kind, relative in files.items()) for name, files in found.items()
    }
