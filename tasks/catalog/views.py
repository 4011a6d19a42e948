"""Write the catalog: a small DuckDB file with views that show a workspace as tables.

The catalog contains no absolute path. A view cannot ask for the path of its database, but DuckDB's default spill folder
is `<database>.tmp`, and the views derive the workspace from it: `duckdb workspaces/x/catalog.duckdb` works from any
folder, also after the workspace was moved. If the catalog is attached to another database, its paths are relative to
the working folder of DuckDB or to its `file_search_path`.
"""

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from fineweb_mask.models.schemas import (
    DROPPED,
    DUPLICATES,
    LOSSES,
    MASKS,
    MEASURED,
    ROW,
    documents_schema,
    scores_schema,
)
from fineweb_mask.tasks.catalog.fates import dropped_beside, fates_query
from fineweb_mask.tasks.catalog.quoting import identifier, literal
from fineweb_mask.tasks.storage.atomic import atomic_write
from fineweb_mask.tasks.storage.parquet import DamagedFileError, read_schema, read_table
from fineweb_mask.tasks.storage.remote.copies import ensure_local
from fineweb_mask.tasks.workspace.records.runs import FOLDER as RUNS
from fineweb_mask.tasks.workspace.records.runs import QuarantinedShard, RunRecord
from fineweb_mask.tasks.workspace.references import NO_FILE, ShardFiles, StageFile
from fineweb_mask.tasks.workspace.workspace import LAST_RUN, Workspace

NAME = "catalog.duckdb"
VIEWS = tuple("fates documents dropped duplicates scores embeddings masks selected losses runs".split())
FILES = pa.schema([(name, pa.string()) for name in ("stage", "shard", "path")])
ROOT = r"regexp_extract(current_setting('temp_directory'), '^(.*/|)catalog[.]duckdb[.]tmp$', 1, 's')"
"""SQL expression for the workspace with a trailing slash; empty if the catalog is attached to another database."""
ESCAPED = rf"regexp_replace({ROOT}, '([*?\[])', '[\1]', 'g')"
"""SQL expression for the beginning of a pattern that finds files of the workspace."""

RUN_TYPES: dict[Any, str] = {
    datetime: "TIMESTAMP",
    float: "DOUBLE",
    float | None: "DOUBLE",
    int | None: "BIGINT",
    list[str]: "VARCHAR[]",
    list[QuarantinedShard]: "STRUCT(shard VARCHAR, reason VARCHAR)[]",
    dict[str, Any]: "JSON",
}
"""DuckDB's types of those fields of a run's record that are no texts."""


def catalog_path(workspace: Workspace) -> Path:
    """Return the path of a workspace's catalog."""
    return workspace.root / NAME


def catalog_files(folder: Path, stage: str) -> set[str] | None:
    """Return the paths of a stage's files in the last run of a local workspace, or None if it has no catalog.

    Raises
    ------
    DamagedFileError
        If the catalog is damaged: DuckDB compares the checksums of what it reads, here everything.
    """
    path = folder / NAME
    if not path.is_file():
        return None
    try:
        with duckdb.connect(str(path), read_only=True) as connection:
            connection.execute("FROM stored.losses").fetchall()
            files = connection.execute("SELECT path FROM stored.files WHERE stage = $stage", {"stage": stage})
            return {path for (path,) in files.fetchall()}
    except duckdb.Error as error:
        reason = f"{error}: delete it, and ask for it by `fineweb-mask sql {folder} 'FROM runs'`, which writes it again"
        raise DamagedFileError(str(path), reason) from error


def is_current(workspace: Workspace) -> bool:
    """Return whether the catalog is of the last run, which writes run.json first, and of the dataset that is there."""
    records = [path for path in [workspace.dataset_record] if path.exists()]
    return is_newer_than(workspace, workspace.root / LAST_RUN, *records)


def is_newer_than(workspace: Workspace, *files: Path) -> bool:
    """Return whether the catalog is whole, and was written after these files.

    Always False for a workspace at a URL. Its runs write no catalog: DuckDB opens every file that a view reads, and
    these may not have been downloaded.
    """
    if workspace.url is not None:
        return False
    try:
        written = catalog_path(workspace).stat().st_mtime_ns
        is_newer = all(written >= file.stat().st_mtime_ns for file in files)
        return is_newer and catalog_files(workspace.root, "documents") is not None
    except (FileNotFoundError, DamagedFileError):
        return False


def ensure_views_local(workspace: Workspace) -> None:
    """Download the files that the views read, if the workspace is at a URL."""
    if workspace.url is not None:
        stages = ("documents", "dropped", "duplicates", "scores", "embeddings", "masks")
        for name in (NAME, RUNS, *stages):
            ensure_local(workspace.root / name)


