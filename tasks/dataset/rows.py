"""Read the rows of a partition: DuckDB joins documents, scores and masks, and returns the selected rows in order.

DuckDB compares no checksums, so those of the files are compared before it reads them. Every read is checked: rows come
in their order, none is repeated, and at the end none is missing. Each folder of the dataset holds the rows of one value
of the column that the layout names.
"""

import re
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple
from urllib.parse import quote

import duckdb
import numpy as np
import pyarrow as pa

from fineweb_mask.models.columns import wider_type
from fineweb_mask.models.errors import WorkspaceError
from fineweb_mask.models.names import alike
from fineweb_mask.models.schemas import MASKS, MEASURED, ROW, SOURCE_ROW
from fineweb_mask.models.settings import FLAT, MaterializeSettings
from fineweb_mask.tasks.catalog.views import identifier, literal, pattern_of
from fineweb_mask.tasks.storage.parquet import check_columns, read_schema
from fineweb_mask.tasks.workspace.references import digest

UNKNOWN = "unknown"
BATCH_ROWS = 8_192
ORDER = ("_folder", "_shard", "_row")
"""The columns that rows are sorted by."""
NESTED = 2.0
"""Maximum mean reads of a shard, one for each folder with documents of it. Above that, all rows are sorted instead."""
MAX_FOLDER_NAME = 200  # file systems allow 255 bytes
DUMP = re.compile(r"CC-MAIN-[0-9-]+")
"""A name of one of Common Crawl's dumps, which keeps its capitals."""
UNSAFE = re.compile(r"%..|[A-Z]|^[._]|\.$")
"""In a quoted name: an escape, or a character that some reader or disk does not take as it is."""
TAKEN = re.compile(r"cc-main-[0-9-]+|(con|prn|aux|nul|com[0-9]|lpt[0-9])(\..*)?")
"""Names that a disk which ignores case takes for a dump's, and names of Windows's devices."""
MAX_FOLDERS = 10_000


class ShardPaths(NamedTuple):
    """Local paths of the files of a shard."""

    documents: str
    scores: str
    masks: str


class Folder(NamedTuple):
    """A folder of the dataset, with the documents that go into it."""

    number: int
    value: str  # of the layout's column
    name: str  # empty for the data folder itself
    shards: list[int]
    rows: int


