"""Run read-only SQL over a workspace's catalog.

DuckDB is confined to the workspace: no other files, no network, no extensions, and a locked configuration. Inside the
workspace it could still write (`COPY ... TO`, even within a query), so only queries are accepted, and each one runs as
a subquery, where DuckDB only reads. It compares no checksums.
"""

import glob
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO, NamedTuple

import duckdb
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from fineweb_mask.models.errors import WorkspaceError
from fineweb_mask.tasks.catalog.quoting import identifier, literal
from fineweb_mask.tasks.catalog.views import VIEWS, catalog_path
from fineweb_mask.tasks.workspace.workspace import Workspace

BATCH_ROWS = 2_000
CSV_TYPES = frozenset(
    "boolean tinyint smallint integer bigint utinyint usmallint uinteger ubigint float double varchar date".split()
)
"""Types that Arrow writes to CSV; values of other types are written as DuckDB prints them."""
NESTED_TYPES = frozenset("list array struct map union".split())
NUMERIC_TYPES = frozenset(
    "tinyint smallint integer bigint hugeint utinyint usmallint uinteger ubigint uhugeint float double decimal".split()
)
ROW = "_fineweb_mask_row"
OPERATOR = duckdb.token_type.operator


class QueryError(WorkspaceError, ValueError):
    """A query is refused or fails."""


class Preview(NamedTuple):
    """The first rows of a result, as text."""

    columns: list[str]
    numeric: list[bool]
    rows: list[tuple[str | None, ...]]
    more: int  # number of rows after these


