"""Tell of every document that the source held which stage decided on it last, and how.

`fates_query` is one query: the view `fates` of the catalog reads all shards by it, and `gathered` one shard after the
other, in tables of what PyArrow has read and verified. What is told of single documents, of groups and of two
selections are SELECTs over `fates`.
"""

from collections.abc import Collection, Sequence
from pathlib import Path

import duckdb
import pyarrow as pa

from fineweb_mask.models.runtime.progress import track
from fineweb_mask.models.schemas import DROPPED, DUPLICATES, MASKS, ROW, SOURCE_ROW, scores_schema
from fineweb_mask.tasks.catalog.quoting import identifier, literal
from fineweb_mask.tasks.storage.parquet import VerifiedFile, read_schema, read_table
from fineweb_mask.tasks.workspace.references import ShardFiles, StageFile
from fineweb_mask.tasks.workspace.stage_parquet import read_duplicates
from fineweb_mask.tasks.workspace.workspace import Workspace

SELECTED, NOT_SELECTED = "selected", "not selected"
VECTORS_AT_ONCE = 65_536
DECISIONS = tuple(
    "shard row source_row stage reason selected inclusion block twin twin_shard twin_row similarity".split()
)
"""The columns of `fates` beside the scores and the source's own."""


def fates_query(documents: Collection[str], scores: Collection[str], dropped: Collection[str]) -> str:
    """Return the query of a row for each document that the source held, from what the stages have of them.

    It reads the tables or views documents, duplicates, scores, masks and dropped, each with the shard. A document whose
    mask has no block has no vector. Stage and reason are null where no selection has come yet.

    Parameters
    ----------
    documents, scores, dropped
        The columns of these. A score that is named as a decision is left out, and one of the source's own that is named
        as a decision or score.
    """
    taken = {*DECISIONS, *scores}
    scored = ", ".join(identifier(name) for name in scores if name in DECISIONS)
    known = ", ".join(identifier(name) for name in documents if name in taken)
    gone = ", ".join(identifier(name) for name in dropped if name in taken - {"shard", "source_row", "reason", "twin"})
    return f"""
        SELECT documents.shard, documents.row, source_row,
               CASE WHEN duplicates.row IS NOT NULL THEN 'dedup' WHEN masks.row IS NULL THEN NULL
                    WHEN block IS NULL THEN 'embed' ELSE 'select' END AS stage,
               CASE WHEN duplicates.row IS NOT NULL THEN duplicates.reason WHEN masks.row IS NULL THEN NULL
                    WHEN block IS NULL THEN 'bad_vector'
                    WHEN masks.selected THEN '{SELECTED}' ELSE '{NOT_SELECTED}' END AS reason,
               coalesce(masks.selected, false) AS selected, inclusion, block,
               duplicates.twin_shard || ' row ' || duplicates.twin_row AS twin,
               duplicates.twin_shard, duplicates.twin_row, duplicates.similarity,
               scores.* EXCLUDE ({scored}), documents.* EXCLUDE ({known})
        FROM documents LEFT JOIN duplicates USING (shard, row) LEFT JOIN scores USING (shard, row)
             LEFT JOIN masks USING (shard, row)
        UNION ALL BY NAME
        SELECT *{f" EXCLUDE ({gone})" if gone else ""}, 'ingest' AS stage, false AS selected FROM dropped
        """  # noqa: S608 - words of our own, and quoted names


def gathered(
    connection: duckdb.DuckDBPyConnection,
    workspace: Workspace,
    shards: Sequence[ShardFiles],
    columns: Sequence[str],
    query: str,
    table: str,
) -> None:
    """Create a table of the rows that a query finds in the view `fates` of one shard after the other.

    Parameters
    ----------
    connection
        The database.
    workspace, shards
        Whose files are read.
    columns
        Those that the query reads of the documents and the scores, beside shard, row and source_row; one that a shard
        lacks is null.
    query
        The query.
    table
        The name of the table.
    """
    for place, shard in enumerate(track("shards", shards)):
        show_fates(connection, workspace, shard, columns)
        connection.execute(f"{f'INSERT INTO {table} BY NAME' if place else f'CREATE TABLE {table} AS'} {query}")


def show_fates(
    connection: duckdb.DuckDBPyConnection, workspace: Workspace, shard: ShardFiles, columns: Sequence[str]
) -> None:
    """Create the view `fates` of one shard; see `gathered`."""
    told = [SOURCE_ROW.name, "reason", "twin", *columns]
    tables = {"duplicates": DUPLICATES.empty_table(), "scores": scores_schema([]).empty_table()}
    tables["dropped"] = DROPPED.empty_table().select([name for name in DROPPED.names if name in told])
    tables["documents"] = _columns_of(workspace.resolve(shard.documents), [ROW.name, SOURCE_ROW.name, *columns])
    if shard.duplicates.rows:
        tables["duplicates"] = read_duplicates(workspace, shard.duplicates)
    tables["duplicates"] = tables["duplicates"].drop("shard")
    if shard.scores.path:
        tables["scores"] = _columns_of(workspace.resolve(shard.scores), [ROW.name, *columns])
    tables["masks"] = _masks(workspace, shard)
    if any(shard.documents.details["dropped"].values()):
        dropped = workspace.resolve(dropped_beside(shard.documents))
        tables["dropped"] = _columns_of(dropped, told)
    known = {*tables["documents"].column_names, *tables["scores"].column_names}
    for name in columns:
        if name not in known:
            nulls = pa.nulls(tables["documents"].num_rows, pa.string())
            tables["documents"] = tables["documents"].append_column(name, nulls)
    for name, rows in tables.items():
        connection.register(f"{name}_of_shard", rows)
        named = f"SELECT {literal(shard.name)} AS shard, * FROM {name}_of_shard"  # noqa: S608 - it is quoted
        connection.execute(f"CREATE OR REPLACE TEMP VIEW {name} AS {named}")
    names = (["shard", *tables[name].column_names] for name in ("documents", "scores", "dropped"))
    connection.execute(f"CREATE OR REPLACE TEMP VIEW fates AS {fates_query(*names)}")


def dropped_beside(documents: StageFile) -> StageFile:
    """Return the file of what ingest dropped of a shard, which has one if it dropped something."""
    return documents.model_copy(update={"path": documents.path.replace("documents/", "dropped/", 1)})


def _columns_of(path: Path, columns: Sequence[str]) -> pa.Table:
    """Return those of the columns that a file has."""
    return read_table(path, columns=[name for name in dict.fromkeys(columns) if name in read_schema(path).names])


def _masks(workspace: Workspace, shard: ShardFiles) -> pa.Table:
    """Return a shard's masks; before it is selected from, those of the documents without a vector."""
    if shard.masks.path:
        return read_table(workspace.resolve(shard.masks))
    if not shard.embeddings.path or shard.embeddings.details.get("bad_vectors") == 0:
        return MASKS.empty_table()
    rows = list[int]()
    with VerifiedFile(workspace.root / shard.embeddings.path) as file:
        for batch in file.iter_batches(VECTORS_AT_ONCE):
            rows += batch[ROW.name].filter(batch["embedding"].is_null()).to_pylist()
    return pa.Table.from_pylist([{"row": row, "selected": False} for row in rows], schema=MASKS)
