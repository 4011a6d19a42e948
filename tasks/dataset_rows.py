"""The rows of the dataset: DuckDB joins documents, scores and masks, and gives the selected ones in order.

Every batch that leaves here was checked: the columns it is ordered by increase strictly, so no row comes twice, and
at the end of a read as many rows came as were selected, so none is missing.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple
from urllib.parse import quote

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from models.schemas import MASKS, MEASURED
from models.settings import FLAT, MaterializeSettings
from tasks.lake import LakeError, digest

UNKNOWN = "unknown"
MAX_FOLDER_NAME = 200  # file systems allow 255 bytes
MAX_FOLDERS = 10_000
BATCH_ROWS = 8_192
NESTED = 2.0
"""A shard is read once for every folder that has documents of it, unless this is more than so many times on average."""


class ShardFiles(NamedTuple):
    """Where the files of a shard lie."""

    documents: str
    scores: str
    masks: str


class Folder(NamedTuple):
    """The documents that share a folder of the dataset."""

    number: int
    value: str  # of the layout's column
    name: str  # empty: the folder of the data itself
    shards: list[int]
    rows: int


class SelectedDocuments:
    """The selected documents of a corpus, with their scores.

    Parameters
    ----------
    connection
        A DuckDB database of its own, which takes the tables `shards` and `chosen`.
    shards
        The files of every shard, in the order in which the dataset is to hold them.
    settings
        The layout, the format and the order.

    Raises
    ------
    LakeError
        If the columns or the rows of the files do not agree, or the layout does not suit them.
    """

    def __init__(
        self, connection: duckdb.DuckDBPyConnection, shards: Sequence[ShardFiles], settings: MaterializeSettings
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
        """Return the source's columns in their own types, the scores, what the selection learned."""
        documents = [field for field in self._documents if field.name not in MEASURED.names]
        taken = {field.name.lower(): field.name for field in documents}
        for name in self._scores.names:
            if name.lower() in taken:
                raise LakeError(
                    f"the scorer {name!r} has the name of the source's column {taken[name.lower()]!r}: rename the "
                    "scorer in quality.scorers, or list the columns to carry along, without it, in source.extra_columns"
                )
        return pa.schema([*documents, *self._scores, MASKS.field("inclusion"), MASKS.field("block")])

    def _choose(self) -> None:
        """Make the tables `shards` (files) and `chosen` (shard, row, folder, inclusion, block of the selected)."""
        self._connection.execute(
            """
            CREATE TABLE shards AS
            SELECT unnest($index)::UINTEGER AS shard, unnest($documents) AS documents_file, unnest($masks) AS masks_file
            """,
            {
                "index": list(range(len(self._shards))),
                "documents": [shard.documents for shard in self._shards],
                "masks": [shard.masks for shard in self._shards],
            },
        )
        layout = self._settings.layout
        if layout != FLAT and layout not in self._documents.names:
            raise LakeError(
                f"materialize.layout: no column {layout!r}, it may be {FLAT!r} or one of "
                f"{', '.join(name for name in self._documents.names if name not in MEASURED.names)}"
            )
        masks = {"masks": [shard.masks for shard in self._shards]}
        documents = {"documents": [shard.documents for shard in self._shards]}
        masked = """
            SELECT shard, row, inclusion, block
            FROM read_parquet($masks, filename = 'masks_file') JOIN shards USING (masks_file) WHERE selected
            """
        if layout == FLAT:
            self._connection.execute(f"CREATE TABLE chosen AS SELECT *, '' AS folder FROM ({masked})", masks)  # noqa: S608
            return
        self._connection.execute(
            f"""
            CREATE TABLE chosen AS
            SELECT chosen.*, coalesce(nullif({_quoted(layout)}::VARCHAR, ''), '{UNKNOWN}') AS folder
            FROM ({masked}) AS chosen
            JOIN (SELECT shard, row, {_quoted(layout)}
                  FROM read_parquet($documents, filename = 'documents_file', union_by_name = true)
                  JOIN shards USING (documents_file)) AS documents USING (shard, row)
            """,  # noqa: S608 - a quoted column name
            masks | documents,
        )

    def _find_folders(self) -> list[Folder]:
        found = self._connection.execute(
            """
            SELECT folder, list(shard ORDER BY shard), sum(n)::BIGINT
            FROM (SELECT folder, shard, count(*) AS n FROM chosen GROUP BY ALL) GROUP BY folder ORDER BY folder
            """
        ).fetchall()
        if len(found) > MAX_FOLDERS:
            raise LakeError(
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

    def read(self) -> Iterator[tuple[Folder, pa.Table]]:
        """Yield the rows of one folder after the other, in the columns of `schema` or as lines of JSON.

        Raises
        ------
        LakeError
            If a row comes twice or is missing.
        """
        pairs = sum(len(folder.shards) for folder in self.folders)
        if self._settings.shuffle or pairs > NESTED * len(self._shards):
            yield from self._read_sorted()
            return
        for folder in self.folders:
            rows = 0
            for shard in folder.shards:
                for table in self._read_shard(shard, folder):
                    rows += table.num_rows
                    yield folder, table
            _check_rows(folder, rows)

    def _read_shard(self, shard: int, folder: Folder) -> Iterator[pa.Table]:
        """Yield the rows of a shard as they come: DuckDB keeps the order of the file that it reads."""
        files = self._shards[shard]
        query = f"""
            SELECT {self._columns(self._schemas[shard])}, documents.row AS _row
            FROM read_parquet($documents) AS documents
            JOIN (SELECT row, inclusion, block FROM chosen WHERE shard = $shard AND folder = $folder) AS chosen
              ON documents.row = chosen.row
            JOIN read_parquet($scores) AS scores ON documents.row = scores.row
            """  # noqa: S608 - quoted column names
        parameters = {"documents": files.documents, "scores": files.scores, "shard": shard, "folder": folder.value}
        yield from self._tables(query, parameters, ["_row"])

    def _read_sorted(self) -> Iterator[tuple[Folder, pa.Table]]:
        """Yield the rows of all shards in the order of the folders; what does not fit into memory is spilled."""
        random = "md5_number_lower(concat_ws(' ', $seed, chosen.shard, chosen.row))" if self._settings.shuffle else "0"
        query = f"""
            SELECT {self._columns(self._documents)}, folders.number AS _folder, {random} AS _random,
                   chosen.shard AS _shard, chosen.row AS _row
            FROM (SELECT * FROM read_parquet($documents, filename = 'documents_file', union_by_name = true)
                  JOIN (SELECT shard, documents_file FROM shards) USING (documents_file)) AS documents
            JOIN chosen ON documents.shard = chosen.shard AND documents.row = chosen.row
            JOIN (SELECT unnest($values) AS folder, unnest($numbers)::UINTEGER AS number) AS folders
              ON chosen.folder = folders.folder
            JOIN (SELECT * FROM read_parquet($scores, filename = 'scores_file')
                  JOIN (SELECT unnest($index)::UINTEGER AS shard, unnest($scores) AS scores_file)
                  USING (scores_file)) AS scores
              ON documents.shard = scores.shard AND documents.row = scores.row
            ORDER BY _folder, _random, _shard, _row
            """  # noqa: S608 - quoted column names
        parameters: dict[str, Any] = {
            "documents": [shard.documents for shard in self._shards],
            "scores": [shard.scores for shard in self._shards],
            "index": list(range(len(self._shards))),
            "values": [folder.value for folder in self.folders],
            "numbers": [folder.number for folder in self.folders],
        }
        if self._settings.shuffle:
            parameters["seed"] = self._settings.seed
        order = ["_folder", "_random", "_shard", "_row"]
        rows = [0] * len(self.folders)
        for table in self._tables(query, parameters, order, keep=["_folder"]):
            numbers = table["_folder"].to_numpy()
            starts = [0, *(np.flatnonzero(np.diff(numbers)) + 1), len(numbers)]
            for start, stop in pairwise(starts):
                folder = self.folders[numbers[start]]
                rows[folder.number] += stop - start
                yield folder, table.slice(start, stop - start).drop_columns(["_folder"])
        for folder in self.folders:
            _check_rows(folder, rows[folder.number])

    def _columns(self, documents: pa.Schema) -> str:
        """Return the list of a query's columns: those of the dataset, or one line of JSON for each row."""
        sources = dict.fromkeys(documents.names, "documents") | dict.fromkeys(self._scores.names, "scores")
        sources |= {"inclusion": "chosen", "block": "chosen"}
        values = {name: f"{sources[name]}.{_quoted(name)}" if name in sources else "NULL" for name in self.schema.names}
        if self._settings.format == "parquet":
            return ", ".join(f"{value} AS {_quoted(name)}" for name, value in values.items())
        floats = {field.name for field in self.schema if pa.types.is_floating(field.type)}
        entries = (
            f"{_literal(name)}: {f'CASE WHEN isfinite({value}) THEN {value} END' if name in floats else value}"
            for name, value in values.items()
        )
        return f"to_json({{{', '.join(entries)}}})::VARCHAR AS line"  # JSON has no word for NaN

    def _tables(
        self, query: str, parameters: dict[str, Any], order: list[str], keep: Sequence[str] = ()
    ) -> Iterator[pa.Table]:
        """Yield a query's rows without the columns they are ordered by, once these are seen to increase strictly."""
        schema = self.schema if self._settings.format == "parquet" else pa.schema([("line", pa.string())])
        reader = self._connection.sql(query, params=parameters).to_arrow_reader(BATCH_ROWS)
        last: list[Any] | None = None
        for batch in reader:
            if not batch.num_rows:
                continue
            keys = [batch.column(name).to_numpy(zero_copy_only=False) for name in order]
            if last is not None:
                keys = [np.concatenate([before, key]) for before, key in zip(last, keys, strict=True)]
            if not _increases(keys):
                raise LakeError("rows of the dataset came out of order or twice: this is a fault, please report it")
            last = [key[-1:] for key in keys]
            table = pa.table(batch)
            columns = [table[name] for name in schema.names] + [table[name] for name in keep]
            kept = pa.schema([*schema, *(table.schema.field(name) for name in keep)])
            yield pa.table(columns, names=kept.names).cast(kept)


def _increases(keys: Sequence[Any]) -> bool:
    """Return whether rows increase strictly, the first column counting most; each is an (n,) array."""
    larger = np.zeros(len(keys[0]) - 1, dtype=bool)
    equal = np.ones_like(larger)
    for key in keys:
        larger |= equal & (key[1:] > key[:-1])
        equal &= key[1:] == key[:-1]
    return bool(larger.all())


def _check_rows(folder: Folder, rows: int) -> None:
    if rows != folder.rows:
        raise LakeError(f"data/{folder.name}: {folder.rows:,} documents were selected, {rows:,} found: run again")


def _quoted(name: str) -> str:
    """Return a column's name as SQL takes it, whatever is in it."""
    return '"' + name.replace('"', '""') + '"'


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def folder_name(value: str) -> str:
    """Return a column's value as a folder's name: all but letters, digits, dot, dash and underscore is %-escaped.

    A name too long for a folder is cut, and told from others that begin alike by its digest.
    """
    name = quote(value, safe="")
    if len(name) > MAX_FOLDER_NAME:
        name = f"{name[:MAX_FOLDER_NAME]}-{digest(value)}"
    return name if not name.startswith(".") else "%2E" + name[1:]


def common_schema(schemas: list[pa.Schema]) -> pa.Schema:
    """Return one schema for all shards; a column whose types nothing unites, such as numbers and text, is text."""
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
