"""Read the rows of a partition: the selected documents of each shard in their order, with their scores.

Every read is checked: pages have the checksums that were written, rows come in their order, none is repeated, and at
the end none is missing. Each folder of the dataset holds the rows of one value of the column that the layout names.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fineweb_mask.models.errors import WorkspaceError
from fineweb_mask.models.schemas import MASKS, MEASURED, ROW, SOURCE_ROW
from fineweb_mask.models.settings import FLAT
from fineweb_mask.tasks.catalog.quoting import identifier
from fineweb_mask.tasks.storage.parquet import VerifiedFile, read_schema, read_table
from fineweb_mask.tasks.workspace.references import digest

UNKNOWN = "unknown"
BATCH_ROWS = 8_192
MAX_FOLDER_NAME = 200  # file systems allow 255 bytes
DUMP = re.compile(r"CC-MAIN-[0-9-]+")
"""A name of one of Common Crawl's dumps, which keeps its capitals."""
UNSAFE = re.compile(r"%..|[A-Z]|^[._]|\.$")
"""In a quoted name: an escape, or a character that some reader or disk does not take as it is."""
TAKEN = re.compile(r"cc-main-[0-9-]+|(con|prn|aux|nul|com[0-9]|lpt[0-9])(\..*)?")
"""Names that a disk which ignores case takes for a dump's, and names of Windows's devices."""
MAX_FOLDERS = 10_000


class ShardPaths(NamedTuple):
    """Paths of the files of a shard."""

    documents: str
    scores: str
    masks: str


class SelectedDocuments:
    """The selected documents of some shards, with their scores.

    Parameters
    ----------
    connection
        A DuckDB database, in which tables of one shard are registered.
    shards
        The files, in the order of the shards' names.
    layout
        The column that gets one folder per value, or `flat`.

    Raises
    ------
    DamagedFileError
        If a file is damaged.
    WorkspaceError
        If no column exists for the layout.
    """

    def __init__(self, connection: duckdb.DuckDBPyConnection, shards: Sequence[ShardPaths], layout: str) -> None:
        self._connection = connection
        self._shards = list(shards)
        self._layout = layout
        columns = read_schema(shards[0].documents)  # as of all shards
        columns = pa.schema([field for field in columns if field.name not in {ROW.name, SOURCE_ROW.name}])
        self._documents = pa.schema([field for field in columns if field.name not in MEASURED.names])
        if layout != FLAT and layout not in columns.names:
            raise WorkspaceError(
                f"materialize.layout: no column {layout!r}, it may be {FLAT!r} or one of "
                f"{', '.join(self._documents.names)}"
            )
        self._scores = read_schema(shards[0].scores).remove(0)
        self._masks = pa.schema([field for field in MASKS if field.name not in {"row", "selected"}])
        self.schema = pa.schema([*self._documents, *self._scores, *self._masks])
        """The source's columns with their types, then the scores, and the masks' columns."""
        masks = (read_table(shard.masks, columns=["selected"])["selected"] for shard in shards)
        self.rows = sum(pc.sum(selected).as_py() or 0 for selected in masks)

    def read(self) -> Iterator[tuple[pa.Table, pa.ChunkedArray]]:
        """Yield the rows shard by shard, and the value of the layout's column for each, in batches of `BATCH_ROWS`.

        The rows have the columns of `schema`. The value is a text; it is empty if all documents go into one folder.

        Raises
        ------
        WorkspaceError
            If a row is repeated, missing or out of order.
        """
        for shard in self._shards:
            yield from self._read_shard(shard)

    def _read_shard(self, shard: ShardPaths) -> Iterator[tuple[pa.Table, pa.ChunkedArray]]:
        """Yield the rows of a shard: its documents, to which the scores are attached by position."""
        chosen = self._chosen(shard)
        wanted = chosen["row"].to_numpy()
        if not len(wanted):
            return
        start = 0
        with VerifiedFile(shard.documents) as file:
            names = list(
                dict.fromkeys(["row", *self._documents.names, *([] if self._layout == FLAT else [self._layout])])
            )
            found = file.iter_batches(BATCH_ROWS, columns=names)
            selected = (batch.filter(pa.array(np.isin(batch["row"].to_numpy(), wanted))) for batch in found)
            for batch in in_batches(selected, BATCH_ROWS):
                part = chosen.slice(start, batch.num_rows)
                if not np.array_equal(batch["row"].to_numpy(), part["row"].to_numpy()):
                    raise WorkspaceError(f"{shard.documents}: rows came out of order: please report this bug")
                start += batch.num_rows
                columns = [batch[name] for name in self._documents.names]
                yield pa.table([*columns, *part.columns[1:]], schema=self.schema), self._folders_of(batch)
        if start != len(wanted):
            raise WorkspaceError(
                f"{shard.documents}: {len(wanted):,} documents were selected, {start:,} found: run again"
            )

    def _chosen(self, shard: ShardPaths) -> pa.Table:
        """Return the selected rows of a shard in their order: `row`, the scores, and the masks' columns."""
        columns = [f"scores.{identifier(name)}" for name in self._scores.names]
        columns += [f"masks.{name}" for name in self._masks.names]
        self._connection.register("masks", read_table(shard.masks))
        self._connection.register("scores", read_table(shard.scores))
        chosen: pa.Table = self._connection.sql(
            f"""
            SELECT masks.row, {", ".join(columns)} FROM masks LEFT JOIN scores USING (row)
            WHERE masks.selected ORDER BY masks.row
            """  # noqa: S608 - quoted column names
        ).to_arrow_table()
        if missing := chosen[self._scores.names[-1]].null_count:
            raise WorkspaceError(
                f"{shard.scores}: {missing:,} selected documents have no score: run again with --refresh score"
            )
        return chosen

    def _folders_of(self, documents: pa.Table) -> pa.ChunkedArray:
        """Return the values of the layout's column as texts."""
        if self._layout == FLAT:
            return pa.chunked_array([pa.array([""] * documents.num_rows, pa.string())])
        text = f"coalesce(nullif({identifier(self._layout)}::VARCHAR, ''), '{UNKNOWN}')"
        found: pa.Table = self._connection.from_arrow(documents.select([self._layout])).project(text).to_arrow_table()
        return found.column(0)

    def retention(self) -> list[dict[str, Any]]:
        """Return the number of ingested and of selected documents of each dump, then of each language.

        The entry of a dump has `dump`, that of a language `language`; documents without a language are in none.
        """
        counted: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
        for shard in self._shards:
            self._connection.register("masks", read_table(shard.masks, columns=["row", "selected"]))
            self._connection.register("documents", read_table(shard.documents, columns=["row", "dump", "language"]))
            rows = self._connection.execute(
                """
                SELECT coalesce(nullif(dump, ''), $unknown) AS dump, language, count(*),
                       count(*) FILTER (masks.selected), grouping(language)
                FROM documents LEFT JOIN masks USING (row)
                GROUP BY GROUPING SETS ((1), (2))
                """,
                {"unknown": UNKNOWN},
            ).fetchall()
            for dump, language, documents, selected, is_dump in rows:
                column, value = ("dump", dump) if is_dump else ("language", language)
                if value is not None:
                    counted[column, value].update(documents=documents, selected=selected)
        return [{column: value, **counted[column, value]} for column, value in sorted(counted)]


