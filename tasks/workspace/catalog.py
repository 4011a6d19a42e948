"""The catalog: a small DuckDB file whose views show a workspace as tables.

It holds no path of its own. A view cannot ask where its database lies, but DuckDB's spill folder is `<database>.tmp`
unless somebody sets another, so the views take the workspace from there: `duckdb workspaces/x/catalog.duckdb` works
from any folder, also after the workspace was moved. Attached to another database, the paths are relative to the folder
that DuckDB runs in, or to its `file_search_path`.
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from fineweb_mask.models.schemas import MASKS, MEASURED, documents_schema, embeddings_schema, scores_schema
from fineweb_mask.tasks.storage.atomic import atomic_write
from fineweb_mask.tasks.storage.mirror import ensure_local
from fineweb_mask.tasks.workspace.references import StageFile
from fineweb_mask.tasks.workspace.runs import FOLDER as RUNS
from fineweb_mask.tasks.workspace.shard_files import ShardFiles
from fineweb_mask.tasks.workspace.stage_parquet import read_footer
from fineweb_mask.tasks.workspace.workspace import Workspace

NAME = "catalog.duckdb"
VIEWS = ("documents", "scores", "masks", "selected", "embeddings", "runs", "drops")
ROOT = r"regexp_extract(current_setting('temp_directory'), '^(.*/|)catalog[.]duckdb[.]tmp$', 1)"
"""The workspace, with a slash at its end; empty where the catalog was not opened by itself."""

RUN_COLUMNS = {
    "started": "TIMESTAMP",
    "seconds": "DOUBLE",
    "flow": "VARCHAR",
    "status": "VARCHAR",
    "error": "VARCHAR",
    "stages_run": "VARCHAR[]",
    "stages_cached": "VARCHAR[]",
    "documents_in": "BIGINT",
    "documents_selected": "BIGINT",
    "tokens_in": "BIGINT",
    "tokens_selected": "BIGINT",
    "select_ratio": "DOUBLE",
    "lamb": "DOUBLE",
    "solver": "VARCHAR",
    "objective": "DOUBLE",
    "set_aside": "STRUCT(shard VARCHAR, reason VARCHAR)[]",
    "recipe": "JSON",
    "flow_run": "VARCHAR",
    "version": "VARCHAR",
    "commit": "VARCHAR",
}


def catalog_path(workspace: Workspace) -> Path:
    """Return where a workspace's catalog lies."""
    return workspace.root / NAME


def is_current(workspace: Workspace) -> bool:
    """Return whether no run was begun since the catalog was written: every run writes run.json first.

    A run in a workspace at a URL writes none: DuckDB looks into every file that a view reads, and the run may have none
    of them on this machine.
    """
    if workspace.url is not None:
        return False
    try:
        return catalog_path(workspace).stat().st_mtime_ns >= (workspace.root / "run.json").stat().st_mtime_ns
    except FileNotFoundError:
        return False


def ensure_views_local(workspace: Workspace) -> None:
    """Copy what the views read to this machine, where the workspace is at a URL."""
    if workspace.url is not None:
        workspace.look()
        for name in (NAME, RUNS, "documents", "duplicates", "scores", "embeddings", "masks"):
            ensure_local(workspace.root / name)


def write_catalog(workspace: Workspace, shards: Sequence[ShardFiles]) -> Path:
    """Write the catalog of exactly these files, in place of the one that is there.

    Parameters
    ----------
    workspace
        The workspace.
    shards
        Its shards, in the order of the source.
    """
    path = catalog_path(workspace)
    for leftover in workspace.root.glob(f".{NAME}.*.wal"):  # of a process that was killed in here
        leftover.unlink()
    config: dict[str, str | bool | int | float | list[str]] = {"temp_directory": f"{path}.tmp"}
    with atomic_write(path) as partial:
        with duckdb.connect(str(partial), config=config) as connection:
            for view, query in _views(connection, workspace, shards).items():
                connection.execute(f"CREATE VIEW {view} AS {query}")
        # A log that somebody's interrupted session left would be played back into the new file.
        path.with_name(f"{NAME}.wal").unlink(missing_ok=True)
    return path