class SelectedDocuments:
    """The selected documents of some shards, with their scores; creates the table `chosen`, and views of the files.

    Parameters
    ----------
    connection
        An empty database.
    shards
        The files, in the order of the shards' names.
    settings
        The layout.
    columns
        The columns of the documents of all shards of the corpus, as `common_schema` returns them.

    Raises
    ------
    DamagedFileError
        If a file is damaged.
    WorkspaceError
        If the columns or rows of the files do not match, or no column or too many values exist for the layout.
    """

    def __init__(
        self,
        connection: duckdb.DuckDBPyConnection,
        shards: Sequence[ShardPaths],
        settings: MaterializeSettings,
        columns: pa.Schema,
    ) -> None:
        self._connection = connection
        self._shards = list(shards)
        self._settings = settings
        check_columns({file for shard in shards for file in shard})
        self._schemas = [read_schema(shard.documents) for shard in shards]
        self._documents = pa.schema([field for field in columns if field.name not in {ROW.name, SOURCE_ROW.name}])
        self._scores = read_schema(shards[0].scores).remove(0)
        self._masks = pa.schema([field for field in MASKS if field.name not in {"row", "selected"}])
        documents = [field for field in self._documents if field.name not in MEASURED.names]
        self.schema = pa.schema([*documents, *self._scores, *self._masks])
        """The source's columns with their types, then the scores, and the masks' columns."""
        self._create_views()
        self._choose()
        self.folders = self._find_folders()
        self.rows = sum(folder.rows for folder in self.folders)

    def _create_views(self) -> None:
        """Create a view of every kind of file, with the column `shard`: documents, scores, masks."""
        for kind in ShardPaths._fields:
            files = [getattr(shard, kind) for shard in self._shards]
            patterns = ", ".join(literal(pattern_of(file)) for file in files)
            names = ", ".join(f"({place}::UINTEGER, {literal(file)})" for place, file in enumerate(files))
            self._connection.execute(
                f"""
                CREATE VIEW {kind} AS SELECT * EXCLUDE ({kind}_file)
                FROM read_parquet([{patterns}], filename = '{kind}_file', union_by_name = true,
                                  hive_partitioning = false)
                JOIN (VALUES {names}) AS files (shard, {kind}_file) USING ({kind}_file)
                """  # noqa: S608 - a view takes no parameters; the paths are quoted
            )

    def _choose(self) -> None:
        """Create the table `chosen`: shard, row, columns of masks, scores as s0, s1..., folder."""
        layout = self._settings.layout
        if layout != FLAT and layout not in self._documents.names:
            raise WorkspaceError(
                f"materialize.layout: no column {layout!r}, it may be {FLAT!r} or one of "
                f"{', '.join(name for name in self._documents.names if name not in MEASURED.names)}"
            )
        scores = ", ".join(f"scores.{identifier(name)} AS s{index}" for index, name in enumerate(self._scores.names))
        folder, joined = "''", ""
        if layout != FLAT:
            folder = f"coalesce(nullif(documents.folder, ''), '{UNKNOWN}')"
            joined = f"""
                JOIN (SELECT shard, row, {self._text_of(layout)} AS folder FROM documents) AS documents
                  USING (shard, row)
                """  # noqa: S608 - quoted column names
        self._connection.execute(
            f"""
            CREATE TABLE chosen AS
            SELECT shard, row, {", ".join(f"masks.{name}" for name in self._masks.names)}, {scores}, {folder} AS folder
            FROM (FROM masks WHERE selected) AS masks JOIN scores USING (shard, row) {joined}
            """  # noqa: S608
        )

    @cached_property
    def _present(self) -> pa.Schema:
        """The columns that these shards have; another may have more, or of another type."""
        return common_schema(self._schemas).remove(0)

    def _text_of(self, column: str) -> str:
        """Return the SQL for a column's value as text, which is the same in whichever shards it is found."""
        if column not in self._present.names:
            return "NULL::VARCHAR"
        wanted = self._documents.field(column).type
        if wanted == self._present.field(column).type or not pa.types.is_primitive(wanted):
            return f"{identifier(column)}::VARCHAR"
        [kind] = self._connection.from_arrow(pa.table({"column": pa.nulls(0, wanted)})).types
        return f"{identifier(column)}::{kind}::VARCHAR"

    def _find_folders(self) -> list[Folder]:
        found = self._connection.execute(
            """
            SELECT folder, list(shard ORDER BY shard), sum(n)::BIGINT
            FROM (SELECT folder, shard, count(*) AS n FROM chosen GROUP BY ALL) GROUP BY folder ORDER BY folder
            """
        ).fetchall()
        check_folders(len(found), self._settings.layout)
        return [
            Folder(number, value, folder_name(value) if value else "", shards, rows)
            for number, (value, shards, rows) in enumerate(found)
        ]

    @property
    def tokens(self) -> int:
        """The sum of the selected documents' `token_count`."""
        [(tokens,)] = self._connection.execute(
            "SELECT coalesce(sum(documents.token_count), 0) FROM documents JOIN chosen USING (shard, row)"
        ).fetchall()
        return int(tokens)

    def retention(self) -> list[dict[str, Any]]:
        """Return the number of ingested and of selected documents of each dump, then of each language.

        The entry of a dump has `dump`, that of a language `language`; documents without a language are in none.
        """
        rows = self._connection.execute(
            """
            SELECT coalesce(nullif(dump, ''), $unknown) AS dump, language, count(*), count(chosen.row),
                   grouping(language)
            FROM (SELECT shard, row, dump, language FROM documents) AS documents LEFT JOIN chosen USING (shard, row)
            GROUP BY GROUPING SETS ((1), (2)) ORDER BY ALL
            """,
            {"unknown": UNKNOWN},
        ).fetchall()
        return [
            {**({"dump": dump} if is_dump else {"language": language}), "documents": documents, "selected": selected}
            for dump, language, documents, selected, is_dump in rows
            if is_dump or language is not None
        ]

    def read(self) -> Iterator[tuple[Folder, pa.Table]]:
        """Yield the rows folder by folder, with the columns of `schema`.

        Raises
        ------
        WorkspaceError
            If a row is repeated, missing or out of order.
        """
        pairs = sum(len(folder.shards) for folder in self.folders)
        if pairs > NESTED * len(self._shards):
            yield from self._read_sorted()
            return
        for folder in self.folders:
            for shard in folder.shards:
                for table in self._read_shard(shard, folder):
                    yield folder, table

    def _read_shard(self, shard: int, folder: Folder) -> Iterator[pa.Table]:
        """Yield the rows of a shard in the order of its file, with their scores.

        DuckDB preserves the order of rows when it filters a file, but not when it joins. So documents are filtered by
        a bit mask, and the scores, which are sorted by row, are attached by position.
        """
        chosen: pa.Table = self._connection.sql(
            "SELECT * EXCLUDE (shard, folder) FROM chosen WHERE shard = $shard AND folder = $folder ORDER BY row",
            params={"shard": shard, "folder": folder.value},
        ).to_arrow_table()
        wanted = chosen["row"].to_numpy()
        mask = np.zeros(int(wanted[-1]) + 1, dtype=bool)
        mask[wanted] = True
        reader = self._connection.sql(
            f"""
            SELECT {", ".join(identifier(name) for name in self._schemas[shard].names)}
            FROM read_parquet($documents, hive_partitioning = false)
            WHERE row < $rows AND get_bit($mask::BLOB::BIT, row::INTEGER) = 1
            """,  # noqa: S608 - quoted column names
            params={
                "documents": pattern_of(self._shards[shard].documents),
                "rows": len(mask),
                "mask": np.packbits(mask).tobytes(),
            },
        ).to_arrow_reader(BATCH_ROWS)
        start = 0
        for batch in reader:
            table = pa.table(batch)
            part = chosen.slice(start, table.num_rows)
            if not np.array_equal(table["row"].to_numpy(), part["row"].to_numpy()):
                raise WorkspaceError(f"{self._shards[shard].documents}: rows came out of order: please report this bug")
            start += table.num_rows
            if table.num_rows:
                yield self._joined(table, part)
        if start != len(wanted):
            raise WorkspaceError(
                f"{self._shards[shard].documents}: {len(wanted):,} documents were selected, {start:,} found: run again"
            )

    def _joined(self, documents: pa.Table, chosen: pa.Table) -> pa.Table:
        """Return documents with their scores in the columns of `schema`; columns that the shard lacks are null."""
        found = {name: documents[name] for name in documents.column_names}
        found |= {name: chosen[f"s{index}"] for index, name in enumerate(self._scores.names)}
        found |= {name: chosen[name] for name in self._masks.names}
        columns = [
            found[field.name] if field.name in found else pa.nulls(documents.num_rows, field.type)
            for field in self.schema
        ]
        table = pa.table(columns, names=self.schema.names)
        return table.cast(self.schema, safe=False)  # to a wider type; large whole numbers become the nearest fraction

    def _read_sorted(self) -> Iterator[tuple[Folder, pa.Table]]:
        """Yield the rows of all shards, sorted by folder; DuckDB spills what does not fit into memory."""
        names = self._present.names
        columns = [f"d{index}" for index in range(len(names))]
        documents = (f"documents.{identifier(name)} AS {column}" for name, column in zip(names, columns, strict=True))
        query = f"""
            SELECT {", ".join(documents)}, chosen.* EXCLUDE (row, shard, folder),
                   folders.number AS _folder, chosen.shard AS _shard, chosen.row AS _row
            FROM documents
            JOIN chosen ON documents.shard = chosen.shard AND documents.row = chosen.row
            JOIN (SELECT unnest($values) AS folder, unnest($numbers)::UINTEGER AS number) AS folders
              ON chosen.folder = folders.folder
            ORDER BY {", ".join(ORDER)}
            """  # noqa: S608 - quoted column names
        parameters = {
            "values": [folder.value for folder in self.folders],
            "numbers": [folder.number for folder in self.folders],
        }
        found = [0] * len(self.folders)
        last: list[tuple[int, ...]] = []
        for batch in self._connection.sql(query, params=parameters).to_arrow_reader(BATCH_ROWS):
            places = [*last, *zip(*(batch[name].to_pylist() for name in ORDER), strict=True)]
            if any(one >= other for one, other in pairwise(places)):
                raise WorkspaceError("rows of the dataset came out of order or twice: please report this bug")
            last, numbers = places[-1:], batch["_folder"].to_numpy()
            table = pa.table(batch)
            rows = self._joined(table.select(columns).rename_columns(names), table)
            for number in np.unique(numbers):
                start, stop = np.searchsorted(numbers, [number, number + 1]).tolist()
                found[number] += stop - start
                yield self.folders[number], rows.slice(start, stop - start)
        for folder in self.folders:
            if found[folder.number] != folder.rows:
                raise WorkspaceError(
                    f"data/{folder.name}: {folder.rows:,} documents were selected, {found[folder.number]:,} found: "
                    "run again"
                )


def common_schema(schemas: list[pa.Schema]) -> pa.Schema:
    """Return one schema for all shards; a column whose types have no wider one, such as numbers and text, is text."""
    fields: dict[str, pa.Field] = {}
    spelled: dict[str, str] = {}
    for field in (field for schema in dict.fromkeys(schemas) for field in schema):
        if (other := spelled.setdefault(alike(field.name), field.name)) != field.name:
            raise WorkspaceError(
                f"column {field.name!r} is {other!r} in other files, and came too late in its own to be seen before: "
                "name one of them in source.extra_columns"
            )
        known = fields.setdefault(field.name, field)
        if known.type != field.type:
            fields[field.name] = pa.field(field.name, wider_type([known.type, field.type]) or pa.string())
    return pa.schema(fields.values())


def check_folders(folders: int, layout: str) -> None:
    """Check that a layout does not make too many folders.

    Raises
    ------
    WorkspaceError
        If it makes more than 10,000.
    """
    if folders > MAX_FOLDERS:
        raise WorkspaceError(
            f"materialize.layout: {layout!r} has {folders:,} values, a folder each: "
            f"choose a column with at most {MAX_FOLDERS:,}, or {FLAT!r}"
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
