"""Read the rows of a partition: DuckDB joins documents, scores and masks, and returns the selected rows in order.

DuckDB compares no checksums, so those of the files are compared before it reads them. Every read is checked: rows come
in the requested order, none is repeated, and at the end none is missing.

A random order is that of a 64-bit hash of the seed, the shard's place in the corpus and the row. A large corpus is
shuffled in streams: each stream has the rows of one range of hashes, so that the streams, one after the other, are in
the order that sorting all rows at once would give.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple
from urllib.parse import quote

import duckdb
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fineweb_mask.models.columns import wider_type
from fineweb_mask.models.errors import WorkspaceError
from fineweb_mask.models.schemas import MEASURED, ROW, SOURCE_ROW, TIMES, masks_schema
from fineweb_mask.models.settings import FLAT, MaterializeSettings
from fineweb_mask.tasks.catalog.views import identifier, pattern_of
from fineweb_mask.tasks.storage.parquet import check_columns, read_schema
from fineweb_mask.tasks.workspace.references import digest

UNKNOWN = "unknown"
MAX_FOLDER_NAME = 200  # file systems allow 255 bytes
DUMP = re.compile(r"CC-MAIN-[0-9-]+")
"""A name of one of Common Crawl's dumps, which keeps its capitals."""
UNSAFE = re.compile(r"%..|[A-Z]|^[._]|\.$")
"""In a quoted name: an escape, or a character that some reader or disk does not take as it is."""
TAKEN = re.compile(r"cc-main-[0-9-]+|(con|prn|aux|nul|com[0-9]|lpt[0-9])(\..*)?")
"""Names that a disk which ignores case takes for a dump's, and names of Windows's devices."""
MAX_FOLDERS = 10_000
BATCH_ROWS = 8_192
ORDER = ("_random", "_shard", "_row")
"""The columns that rows are sorted by within a folder; `_random` is 0 unless they are shuffled."""
NESTED = 2.0
"""Maximum mean reads of a shard, one for each folder with documents of it. Above that, all rows are sorted instead."""


class ShardPaths(NamedTuple):
    """Local paths of the files of a shard."""

    documents: str
    scores: str
    masks: str
    texts: str  # documents with their texts; the same file, or one of the selected rows


class Folder(NamedTuple):
    """A folder of the dataset, with the documents that go into it."""

    number: int
    value: str  # of the layout's column
    name: str  # empty for the data folder itself
    shards: list[int]
    rows: int