def _views(connection: duckdb.DuckDBPyConnection, workspace: Workspace, shards: Sequence[ShardFiles]) -> dict[str, str]:
    """Make what the views need, and return their queries."""
    connection.execute(f"CREATE MACRO in_workspace(files) AS list_transform(files, lambda file: {ROOT} || file)")
    connection.execute("CREATE SCHEMA stored")
    _write_files(connection, shards)
    _write_drops(connection, workspace, shards)
    documents = [shard.documents for shard in shards]
    footers = [read_footer(workspace.root / file.path) for file in documents]
    schemas = {footer.schema.to_arrow_schema().remove_metadata() for footer in footers if footer is not None}
    scores, embeddings, masks = (
        [file for shard in shards if (file := getattr(shard, stage)).path]
        for stage in ("scores", "embeddings", "masks")
    )
    return {
        "documents": _rows_of(connection, documents, documents_schema(), differ=len(schemas) > 1),
        "scores": _rows_of(connection, scores, scores_schema([])),
        "embeddings": _rows_of(connection, embeddings, embeddings_schema(1, "float32")),
        "masks": _rows_of(connection, masks, MASKS),
        "selected": f"""
            SELECT documents.* EXCLUDE ({", ".join(MEASURED.names)}), scores.* EXCLUDE (shard, row), inclusion, block
            FROM documents JOIN scores USING (shard, row) JOIN masks USING (shard, row)
            WHERE masks.selected
            """,  # noqa: S608 - column names of our own schemas only
        "runs": _runs(workspace),
        "drops": "FROM stored.drops",
    }


def _rows_of(
    connection: duckdb.DuckDBPyConnection, files: Sequence[StageFile], without: pa.Schema, *, differ: bool = False
) -> str:
    """Return a query of the rows of a stage, with their shard; without files, of no row with the columns `without`."""
    if not files:
        columns = connection.from_arrow(without.empty_table())
        nulls = [f'NULL::{type_} AS "{name}"' for name, type_ in zip(columns.columns, columns.types, strict=True)]
        return f"SELECT NULL::VARCHAR AS shard, {', '.join(nulls)} WHERE false"
    paths = ", ".join(literal(file.path) for file in files)
    return f"""
        SELECT regexp_extract(documents_file, '([^/]*)[.]parquet$', 1) AS shard, * EXCLUDE (documents_file)
        FROM read_parquet(in_workspace([{paths}]), filename = 'documents_file', union_by_name = {differ})
        """  # noqa: S608 - a view takes no parameters; the paths are quoted


def literal(text: str) -> str:
    """Return a text as an SQL literal."""
    return "'" + text.replace("'", "''") + "'"


def _runs(workspace: Workspace) -> str:
    columns = ", ".join(f"'{name}': '{kind}'" for name, kind in RUN_COLUMNS.items())
    if not workspace.files(f"{RUNS}/*.json"):
        nulls = ", ".join(f"NULL::{kind} AS {name}" for name, kind in RUN_COLUMNS.items())
        return f"SELECT {nulls} WHERE false"
    escaped = rf"regexp_replace({ROOT}, '([*?\[])', '[\1]', 'g')"  # what follows is a pattern: later runs are seen, too
    return f"""
        FROM read_json({escaped} || '{RUNS}/*.json', columns = {{{columns}}}, format = 'unstructured')
        ORDER BY started
        """


def _write_files(connection: duckdb.DuckDBPyConnection, shards: Sequence[ShardFiles]) -> None:
    connection.execute("CREATE TABLE stored.files (stage VARCHAR, shard VARCHAR, path VARCHAR)")
    stages = ("documents", "duplicates", "scores", "embeddings", "masks")
    files = [(stage, getattr(shard, stage)) for shard in shards for stage in stages]
    _insert(connection, "stored.files", [(stage, file.name, file.path) for stage, file in files if file.path])


def _insert(connection: duckdb.DuckDBPyConnection, table: str, rows: Sequence[tuple[object, ...]]) -> None:
    if rows:
        columns = [list(column) for column in zip(*rows, strict=True)]
        values = ", ".join(f"unnest(${place + 1})" for place in range(len(columns)))
        connection.execute(f"INSERT INTO {table} SELECT {values}", columns)


def _write_drops(connection: duckdb.DuckDBPyConnection, workspace: Workspace, shards: Sequence[ShardFiles]) -> None:
    connection.execute("CREATE TABLE stored.drops (shard VARCHAR, stage VARCHAR, reason VARCHAR, documents BIGINT)")
    rows = [
        (shard.documents.name, stage, reason, documents)
        for shard in shards
        for (stage, reason), documents in _dropped(workspace, shard).items()
        if documents
    ]
    _insert(connection, "stored.drops", rows)


def _dropped(workspace: Workspace, shard: ShardFiles) -> Counter[tuple[str, str]]:
    """Return how many documents of a shard were dropped, by stage and reason."""
    dropped = Counter({("ingest", why): count for why, count in shard.documents.details["dropped"].items()})
    dropped["dedup", "duplicate"] = shard.duplicates.rows
    if shard.masks.path and shard.masks.details["excluded"].get("bad_vector"):  # in one of the group's shards
        blocks = pq.read_table(workspace.resolve(shard.masks), columns=["block"])["block"]
        dropped["select", "bad_vector"] = blocks.null_count - shard.duplicates.rows
    return dropped