def in_batches(batches: Iterable[pa.RecordBatch], rows: int) -> Iterator[pa.Table]:
    """Yield the rows of batches in tables of exactly so many `rows`; the last one may have fewer."""
    pending = pa.table([])
    for batch in batches:
        pending = pa.concat_tables([pending, pa.table(batch)]) if pending.num_rows else pa.table(batch)
        while pending.num_rows >= rows:
            yield pending.slice(0, rows)
            pending = pending.slice(rows)
    if pending.num_rows:
        yield pending


def check_folders(folders: int, layout: str) -> None:
    """Check that a layout does not make too many folders.

    Raises
    ------
    WorkspaceError
        If it makes more than 10,000.
    """
    if folders > MAX_FOLDERS:
        raise WorkspaceError(
            f"materialize.layout: {layout!r} has more than {MAX_FOLDERS:,} values, a folder each: "
            f"choose a column with fewer, or {FLAT!r}"
        )


def folder_name(value: str) -> str:
    """Return the folder name for a column's value, which every reader and disk takes as it is.

    Characters other than small letters, digits and `._-~` are %-escaped, so that no two values share a folder where a
    disk ignores case or normalises Unicode; only names of Common Crawl's dumps keep their capitals. Also escaped are
    `.` and `_` at the beginning, where readers take a folder for a hidden one, a dot at the end, and the first letter
    of a device's name, such as `con`. `urllib.parse.unquote` returns the value, unless the name was too long: it is
    then cut, and a digest of the value is appended.

    >>> folder_name("CC-MAIN-2024-10"), folder_name("a/b"), folder_name("Case"), folder_name("__x__")
    ('CC-MAIN-2024-10', 'a%2Fb', '%43ase', '%5F_x__')
    """
    name = quote(value, safe="")
    if DUMP.fullmatch(name) is None:
        name = UNSAFE.sub(lambda found: found[0] if len(found[0]) > 1 else _escaped(found[0]), name)
        if TAKEN.fullmatch(name):
            name = _escaped(name[0]) + name[1:]
    return name if len(name) <= MAX_FOLDER_NAME else f"{name[:MAX_FOLDER_NAME]}-{digest(value)}"


def _escaped(character: str) -> str:
    return f"%{ord(character):02X}"
