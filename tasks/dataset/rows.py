"""Read the rows of a partition: the selected documents of each shard in their order, with their scores.

A document's `row` is its place in the shard's file, by which its score and its mask are found. Every read is checked:
pages have the checksums that were written, and every selected document has a score. Each folder of the dataset holds
the rows of one value of the column that the layout names.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import quote

import duckdb
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fineweb_mask.models.errors import WorkspaceError
from fineweb_mask.models.runtime.progress import track_by_size
from fineweb_mask.models.schemas import MASKS, MEASURED, ROW, SOURCE_ROW
from fineweb_mask.models.settings import FLAT
from fineweb_mask.tasks.catalog.quoting import identifier
from fineweb_mask.tasks.storage.parquet import VerifiedFile, read_schema, read_table
from fineweb_mask.tasks.workspace.references import ShardFiles, digest
from fineweb_mask.tasks.workspace.workspace import Workspace

UNKNOWN = "unknown"
BATCH_ROWS = 8_192
GROUPS = ["dump", "language"]
COUNTED = [*GROUPS, "documents", "selected"]
MAX_FOLDER_NAME = 200  # file systems allow 255 bytes
DUMP = re.compile(r"CC-MAIN-[0-9-]+")
"""A name of one of Common Crawl's dumps, which keeps its capitals."""
UNSAFE = re.compile(r"%..|[A-Z]|^[._]|\.$")
"""In a quoted name: an escape, or a character that some reader or disk does not take as it is."""
TAKEN = re.compile(r"cc-main-[0-9-]+|(con|prn|aux|nul|com[0-9]|lpt[0-9])(\..*)?")
"""Names that a disk which ignores case takes for a dump's, and names of Windows's devices."""
MAX_FOLDERS = 10_000


class SelectedDocuments:
    """The selected documents of some shards, with their scores.

    Parameters
    ----------
    connection
        A DuckDB database, in which tables of one shard are registered.
    workspace, shards
        Where the files are, in the order of the shards' names.
    layout
        The column that gets one folder per value, or `flat`.

    Raises
    ------
    DamagedFileError
        If a file is damaged.
    WorkspaceError
        If no column exists for the layout.
    """

    def __init__(
        self, connection: duckdb.DuckDBPyConnection, workspace: Workspace, shards: Sequence[ShardFiles], layout: str
    ) -> None:
        self._connection = connection
        self._workspace = workspace
        self._shards = shards
        self._layout = layout
        columns = read_schema(workspace.resolve(shards[0].documents))
        hidden = {ROW.name, SOURCE_ROW.name, *MEASURED.names}
        self._documents = pa.schema([field for field in columns if field.name not in hidden])
        if layout not in {FLAT, *self._documents.names, *MEASURED.names}:
            raise WorkspaceError(
                f"materialize.layout: no column {layout!r}, it may be {FLAT!r} or one of "
                f"{', '.join(self._documents.names)}"
            )
        self._scores = read_schema(workspace.resolve(shards[0].scores)).remove(0)
        masks = [MASKS.field(name) for name in ("inclusion", "block")]
        self.schema = pa.schema([*self._documents, *self._scores, *masks])
        """The source's columns with their types, as all shards have them, then the scores, and the masks' columns."""
        self.rows = 0
        """Documents that are selected, of the shards that were read."""
        self._counted: list[pa.Table] = []

    def read(self) -> Iterator[tuple[pa.Table, pa.ChunkedArray]]:
        """Yield the rows shard by shard, and the value of the layout's column for each.

        The rows have the columns of `schema`. The value is a text; it is empty if all documents go into one folder.

        Raises
        ------
        WorkspaceError
            If a selected document has no score.
        """
        total = sum(shard.rows for shard in self._shards)
        read = track_by_size("documents read", self._batches(), total, lambda pair: pair[0].num_rows, part=(0, 0.9))
        for batch, rows, chosen in read:
            is_selected = np.zeros(batch.num_rows, dtype=np.int64)
            is_selected[rows] = 1
            one_each = np.ones(batch.num_rows, dtype=np.int64)
            self._counted.append(_summed(pa.table([*map(batch.column, GROUPS), one_each, is_selected], names=COUNTED)))
            if len(rows):
                taken = pa.table(batch.take(pa.array(rows)))
                columns = [*taken.select(self._documents.names).columns, *chosen.columns[1:]]
                yield pa.table(columns, schema=self.schema), self._folders_of(taken)

    def _batches(self) -> Iterator[tuple[pa.RecordBatch, NDArray[np.int64], pa.Table]]:
        """Yield all documents in batches, with the places of the selected ones in each, and their rows of `_chosen`."""
        names = dict.fromkeys([*self._documents.names, *([] if self._layout == FLAT else [self._layout])])
        for shard in self._shards:
            chosen, first = self._chosen(shard), 0
            wanted = chosen["row"].to_numpy().astype(np.int64)
            with VerifiedFile(self._workspace.resolve(shard.documents)) as file:
                for batch in file.iter_batches(BATCH_ROWS, columns=list(names)):
                    start, end = np.searchsorted(wanted, [first, first + batch.num_rows])
                    yield batch, wanted[start:end] - first, chosen.slice(start, end - start)
                    first += batch.num_rows

    def _chosen(self, shard: ShardFiles) -> pa.Table:
        """Return the selected rows of a shard in their order: `row`, the scores, and the masks' columns."""
        for name, file in (("masks", shard.masks), ("scores", shard.scores)):
            self._connection.register(name, read_table(self._workspace.resolve(file)))
        scores = ", ".join(f"scores.{identifier(name)}" for name in self._scores.names)
        chosen: pa.Table = self._connection.sql(
            f"""
            SELECT masks.row, {scores}, masks.inclusion, masks.block FROM masks LEFT JOIN scores USING (row)
            WHERE masks.selected ORDER BY masks.row
            """  # noqa: S608 - quoted column names
        ).to_arrow_table()
        if missing := chosen[self._scores.names[-1]].null_count:
            raise WorkspaceError(
                f"{self._workspace.resolve(shard.scores)}: {missing:,} selected documents have no score: "
                "delete `scores` in the workspace and run again"
            )
        self.rows += chosen.num_rows
        return chosen

    def _folders_of(self, documents: pa.Table) -> pa.ChunkedArray:
        """Return the values of the layout's column as texts."""
        if self._layout == FLAT:
            return pa.chunked_array([pa.repeat("", documents.num_rows)])
        text = f"coalesce(nullif({identifier(self._layout)}::VARCHAR, ''), '{UNKNOWN}')"
        found: pa.Table = self._connection.from_arrow(documents.select([self._layout])).project(text).to_arrow_table()
        return found.column(0)

    def retention(self) -> list[dict[str, Any]]:
        """Return the number of all and of the selected documents of each `dump` and `language`, of what was read."""
        found: list[dict[str, Any]] = _summed(pa.concat_tables(self._counted)).to_pylist() if self._counted else []
        return found


def _summed(counted: pa.Table) -> pa.Table:
    """Return a table of counts with one row for each group, in the order in which they come."""
    sums = counted.group_by(GROUPS, use_threads=False).aggregate([(name, "sum") for name in COUNTED[2:]])
    return sums.rename_columns(COUNTED)


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