def write_catalog(workspace: Workspace, shards: Sequence[ShardFiles], losses: StageFile = NO_FILE) -> Path:
    """Write the catalog of these files, replacing the existing one, and return its path.

    `losses` is the file of what every step drops by group.
    """
    path = catalog_path(workspace)
    for leftover in workspace.root.glob(f".{NAME}.*.wal"):  # of a killed process
        leftover.unlink()
    config: dict[str, str | bool | int | float | list[str]] = {"temp_directory": f"{path}.tmp"}
    with atomic_write(path) as partial:
        with duckdb.connect(str(partial), config=config) as connection:
            _create_views(connection, workspace, shards, losses)
        # DuckDB would replay the log of an interrupted session into the new file.
        path.with_name(f"{NAME}.wal").unlink(missing_ok=True)
    return path


def _create_views(
    connection: duckdb.DuckDBPyConnection, workspace: Workspace, shards: Sequence[ShardFiles], losses: StageFile
) -> None:
    """Create the views, and the tables and macros that they read."""
    connection.execute("CREATE SCHEMA stored")
    table = read_table(workspace.resolve(losses), schema=LOSSES) if losses.path else LOSSES.empty_table()
    connection.from_arrow(table).create("stored.losses")
    stages = ("documents", "duplicates", "scores", "embeddings", "masks")
    files = {stage: [file for shard in shards if (file := getattr(shard, stage)).path] for stage in stages}
    rows = [(stage, file.name, file.path) for stage in stages for file in files[stage]]
    stored = [dict(zip(FILES.names, row, strict=True)) for row in rows]
    connection.from_arrow(pa.Table.from_pylist(stored, schema=FILES)).create("stored.files")
    connection.execute(f"CREATE MACRO in_workspace(files) AS list_transform(files, lambda file: {ESCAPED} || file)")
    schemas = {read_schema(workspace.resolve(file)).remove_metadata() for file in files["documents"]}
    differ = len(schemas) > 1
    dropped = [dropped_beside(file) for file in files["documents"] if any(file.details["dropped"].values())]
    vectors = pa.schema([ROW, pa.field("embedding", pa.list_(pa.float32(), 1))])  # as DuckDB reads float16
    views = {
        "documents": _rows_of(connection, files["documents"], documents_schema(), differ=differ),
        "dropped": _rows_of(connection, dropped, DROPPED, differ=differ),
        "duplicates": _rows_of(connection, files["duplicates"], DUPLICATES),
        "scores": _rows_of(connection, files["scores"], scores_schema([])),
        "embeddings": _rows_of(connection, files["embeddings"], vectors),
        "masks": _rows_of(connection, files["masks"], MASKS),
        "selected": f"""
            SELECT documents.* EXCLUDE ({", ".join(MEASURED.names)}), scores.* EXCLUDE (shard, row),
                   masks.* EXCLUDE (shard, row, selected)
            FROM documents JOIN scores USING (shard, row) JOIN masks USING (shard, row)
            WHERE masks.selected
            """,  # noqa: S608 - column names of our own schemas only
        "runs": _runs(workspace),
        "losses": "FROM stored.losses",
    }
    for view, query in views.items():
        connection.execute(f"CREATE VIEW {view} AS {query}")
    columns = (connection.table(view).columns for view in ("documents", "scores", "dropped"))
    connection.execute(f"CREATE VIEW fates AS {fates_query(*columns)}")


def _rows_of(
    connection: duckdb.DuckDBPyConnection, files: Sequence[StageFile], schema: pa.Schema, *, differ: bool = False
) -> str:
    """Return a query of a stage's rows with their shard; without files, an empty one with the columns of `schema`."""
    has_shard = "shard" in schema.names  # one file of all shards
    if not files:
        columns = connection.from_arrow(schema.empty_table())
        nulls = [
            f"NULL::{type_} AS {identifier(name)}" for name, type_ in zip(columns.columns, columns.types, strict=True)
        ]
        return f"SELECT {'' if has_shard else 'NULL::VARCHAR AS shard, '}{', '.join(nulls)} WHERE false"
    paths = ", ".join(literal(path) for path in dict.fromkeys(file.path for file in files))
    named = "regexp_extract(documents_file, '([^/]*)[.][0-9a-f]{16}[.]parquet$', 1) AS shard, "
    return f"""
        SELECT {"" if has_shard else named}* EXCLUDE (documents_file)
        FROM read_parquet(in_workspace([{paths}]), filename = 'documents_file', union_by_name = {differ},
                          hive_partitioning = false)
        """  # noqa: S608 - a view takes no parameters; the paths are quoted


def _runs(workspace: Workspace) -> str:
    types = {name: RUN_TYPES.get(field.annotation, "VARCHAR") for name, field in RunRecord.model_fields.items()}
    if not workspace.files(f"{RUNS}/*.json"):
        nulls = ", ".join(f"NULL::{kind} AS {name}" for name, kind in types.items())
        return f"SELECT {nulls} WHERE false"
    columns = ", ".join(f"'{name}': '{kind}'" for name, kind in types.items())
    return f"""
        FROM read_json({ESCAPED} || '{RUNS}/*.json', columns = {{{columns}}}, format = 'unstructured',
                       hive_partitioning = false)
        ORDER BY started
        """
