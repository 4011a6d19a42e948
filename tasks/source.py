"""The raw documents: finding the source files (shards) and reading them as batches of Arrow columns."""

import gzip
import hashlib
import io
import json
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel, ConfigDict

from models.documents import conform
from models.schemas import FINEWEB, RESERVED_COLUMNS
from models.settings import SourceSettings
from tasks.filesystem import is_local, open_filesystem, stored, version_of
from tasks.remote_errors import is_missing, is_transient
from tasks.remote_file import READ_AHEAD_BYTES, RemoteFile
from tasks.retries import attempt
from tasks.stage import BadShardError

BATCH_ROWS = 1_000
FORMATS: dict[str, Literal["parquet", "jsonl"]] = {
    ".parquet": "parquet",
    **{
        f"{name}{compression}": "jsonl"
        for name in (".jsonl", ".ndjson", ".json")
        for compression in ("", ".gz", ".zst")
    },
}
TAKEN_NAMES = RESERVED_COLUMNS | {
    *FINEWEB.names,
    *(
        "shard",
        "documents_file",
        "scores_file",
        "_folder",
        "_random",
        "_shard",
        "_row",
    ),  # of the dataset's queries
}
GLOB_CHARACTERS = frozenset("*?[")
BROKEN_FILE_ERRORS = (pa.ArrowException, EOFError, zlib.error, UnicodeError)


class SourceError(ValueError):
    """The source as a whole cannot be used."""


class SourceShard(BaseModel):
    """One source file."""

    model_config = ConfigDict(frozen=True)

    name: str  # of the shard in the workspace
    relative: str  # of the file in the source
    url: str
    format: Literal["parquet", "jsonl"]
    bytes: int
    fingerprint: str


def discover(settings: SourceSettings) -> list[SourceShard]:
    """Return the source files behind a path, folder, glob or URL, ordered by name.

    Raises
    ------
    SourceError
        If there is none, if a file's format is unknown, or if two would be the same shard.
    RemoteError
        If the source is at a URL that does not answer, or refuses access.
    """
    filesystem, root = open_filesystem(settings.path)
    base, found = attempt(settings.path, _list_files, filesystem, root, settings)
    shards = [_shard(filesystem, path, info, base, settings) for path, info in found.items()]
    names = [shard.name for shard in shards]
    for shard in shards:
        if names.count(shard.name) > 1:
            same = [other.relative for other in shards if other.name == shard.name]
            raise SourceError(f"source.path: these files would be one shard, rename one: {', '.join(same)}")
    return sorted(shards, key=lambda shard: shard.name)


def _list_files(filesystem: Any, root: str, settings: SourceSettings) -> tuple[str, dict[str, dict[str, Any]]]:  # noqa: ANN401
    """Return the folder that names are relative to, and the files with what the file system says of each."""
    filesystem.invalidate_cache()  # not `isfile` and `isdir`, for which a server that does not answer has no file
    try:
        info = filesystem.info(root)
    except FileNotFoundError as error:
        if not is_missing(error):
            raise
        info = None
    if info is not None and info["type"] == "file":
        return str(PurePosixPath(root).parent), {root: info}
    if info is not None:
        base, found = root, filesystem.find(root, detail=True)
    elif GLOB_CHARACTERS & set(root):
        fixed = list(PurePosixPath(root).parts)
        while GLOB_CHARACTERS & set("".join(fixed)):
            fixed.pop()
        base = str(PurePosixPath(*fixed)) if fixed else ""
        found = filesystem.glob(root, detail=True)
    else:
        raise SourceError(f"source.path: {settings.path!r} does not exist (looked for {root})")
    hidden = (".", "_")
    files = {
        path: info
        for path, info in found.items()
        if info["type"] != "directory"
        and not any(part.startswith(hidden) for part in PurePosixPath(path).relative_to(base or "/").parts)
        and (settings.format != "auto" or _suffix(path) is not None)
    }
    if not files:
        raise SourceError(f"source.path: no {'/'.join(sorted(FORMATS))} file below {settings.path!r}")
    return base, files


def _suffix(path: str) -> str | None:
    return next((suffix for suffix in sorted(FORMATS, key=len, reverse=True) if path.lower().endswith(suffix)), None)


