"""Read the rows of the dataset: DuckDB joins documents, scores and masks, and returns the selected rows in order.

Every read is checked: rows come in the requested order, none is repeated, and at the end none is missing.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple
from urllib.parse import quote

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fineweb_mask.models.errors import WorkspaceError
from fineweb_mask.models.schemas import MASKS, MEASURED
from fineweb_mask.models.settings import FLAT, MaterializeSettings
from fineweb_mask.tasks.catalog.views import identifier
from fineweb_mask.tasks.workspace.references import digest

UNKNOWN = "unknown"
MAX_FOLDER_NAME = 200  # file systems allow 255 bytes
MAX_FOLDERS = 10_000
BATCH_ROWS = 8_192
NESTED = 2.0
"""Maximum mean reads of a shard, one for each folder with documents of it. Above that, all rows are sorted instead."""


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
    """The selected documents of a corpus, with their scores; creates the tables `shards` and `chosen` in the database.

    Raises
    ------
    WorkspaceError
        If the columns or rows of the files do not match, or no column or too many values exist for the layout.
    """

    def __init__(
        self, connection: duckdb.DuckDBPyConnection, shards: Sequence[ShardPaths], settings: MaterializeSettings
    ) -> None:
        self._connection = connection
        self._shards = list(shards)
        self._settings = settings
        self._schemas = [pq.read_schema(shard.documents) for shard in shards]
        self._documents = common_schema(self._schemas).remove(0)  # row
        self._scores = pq.read_schema(shards[0].scores).remove(0)
        self.schema = self._dataset_schema()
        self._choose()
        self.folders = self._find_folders()
        self.rows = sum(folder.rows for folder in self.folders)

    def _dataset_schema(self) -> pa.Schema:
        """Return the source's columns with their types, then the scores, the inclusion and the block."""
        documents = [field for field in self._documents if field.name not in MEASURED.names]
        return pa.schema([*documents, *self._scores, MASKS.field("inclusion"), MASKS.field("block")])

    def _choose(self) -> None:
        """Create the tables `shards` (files) and `chosen` (shard, row, inclusion, block, scores s0, s1..., folder)."""
        files = {name: [getattr(shard, name) for shard in self._shards] for name in ShardPaths._fields}
        self._connection.execute(
            """
            CREATE TABLE shards AS
            SELECT unnest($index)::UINTEGER AS shard, unnest($documents) AS documents_file,
                   unnest($scores) AS scores_file, unnest($masks) AS masks_file
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
            SELECT masks.shard, masks.row, masks.inclusion, masks.block, {scores}
            FROM (SELECT * FROM read_parquet($masks, filename = 'masks_file') JOIN shards USING (masks_file)
                  WHERE selected) AS masks
            JOIN (SELECT * FROM read_parquet($scores, filename = 'scores_file')
                  JOIN (SELECT shard, scores_file FROM shards) USING (scores_file)) AS scores
              ON masks.shard = scores.shard AND masks.row = scores.row
            """  # noqa: S608 - quoted column names
        if layout == FLAT:
            chosen, used = f"SELECT *, '' AS folder FROM ({chosen})", ["masks", "scores"]  # noqa: S608
        else:
            used = ["documents", "masks", "scores"]
            chosen = f"""
                SELECT chosen.*, coalesce(nullif(documents.{identifier(layout)}::VARCHAR, ''), '{UNKNOWN}') AS folder
                FROM ({chosen}) AS chosen
                JOIN (SELECT shard, row, {identifier(layout)}
                      FROM read_parquet($documents, filename = 'documents_file', union_by_name = true)
                      JOIN (SELECT shard, documents_file FROM shards) USING (documents_file)) AS documents
                  USING (shard, row)
                """  # noqa: S608 - quoted column names
        self._connection.execute(f"CREATE TABLE chosen AS {chosen}", {name: files[name] for name in used})

    def _find_folders(self) -> list[Folder]:
        found = self._connection.execute(
            """
            SELECT folder, list(shard ORDER BY shard), sum(n)::BIGINT
            FROM (SELECT folder, shard, count(*) AS n FROM chosen GROUP BY ALL) GROUP BY folder ORDER BY folder
            """
        ).fetchall()
        if len(found) > MAX_FOLDERS:
            raise WorkspaceError(
                f"materialize.layout: {self._settings.layout!r} has {len(found):,} values, a folder each: "
                f"choose a column with at most {MAX_FOLDERS:,}, or {FLAT!r}"
            )
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
                  FROM read_parquet($documents, filename = 'documents_file', union_by_name = true)
                  JOIN shards USING (documents_file)) AS documents JOIN chosen USING (shard, row)
            """,
            {"documents": [shard.documents for shard in self._shards]},
        ).fetchall()
        return int(tokens)

    def retention(self) -> list[dict[str, Any]]:
        """Return the number of ingested and of selected documents of each dump."""
        rows = self._connection.execute(
            """
            SELECT coalesce(nullif(dump, ''), $unknown) AS dump, count(*) AS documents, count(chosen.row) AS selected
            FROM (SELECT row, dump, shard
                  FROM read_parquet($documents, filename = 'documents_file', union_by_name = true)
                  JOIN shards USING (documents_file)) AS documents
            LEFT JOIN chosen USING (shard, row)
            GROUP BY ALL ORDER BY ALL
            """,
            {"documents": [shard.documents for shard in self._shards], "unknown": UNKNOWN},
        ).fetchall()
        return [{"dump": dump, "documents": documents, "selected": selected} for dump, documents, selected in rows]

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
            FROM read_parquet($documents) WHERE row < $rows AND get_bit($mask::BLOB::BIT, row::INTEGER) = 1
            """,  # noqa: S608 - quoted column names
            params={
                "documents": self._shards[shard].documents,
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
        found |= {name: chosen[name] for name in ("inclusion", "block")}
        columns = [
            found[field.name] if field.name in found else pa.nulls(documents.num_rows, field.type)
            for field in self.schema
        ]
        return pa.table(columns, names=self.schema.names).cast(self.schema)

    def _read_sorted(self) -> Iterator[tuple[Folder, pa.Table]]:
        """Yield the rows of all shards, sorted by folder; DuckDB spills what does not fit into memory."""
        shuffled = "md5_number_lower(concat_ws(' ', $seed, chosen.shard, chosen.row))"
        order = ["_folder", "_random", "_shard", "_row"]
        names = self._documents.names
        columns = [f"documents.{identifier(name)} AS d{index}" for index, name in enumerate(names)]
        query = f"""
            SELECT {", ".join(columns)}, chosen.* EXCLUDE (row, shard, folder),
                   folders.number AS _folder, {shuffled if self._settings.shuffle else "0"} AS _random,
                   chosen.shard AS _shard, chosen.row AS _row
            FROM (SELECT * FROM read_parquet($documents, filename = 'documents_file', union_by_name = true)
                  JOIN (SELECT shard, documents_file FROM shards) USING (documents_file)) AS documents
            JOIN chosen ON documents.shard = chosen.shard AND documents.row = chosen.row
            JOIN (SELECT unnest($values) AS folder, unnest($numbers)::UINTEGER AS number) AS folders
              ON chosen.folder = folders.folder
            ORDER BY {", ".join(order)}
            """  # noqa: S608 - quoted column names
        parameters: dict[str, Any] = {
            "documents": [shard.documents for shard in self._shards],
            "values": [folder.value for folder in self.folders],
            "numbers": [folder.number for folder in self.folders],
        }
        if self._settings.shuffle:
            parameters["seed"] = self._settings.seed
        rows = [0] * len(self.folders)
        last: list[Any] = []
        for batch in self._connection.sql(query, params=parameters).to_arrow_reader(BATCH_ROWS):
            keys = [batch.column(name).to_numpy(zero_copy_only=False) for name in order]
            if not _increases([np.concatenate(pair) for pair in zip(last, keys, strict=True)] if last else keys):
                raise WorkspaceError("rows of the dataset came out of order or twice: please report this bug")
            last = [key[-1:] for key in keys] if len(batch) else last
            table = pa.table(batch)
            documents = table.select([f"d{index}" for index in range(len(names))]).rename_columns(names)
            documents = self._joined(documents, table)
            starts = [0, *(np.flatnonzero(np.diff(keys[0])) + 1), len(batch)]
            for start, stop in pairwise(starts):
                if stop > start:
                    folder = self.folders[keys[0][start]]
                    rows[folder.number] += stop - start
                    yield folder, documents.slice(start, stop - start)
        for folder in self.folders:
            if rows[folder.number] != folder.rows:
                raise WorkspaceError(
                    f"data/{folder.name}: {folder.rows:,} documents were selected, {rows[folder.number]:,} found: "
                    "run again"
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
    """Return the folder name for a column's value: characters other than letters, digits and `._-~` are %-escaped.

    A name that is too long is cut, and a digest of the value is appended.

    >>> folder_name("a/b")
    'a%2Fb'
    """
    name = quote(value, safe="")
    if len(name) > MAX_FOLDER_NAME:
        name = f"{name[:MAX_FOLDER_NAME]}-{digest(value)}"
    return name if not name.startswith(".") else "%2E" + name[1:]


def common_schema(schemas: list[pa.Schema]) -> pa.Schema:
    """Return one schema for all shards; a column whose types cannot be unified, such as numbers and text, is text."""
    fields: dict[str, pa.Field] = {}
    for field in (field for schema in dict.fromkeys(schemas) for field in schema):
        known = fields.get(field.name, field)
        try:
            [fields[field.name]] = pa.unify_schemas(
                [pa.schema([known]), pa.schema([field])], promote_options="permissive"
            )
        except pa.ArrowTypeError:
            fields[field.name] = pa.field(field.name, pa.string())
    return pa.schema(fields.values())
