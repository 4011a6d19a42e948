"""Read the rows of a partition: DuckDB joins documents, scores and masks, and returns the selected rows in order.

DuckDB compares no checksums, so those of the files are compared before it reads them. Every read is checked: rows come
in their order, none is repeated, and at the end none is missing.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import duckdb
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fineweb_mask.models.columns import wider_type
from fineweb_mask.models.errors import WorkspaceError
from fineweb_mask.models.schemas import MEASURED, ROW, SOURCE_ROW, TIMES, masks_schema
from fineweb_mask.models.settings import FLAT, MaterializeSettings
from fineweb_mask.tasks.catalog.views import identifier, pattern_of
from fineweb_mask.tasks.dataset.folders import Folder, check_folders, folder_name
from fineweb_mask.tasks.storage.parquet import check_columns, read_schema

UNKNOWN = "unknown"
BATCH_ROWS = 8_192
ORDER = ("_folder", "_shard", "_row")
"""The columns that rows are sorted by."""
NESTED = 2.0
"""Maximum mean reads of a shard, one for each folder with documents of it. Above that, all rows are sorted instead."""


class ShardPaths(NamedTuple):
    """Local paths of the files of a shard."""

    documents: str
    scores: str
    masks: str
    texts: str  # documents with their texts; the same file, or one of the selected rows


class SelectedDocuments:
    """The selected documents of some shards, with their scores; creates the tables `shards` and `chosen`.

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
        names = self._present.names
        columns = [f"d{index}" for index in range(len(names))]
        documents = (f"documents.{identifier(name)} AS {column}" for name, column in zip(names, columns, strict=True))
        query = f"""
            SELECT {", ".join(documents)}, chosen.* EXCLUDE (row, shard, folder),
                   folders.number AS _folder, chosen.shard AS _shard, chosen.row AS _row
            FROM (SELECT * FROM read_parquet($texts, filename = 'texts_file', union_by_name = true,
                                             hive_partitioning = false)
                  JOIN (SELECT shard, texts_file FROM shards) USING (texts_file)) AS documents
            JOIN chosen ON documents.shard = chosen.shard AND documents.row = chosen.row
            JOIN (SELECT unnest($values) AS folder, unnest($numbers)::UINTEGER AS number) AS folders
              ON chosen.folder = folders.folder
            ORDER BY {", ".join(ORDER)}
            """  # noqa: S608 - quoted column names
        parameters = {
            "texts": _patterns(shard.texts for shard in self._shards),
            "values": [folder.value for folder in self.folders],
            "numbers": [folder.number for folder in self.folders],
        }
        found = [0] * len(self.folders)
        last = np.empty((len(ORDER), 0), dtype=np.int64)
        for batch in self._connection.sql(query, params=parameters).to_arrow_reader(BATCH_ROWS):
            places = np.stack([batch.column(name).to_numpy() for name in ORDER]).astype(np.int64)  # (3, rows)
            if not _increases(np.concatenate([last, places], axis=1)):
                raise WorkspaceError("rows of the dataset came out of order or twice: please report this bug")
            last = places[:, -1:] if len(batch) else last
            table = pa.table(batch)
            rows = self._joined(table.select(columns).rename_columns(names), table)
            for number in np.unique(places[0]):
                start, stop = np.searchsorted(places[0], [number, number + 1]).tolist()
                found[number] += stop - start
                yield self.folders[number], rows.slice(start, stop - start)
        for folder in self.folders:
            if found[folder.number] != folder.rows:
                raise WorkspaceError(
                    f"data/{folder.name}: {folder.rows:,} documents were selected, {found[folder.number]:,} found: "
                    "run again"
                )


def _increases(places: NDArray[np.int64]) -> bool:
    """Return whether columns of numbers, (k, n) with the most significant first, increase strictly from row to row."""
    larger = np.zeros(max(0, places.shape[1] - 1), dtype=bool)
    equal = np.ones_like(larger)
    for key in places:
        larger |= equal & (key[1:] > key[:-1])
        equal &= key[1:] == key[:-1]
    return bool(larger.all())


def _patterns(paths: Iterable[str]) -> list[str]:
    return [pattern_of(path) for path in paths]


def common_schema(schemas: list[pa.Schema]) -> pa.Schema:
    """Return one schema for all shards; a column whose types have no wider one, such as numbers and text, is text."""
    fields: dict[str, pa.Field] = {}
    for field in (field for schema in dict.fromkeys(schemas) for field in schema):
        known = fields.setdefault(field.name, field)
        if known.type != field.type:
            fields[field.name] = pa.field(field.name, wider_type([known.type, field.type]) or pa.string())
    return pa.schema(fields.values())