def _shard(filesystem: Any, path: str, info: dict[str, Any], base: str, settings: SourceSettings) -> SourceShard:  # noqa: ANN401
    relative = str(PurePosixPath(path).relative_to(base)) if base else path
    suffix = _suffix(path)
    if settings.format == "auto" and suffix is None:
        raise SourceError(f"source.path: cannot tell the format of {path!r}: set source.format to parquet or jsonl")
    stem = relative.removesuffix(".parquet")
    safe = "".join(character if character.isalnum() or character in "._-" else "-" for character in stem)
    url = filesystem.unstrip_protocol(path)
    if is_local(filesystem) or info.get("size") is None:  # a listing of links tells no size; one may be a link itself
        info = attempt(url, filesystem.info, path)
    return SourceShard(
        name=safe,
        relative=relative,
        url=url,
        format=FORMATS[suffix] if settings.format == "auto" and suffix else settings.format,
        bytes=stored(info, url).bytes,
        fingerprint=_content(url) if settings.fingerprint == "content" else _state(info),
    )


def _state(info: dict[str, Any]) -> str:
    """Return a fingerprint by what the file system says of a file, without reading it."""
    return f"size:{info['size']} changed:{version_of(info)}"


def _content(url: str) -> str:
    with _opened(url) as stream:
        return f"sha256:{hashlib.file_digest(stream, 'sha256').hexdigest()}"


def _opened(url: str) -> io.BufferedReader:
    """Open a local file, or one at a URL that is asked for again where reading it fails."""
    filesystem, path = open_filesystem(url)
    if is_local(filesystem):
        return open(path, "rb")  # noqa: PTH123
    return io.BufferedReader(RemoteFile(url), READ_AHEAD_BYTES)


class ShardReader:
    """Streams one source file as batches with FineWeb's nine columns, then the extra ones.

    Parameters
    ----------
    shard
        The file.
    settings
        Which columns hold the text and the id, and which extra columns to carry along.

    Raises
    ------
    BadShardError
        Here or while reading: if the file is damaged, or a column is missing or of the wrong type.
    """

    def __init__(self, shard: SourceShard, settings: SourceSettings) -> None:
        self.shard = shard
        self.settings = settings
        self._filesystem, self._path = open_filesystem(shard.url)
        self._state = self._look()
        if settings.fingerprint == "mtime" and self._state != shard.fingerprint:
            raise self._bad("it was changed since the run began: run again")
        try:
            names = self._open_parquet().schema_arrow if shard.format == "parquet" else self._infer_json_schema()
        except (*BROKEN_FILE_ERRORS, OSError) as error:
            if is_transient(error):
                raise
            raise self._bad(error) from error
        if settings.text_column not in names.names:
            raise self._bad(f"no column {settings.text_column!r}, set source.text_column to one of {names.names}")
        self.extra = self._extra_fields(names)

    def _look(self) -> str:
        self._filesystem.invalidate_cache()
        try:
            return _state(attempt(self.shard.url, self._filesystem.info, self._path))
        except OSError as error:
            if is_transient(error):
                raise
            raise self._bad(error) from error

    def _check_unchanged(self) -> None:
        if self._look() != self._state:
            raise self._bad("it was changed while it was read: run again")

    def _bad(self, reason: object) -> BadShardError:
        return BadShardError(f"{self.shard.relative}: {reason}")

    def _extra_fields(self, schema: pa.Schema) -> list[pa.Field]:
        known = {*FINEWEB.names, self.settings.text_column, self.settings.id_column}
        if self.settings.extra_columns == "all":
            names = [name for name in schema.names if name not in known]
        else:
            names = [name for name in self.settings.extra_columns if name not in known]
        if taken := [name for name in names if name.lower() in TAKEN_NAMES]:  # SQL does not tell Text from text
            raise self._bad(
                f"column {taken[0]!r} has a name that the pipeline writes itself: "
                "list the columns to carry along, without it, in source.extra_columns"
            )
        if alike := [name for name, times in Counter(name.lower() for name in names).items() if times > 1]:
            raise self._bad(
                f"columns {[name for name in names if name.lower() == alike[0]]} differ in case only: "
                "list the columns to carry along, with one of them, in source.extra_columns"
            )
        if missing := set(names).difference(schema.names):
            raise self._bad(f"no column {sorted(missing)[0]!r}, source.extra_columns may name {schema.names}")
        if wide := [name for name in names if pa.types.is_decimal256(schema.field(name).type)]:
            raise self._bad(
                f"column {wide[0]!r} holds decimals of more than 38 digits, which DuckDB cannot carry: "
                "list the columns to carry along, without it, in source.extra_columns"
            )
        return [pa.field(name, schema.field(name).type) for name in names]

    def batches(self) -> Iterator[tuple[pa.RecordBatch, pa.Array | None]]:
        """Yield batches in file order, each with a column of problems (null: none) where rows could not be read."""
        rows = self._parquet_batches() if self.shard.format == "parquet" else self._json_batches()
        try:
            for batch, problems in rows:
                yield conform(batch, self.settings.text_column, self.settings.id_column, self.extra), problems
            self._check_unchanged()
        except BadShardError:
            raise
        except (*BROKEN_FILE_ERRORS, OSError, ValueError) as error:
            if is_transient(error):
                raise
            self._check_unchanged()
            raise self._bad(error) from error

    def _open_parquet(self) -> pq.ParquetFile:
        return pq.ParquetFile(self._path if is_local(self._filesystem) else RemoteFile(self.shard.url))

    def _parquet_batches(self) -> Iterator[tuple[pa.RecordBatch, None]]:
        with self._open_parquet() as file:
            wanted = {
                *FINEWEB.names,
                self.settings.text_column,
                self.settings.id_column,
                *(f.name for f in self.extra),
            }
            columns = [name for name in file.schema_arrow.names if name in wanted]
            for batch in file.iter_batches(BATCH_ROWS, columns=columns):
                yield batch, None

    def _json_records(self) -> Iterator[dict[str, Any] | None]:
        name = self.shard.relative.lower()
        with _opened(self.shard.url) as stream, _decompressed(stream, name) as lines:
            for line in lines:
                if line.strip():
                    yield _parse(line)

    def _infer_json_schema(self) -> pa.Schema:
        """Read the file once for its columns; a column of several types, or a nested one, is kept as JSON text."""
        kinds: dict[str, set[type]] = {}
        for record in self._json_records():
            for name, value in (record or {}).items():
                kinds.setdefault(name, set()).add(type(value))
        return pa.schema([pa.field(name, _json_type(found)) for name, found in kinds.items()])

    def _json_batches(self) -> Iterator[tuple[pa.RecordBatch, pa.Array]]:
        fields = [
            pa.field(self.settings.text_column, pa.string()),
            pa.field(self.settings.id_column, pa.string()),
            *(field for field in FINEWEB if field.name not in ("text", "id")),
            *self.extra,
        ]
        pending: list[tuple[list[Any], str | None]] = []
        for record in self._json_records():
            pending.append(_typed(record, fields))
            if len(pending) == BATCH_ROWS:
                yield _json_batch(pending, fields)
                pending = []
        yield _json_batch(pending, fields)