class SelectedDocuments:
    """The selected documents of some shards, with their scores; creates the tables `shards` and `chosen`.

    Parameters
    ----------
    connection
        An empty database.
    shards
        The files, in the order of the shards' names.
    settings
        The layout and the order.
    columns
        The columns of the documents of all shards of the corpus, as `common_schema` returns them.
    first
        The place of the first of these shards in the corpus.

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
        first: int = 0,
    ) -> None:
        self._connection = connection
        self._shards = list(shards)
        self._settings = settings
        self._first = first
        check_columns({file for shard in shards for file in (shard.documents, shard.scores, shard.masks)})
        self._schemas = [read_schema(shard.texts) for shard in shards]
        self._documents = pa.schema([field for field in columns if field.name not in {ROW.name, SOURCE_ROW.name}])
        self._scores = read_schema(shards[0].scores).remove(0)
        masks = masks_schema(with_repeats=TIMES.name in read_schema(shards[0].masks).names)
        self._masks = pa.schema([field for field in masks if field.name not in {"row", "selected"}])
        self.schema = self._dataset_schema()
        self._choose()
        self.folders = self._find_folders()
        self.rows = sum(folder.rows for folder in self.folders)

    def _dataset_schema(self) -> pa.Schema:
        """Return the source's columns with their types, then the scores, and the masks' columns."""
        documents = [field for field in self._documents if field.name not in MEASURED.names]
        return pa.schema([*documents, *self._scores, *self._masks])

    def _choose(self) -> None:
        """Create the tables `shards` (files) and `chosen` (shard, row, columns of masks, scores s0, s1..., folder)."""
        files = {name: [getattr(shard, name) for shard in self._shards] for name in ShardPaths._fields}
        self._connection.execute(
            """
            CREATE TABLE shards AS
            SELECT unnest($index)::UINTEGER AS shard, unnest($documents) AS documents_file,
                   unnest($scores) AS scores_file, unnest($masks) AS masks_file, unnest($texts) AS texts_file
            """,
            {"index": list(range(len(self._shards))), **files},
        )
        layout = self._settings.layout
        if layout != FLAT and layout not in self._documents.names:
            raise WorkspaceError(
                f"materialize.layout: no column {layout!r}, it may be {FLAT!r} or one of "
                f"{', '.join(name for name in self._documents.names if name not in MEASURED.names)}"
            )
        scores = ", ".join(f"scores.{identifier(name)} AS s{index}" for index, name in enumerate(self._scores.names))
        chosen = f"""
            SELECT masks.shard, masks.row, {", ".join(f"masks.{name}" for name in self._masks.names)}, {scores}
            FROM (SELECT * FROM read_parquet($masks, filename = 'masks_file', hive_partitioning = false)
                  JOIN shards USING (masks_file)
                  WHERE selected) AS masks
            JOIN (SELECT * FROM read_parquet($scores, filename = 'scores_file', hive_partitioning = false)
                  JOIN (SELECT shard, scores_file FROM shards) USING (scores_file)) AS scores
              ON masks.shard = scores.shard AND masks.row = scores.row
            """  # noqa: S608 - quoted column names
        if layout == FLAT:
            chosen, used = f"SELECT *, '' AS folder FROM ({chosen})", ["masks", "scores"]  # noqa: S608
        else:
            used = ["documents", "masks", "scores"]
            chosen = f"""
                SELECT chosen.*, coalesce(nullif(documents.folder, ''), '{UNKNOWN}') AS folder
                FROM ({chosen}) AS chosen
                JOIN (SELECT shard, row, {self._text_of(layout)} AS folder
                      FROM read_parquet($documents, filename = 'documents_file', union_by_name = true,
                                    hive_partitioning = false)
                      JOIN (SELECT shard, documents_file FROM shards) USING (documents_file)) AS documents
                  USING (shard, row)
                """  # noqa: S608 - quoted column names
        self._connection.execute(f"CREATE TABLE chosen AS {chosen}", {name: _patterns(files[name]) for name in used})

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
            """
            SELECT coalesce(sum(token_count), 0)
            FROM (SELECT shard, row, token_count
                  FROM read_parquet($documents, filename = 'documents_file', union_by_name = true,
                                    hive_partitioning = false)
                  JOIN shards USING (documents_file)) AS documents JOIN chosen USING (shard, row)
            """,
            {"documents": _patterns(shard.documents for shard in self._shards)},
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
            FROM (SELECT row, dump, language, shard
                  FROM read_parquet($documents, filename = 'documents_file', union_by_name = true,
                                    hive_partitioning = false)
                  JOIN shards USING (documents_file)) AS documents
            LEFT JOIN chosen USING (shard, row)
            GROUP BY GROUPING SETS ((1), (2)) ORDER BY ALL
            """,
            {"documents": _patterns(shard.documents for shard in self._shards), "unknown": UNKNOWN},
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
        if self._settings.shuffle or pairs > NESTED * len(self._shards):
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
            FROM read_parquet($texts, hive_partitioning = false)
            WHERE row < $rows AND get_bit($mask::BLOB::BIT, row::INTEGER) = 1
            """,  # noqa: S608 - quoted column names
            params={
                "texts": pattern_of(self._shards[shard].texts),
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
        query = self._query(
            "folders.number AS _folder",
            """
            JOIN (SELECT unnest($values) AS folder, unnest($numbers)::UINTEGER AS number) AS folders
              ON chosen.folder = folders.folder
            """,
        )
        parameters = self._parameters | {
            "values": [folder.value for folder in self.folders],
            "numbers": [folder.number for folder in self.folders],
        }
        batches = _in_order(self._connection, query, parameters, ("_folder", *ORDER))
        for folder, table in _by_folder(batches, self.folders):
            yield folder, self._documents_of(table)

    def read_random(self) -> Iterator[tuple[NDArray[np.uint64], pa.Table]]:
        """Yield the rows in random order: their hashes, (n,) ascending, and the rows as `stream_schema` has them.

        Raises
        ------
        WorkspaceError
            If a row is repeated, missing or out of order.
        """
        names = stream_schema(self.schema).names
        rows = 0
        for table in _in_order(self._connection, self._query("chosen.folder AS _folder"), self._parameters, ORDER):
            rows += table.num_rows
            columns = [*self._documents_of(table).columns, *(table[name] for name in ("_folder", *ORDER))]
            yield table["_random"].to_numpy(), pa.table(columns, names=names)
        if rows != self.rows:
            raise WorkspaceError(f"{self.rows:,} documents were selected, {rows:,} found: run again")

    def _query(self, folder: str, joined: str = "") -> str:
        """Return the query for the documents and scores of all rows, with the columns that they are sorted by."""
        shard = f"(chosen.shard + {self._first})"
        random = f"md5_number_lower(concat_ws(' ', $seed, {shard}, chosen.row))" if self._settings.shuffle else "0"
        columns = [f"documents.{identifier(name)} AS d{index}" for index, name in enumerate(self._present.names)]
        return f"""
            SELECT {", ".join(columns)}, chosen.* EXCLUDE (row, shard, folder),
                   {folder}, {random}::UBIGINT AS _random, {shard}::UINTEGER AS _shard, chosen.row AS _row
            FROM (SELECT * FROM read_parquet($texts, filename = 'texts_file', union_by_name = true,
                                             hive_partitioning = false)
                  JOIN (SELECT shard, texts_file FROM shards) USING (texts_file)) AS documents
            JOIN chosen ON documents.shard = chosen.shard AND documents.row = chosen.row {joined}
            """  # noqa: S608 - quoted column names

    @property
    def _parameters(self) -> dict[str, Any]:
        seed = {"seed": self._settings.seed} if self._settings.shuffle else {}
        return {"texts": _patterns(shard.texts for shard in self._shards), **seed}

    def _documents_of(self, table: pa.Table) -> pa.Table:
        """Return the columns of `schema` of what `_query` found."""
        names = self._present.names
        documents = table.select([f"d{index}" for index in range(len(names))]).rename_columns(names)
        return self._joined(documents, table)


class StreamDocuments:
    """The documents of one stream of a shuffle, from the files that every partition wrote for it.

    Parameters
    ----------
    connection
        An empty database.
    files
        Parquet files with the columns of `stream_schema(schema)`.
    schema
        The columns of the dataset.
    settings
        The layout.
    """

    def __init__(
        self,
        connection: duckdb.DuckDBPyConnection,
        files: Sequence[str],
        schema: pa.Schema,
        settings: MaterializeSettings,
    ) -> None:
        self.schema = schema
        self._connection = connection
        check_columns(files)
        self._files = _patterns(files)
        found = connection.execute(
            """
            SELECT _folder, count(*) FROM read_parquet($files, hive_partitioning = false)
            GROUP BY _folder ORDER BY _folder
            """,
            {"files": self._files},
        ).fetchall()
        check_folders(len(found), settings.layout)
        self.folders = [
            Folder(number, value, folder_name(value) if value else "", [], rows)
            for number, (value, rows) in enumerate(found)
        ]
        self.rows = sum(folder.rows for folder in self.folders)

    def read(self) -> Iterator[tuple[Folder, pa.Table]]:
        """Yield the rows folder by folder in random order, with the columns of `schema`.

        Raises
        ------
        WorkspaceError
            If a row is repeated, missing or out of order.
        """
        query = """
            SELECT stream.* EXCLUDE (_folder), folders.number AS _folder
            FROM read_parquet($files, hive_partitioning = false) AS stream
            JOIN (SELECT unnest($values) AS folder, unnest($numbers)::UINTEGER AS number) AS folders
              ON stream._folder = folders.folder
            """
        parameters = {
            "files": self._files,
            "values": [folder.value for folder in self.folders],
            "numbers": [folder.number for folder in self.folders],
        }
        batches = _in_order(self._connection, query, parameters, ("_folder", *ORDER))
        for folder, table in _by_folder(batches, self.folders):
            columns = [table[f"c{index}"] for index in range(len(self.schema))]
            yield folder, pa.table(columns, names=self.schema.names).cast(self.schema)


def _patterns(paths: Iterable[str]) -> list[str]:
    return [pattern_of(path) for path in paths]


def stream_schema(schema: pa.Schema) -> pa.Schema:
    """Return the columns of a stream's files: the dataset's as c0, c1, ..., the value for the folder, and the order."""
    columns = [pa.field(f"c{index}", kind) for index, kind in enumerate(schema.types)]
    keys = [("_folder", pa.string()), ("_random", pa.uint64()), ("_shard", pa.uint32()), ("_row", pa.uint32())]
    return pa.schema([*columns, *keys])


def _in_order(
    connection: duckdb.DuckDBPyConnection, query: str, parameters: dict[str, Any], order: Sequence[str]
) -> Iterator[pa.Table]:
    """Yield what a query finds, sorted by the columns `order`, which no two rows may share."""
    last: list[Any] = []
    ordered = connection.sql(f"SELECT * FROM ({query}) ORDER BY {', '.join(order)}", params=parameters)  # noqa: S608
    for batch in ordered.to_arrow_reader(BATCH_ROWS):
        keys = [batch.column(name).to_numpy(zero_copy_only=False) for name in order]
        if not _increases([np.concatenate(pair) for pair in zip(last, keys, strict=True)] if last else keys):
            raise WorkspaceError("rows of the dataset came out of order or twice: please report this bug")
        last = [key[-1:] for key in keys] if len(batch) else last
        if len(batch):
            yield pa.table(batch)


def _by_folder(tables: Iterator[pa.Table], folders: Sequence[Folder]) -> Iterator[tuple[Folder, pa.Table]]:
    """Yield tables that are sorted by `_folder`, a folder's number, folder by folder; check that none lacks rows."""
    rows = [0] * len(folders)
    for table in tables:
        numbers = table["_folder"].to_numpy()
        starts = [0, *(np.flatnonzero(np.diff(numbers)) + 1), table.num_rows]
        for start, stop in pairwise(starts):
            folder = folders[numbers[start]]
            rows[folder.number] += stop - start
            yield folder, table.slice(start, stop - start)
    for folder in folders:
        if rows[folder.number] != folder.rows:
            raise WorkspaceError(
                f"data/{folder.name}: {folder.rows:,} documents were selected, {rows[folder.number]:,} found: run again"
            )


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


def _increases(keys: Sequence[Any]) -> bool:
    """Return whether rows increase strictly; each key is an (n,) array, the first the most significant."""
    larger = np.zeros(max(0, len(keys[0]) - 1), dtype=bool)
    equal = np.ones_like(larger)
    for key in keys:
        larger |= equal & (key[1:] > key[:-1])
        equal &= key[1:] == key[:-1]
    return bool(larger.all())


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


def common_schema(schemas: list[pa.Schema]) -> pa.Schema:
    """Return one schema for all shards; a column whose types have no wider one, such as numbers and text, is text."""
    fields: dict[str, pa.Field] = {}
    for field in (field for schema in dict.fromkeys(schemas) for field in schema):
        known = fields.setdefault(field.name, field)
        if known.type != field.type:
            fields[field.name] = pa.field(field.name, wider_type([known.type, field.type]) or pa.string())
    return pa.schema(fields.values())