class Answer:
    """The result of a query; it is computed when it is read."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, sql: str) -> None:
        self.relation = connection.sql(f"SELECT * FROM (\n{sql}\n) AS {ROW}")  # noqa: S608 - the user's own query
        self.columns = self.relation.columns

    def preview(self, limit: int, *, characters: int) -> Preview:
        """Return the first `limit` rows, with values cut to `characters` characters, and the number of further rows."""
        kinds = [kind.id for kind in self.relation.types]
        columns = ", ".join(f"left(#{place + 1}::VARCHAR, {characters})" for place in range(len(kinds)))
        with _explained():
            first = self.relation.limit(limit + 1).project(columns).fetchall()
            more = 0
            if len(first) > limit:
                [[rows]] = self.relation.aggregate("count(*)").fetchall()
                more = rows - limit
        return Preview(self.columns, [kind in NUMERIC_TYPES for kind in kinds], first[:limit], more)

    def write_csv(self, stream: BinaryIO) -> None:
        """Write a CSV file with a header; a null is an empty field, an empty text is ""."""
        options = pa_csv.WriteOptions(quoting_style="needed")
        self._write(", ".join(self._for_csv()), partial(pa_csv.CSVWriter, stream, write_options=options))

    def _for_csv(self) -> Iterator[str]:
        for place, (name, kind) in enumerate(zip(self.columns, self.relation.types, strict=True), start=1):
            quoted = identifier(name)
            if kind.id in NESTED_TYPES:
                yield f"to_json(#{place})::VARCHAR AS {quoted}"
            else:
                yield f"#{place}{'' if kind.id in CSV_TYPES else '::VARCHAR'} AS {quoted}"

    def write_json(self, stream: BinaryIO) -> None:
        """Write a JSON array with one object per line; NaN and infinity, which JSON lacks, become null."""
        values = []
        for place, (name, kind) in enumerate(zip(self.columns, self.relation.types, strict=True), start=1):
            finite = (
                f"CASE WHEN isfinite(#{place}) THEN #{place} END" if kind.id in {"float", "double"} else f"#{place}"
            )
            values.append(f"{finite} AS {identifier(name)}")
        projected = self.relation.project(", ".join(values)).set_alias(ROW)
        with _explained():
            rows = projected.project(f"to_json({ROW})::VARCHAR").to_arrow_reader(BATCH_ROWS)
        before = b"[\n"
        for batch in _batches(rows):
            for line in batch.column(0).to_pylist():
                stream.write(before + line.encode())
                before = b",\n"
        stream.write(b"[]\n" if before == b"[\n" else b"\n]\n")

    def write_parquet(self, stream: BinaryIO) -> None:
        """Write a Parquet file."""
        self._write("*", partial(pq.ParquetWriter, stream, compression="zstd"))

    def _write(self, columns: str, writer_of: Callable[[pa.Schema], Any]) -> None:
        with _explained():
            reader = self.relation.project(columns).to_arrow_reader(BATCH_ROWS)
        with writer_of(reader.schema) as writer:
            for batch in _batches(reader):
                writer.write_batch(batch)


def _batches(reader: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
    with _explained():
        yield from reader


@contextmanager
def open_catalog(workspace: Workspace, memory_limit: str) -> Iterator[duckdb.DuckDBPyConnection]:
    """Open a copy of a workspace's catalog, without access to anything outside the workspace.

    DuckDB opens a file once in a process, with one configuration, and keeps it when a run replaces the file; a
    copy may be opened beside others.

    Raises
    ------
    QueryError
        If DuckDB cannot open the catalog.
    """
    path = catalog_path(workspace)
    config: dict[str, str | bool | int | float | list[str]] = {
        "memory_limit": memory_limit,
        "temp_directory": f"{path}.tmp",  # which tells the views where the workspace is
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
        "allow_community_extensions": False,
        "allow_persistent_secrets": False,
        "python_enable_replacements": False,
    }
    try:
        with TemporaryDirectory(prefix="fineweb-mask-") as folder:  # DuckDB keeps the file that it has opened
            connection = duckdb.connect(shutil.copy(path, folder), read_only=True, config=config)
    except (OSError, duckdb.Error) as error:
        raise QueryError(f"the catalog {path} cannot be opened: {error}") from error
    with connection:
        folder = str(workspace.root)
        connection.execute(f"SET allowed_directories = [{literal(folder)}, {literal(glob.escape(folder))}]")
        connection.execute("SET enable_external_access = false")
        connection.execute("SET lock_configuration = true")
        yield connection


def answers(connection: duckdb.DuckDBPyConnection, sql: str) -> Iterator[Answer]:
    """Yield the result of each statement in `sql`; every statement must be a query.

    Parameters
    ----------
    connection
        What `open_catalog` opened.
    sql
        The statements.

    Raises
    ------
    QueryError
        If the text is not SQL, or a statement is not a query; no statement runs in that case.
    """
    with _explained():
        statements = connection.extract_statements(sql)
    if not statements:
        raise QueryError("there is no SQL statement to run: give one, such as FROM selected LIMIT 5")
    for statement in statements:
        if statement.type == duckdb.StatementType.MULTI:
            raise QueryError("PIVOT must name its values here: use PIVOT ... ON column IN (value, ...)")
        if statement.type != duckdb.StatementType.SELECT:
            raise QueryError(
                f"{statement.type.name} is refused: the catalog is read-only; "
                "SELECT, FROM, WITH, VALUES, DESCRIBE, SUMMARIZE and SHOW TABLES are allowed"
            )
    for statement in statements:
        with _explained():
            answer = Answer(connection, _without_end(statement.query))
        yield answer


def _without_end(statement: str) -> str:
    """Return a statement up to its semicolon, without a comment after it."""
    text = statement.encode()
    ends = (place for place, kind in duckdb.tokenize(statement) if kind == OPERATOR and text[place : place + 1] == b";")
    return text[: next(ends, len(text))].decode()


@contextmanager
def _explained() -> Iterator[None]:
    """Turn an error of DuckDB into a `QueryError`; for an unknown table, list the existing ones."""
    try:
        yield
    except duckdb.CatalogException as error:
        listed = f"\nthe catalog has: {', '.join(VIEWS)}" if "Table with name" in str(error) else ""
        raise QueryError(f"{error}{listed}") from error
    except (duckdb.Error, pa.ArrowInvalid) as error:
        raise QueryError(str(error)) from error