def _decompressed(stream: io.BufferedReader, name: str) -> io.BufferedReader | gzip.GzipFile:
    """Return the lines of all frames; Arrow notices a frame of zstd that is cut short."""
    if name.endswith(".zst"):
        return io.BufferedReader(pa.CompressedInputStream(stream, "zstd"))
    return gzip.GzipFile(fileobj=stream) if name.endswith(".gz") else stream


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def _json_type(found: set[type]) -> pa.DataType:
    known = found - {type(None)}
    if known == {bool}:
        return pa.bool_()
    if known == {int}:
        return pa.int64()
    if known and known <= {int, float}:
        return pa.float64()
    return pa.string()


def _typed(record: dict[str, Any] | None, fields: list[pa.Field]) -> tuple[list[Any], str | None]:
    """Return a record's values in the order of `fields`, and what is wrong with it."""
    if record is None:
        return [None] * len(fields), "broken_row"
    values: list[Any] = []
    for position, field in enumerate(fields):
        value = record.get(field.name)
        if value is not None and not _fits(value, field.type):
            is_extra = position >= len(FINEWEB)
            is_number_id = position == FINEWEB.get_field_index("id") and isinstance(value, int)
            if is_number_id or (is_extra and pa.types.is_string(field.type)):
                value = json.dumps(value, ensure_ascii=False)
            else:
                return [None] * len(fields), "wrong_type"
        if isinstance(value, str) and not _encodes(value):
            return [None] * len(fields), "invalid_utf8"
        values.append(value)
    return values, None


def _fits(value: object, kind: pa.DataType) -> bool:
    if pa.types.is_string(kind):
        return isinstance(value, str)
    if pa.types.is_boolean(kind):
        return isinstance(value, bool)
    if pa.types.is_integer(kind):
        return isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63
    return isinstance(value, int | float) and not isinstance(value, bool)


def _encodes(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # a lone surrogate, which JSON can spell and UTF-8 cannot
        return False
    return True


def _json_batch(rows: list[tuple[list[Any], str | None]], fields: list[pa.Field]) -> tuple[pa.RecordBatch, pa.Array]:
    columns = [pa.array([values[index] for values, _ in rows], field.type) for index, field in enumerate(fields)]
    problems = pa.array([problem for _, problem in rows], pa.string())
    return pa.record_batch(columns, schema=pa.schema(fields)), problems
