"""Materialize: the product.

DuckDB joins documents, scores and masks and writes the selected rows; a card and a provenance record lie beside them.
The folder is put in place whole, once it is verified.
"""

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.parse import quote

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from pydantic import BaseModel, ConfigDict

from models.schemas import MASKS, MEASURED
from models.settings import PipelineSettings
from models.stopping import stop_if_requested
from tasks.accounting import Counts
from tasks.lake import (
    LakeError,
    StageFile,
    StageKey,
    Workspace,
    digest,
    is_whole,
    manifest_reference,
    read_manifest,
    tree_files,
    write_manifest,
    written_folder,
)
from tasks.source import SourceShard
from tasks.stage import StageJob, build_once, stage_task
from tasks.templating import render

VERSION = 1
UNKNOWN_DUMP = "unknown"
MAX_FOLDER_NAME = 200  # file systems allow 255 bytes
ROW_GROUP_ROWS = 20_000
RECORDED_PACKAGES = (
    "fineweb-mask",
    "duckdb",
    "fasttext",
    "numpy",
    "prefect",
    "pyarrow",
    "sentence-transformers",
    "tokenizers",
    "torch",
    "transformers",
)


class MaterializeShard(BaseModel):
    """The files of a shard that the dataset is made of, and where they came from."""

    model_config = ConfigDict(frozen=True)

    source: SourceShard
    documents: StageFile
    scores: StageFile
    masks: StageFile


class MaterializeJob(StageJob):
    """Write the dataset of all shards."""

    shards: list[MaterializeShard]
    counts: Counts
    blocks: list[dict[str, Any]]  # what the selection said of every block
    recipe: PipelineSettings

    @property
    def manifest_path(self) -> Path:
        """The provenance record, which is also the manifest of the dataset's files."""
        return self.lake.dataset / "provenance.json"

    def current(self) -> StageFile | None:
        """Return a reference to the dataset if it is whole and agrees with the job's key, else None."""
        manifest = read_manifest(self.manifest_path)
        if manifest is None or manifest.key != self.key or not is_whole(self.manifest_path, manifest):
            return None
        return manifest_reference(self.lake, self.manifest_path, self.name, manifest)


def plan(
    workspace: Workspace,
    shards: list[MaterializeShard],
    counts: Counts,
    blocks: list[dict[str, Any]],
    recipe: PipelineSettings,
) -> MaterializeJob:
    """Return the job that writes the dataset."""
    ordered = sorted(shards, key=lambda shard: shard.documents.name)
    key = StageKey(
        stage="materialize",
        version=VERSION,
        settings=digest(recipe.materialize.model_dump(exclude={"memory_limit"})),
        inputs=digest(
            [
                [
                    shard.documents.name,
                    shard.documents.fingerprint,
                    shard.scores.fingerprint,
                    shard.masks.fingerprint,
                ]
                for shard in ordered
            ]
        ),
    )
    return MaterializeJob(
        workspace=str(workspace.root),
        name="dataset",
        key=key,
        shards=ordered,
        counts=counts,
        blocks=blocks,
        recipe=recipe,
    )


def materialize(job: MaterializeJob) -> StageFile:
    """Write the selected documents, the dataset card and the provenance record.

    Raises
    ------
    LakeError
        If the rows written are not the rows selected.
    """
    return build_once(job, lambda: _build(job))


def _build(job: MaterializeJob) -> None:
    spill = job.lake.cache / "materialize-spill"
    spill.mkdir(parents=True, exist_ok=True)
    database = spill / "chosen.duckdb"
    database.unlink(missing_ok=True)
    config: dict[str, str | bool | int | float | list[str]] = {
        "memory_limit": job.recipe.materialize.memory_limit,
        "temp_directory": str(spill),
    }
    with written_folder(job.lake.dataset) as folder:
        with duckdb.connect(str(database), config=config) as connection:
            _choose(connection, job)
            _write_documents(connection, job, folder / "data")
            retention = _retention(connection, job)
        database.unlink()
        _verify(folder / "data", job.counts.selected)
        details = _provenance(job, retention)
        (folder / "README.md").write_text(_card(job, details), encoding="utf-8")
        write_manifest(folder / "provenance.json", job.key, tree_files(folder), details)


def _choose(connection: duckdb.DuckDBPyConnection, job: MaterializeJob) -> None:
    """Make the tables `shards` (index and files) and `chosen` (shard, row, inclusion, block of the selected)."""
    files = {
        name: [str(job.lake.resolve(getattr(shard, name))) for shard in job.shards]
        for name in ("documents", "scores", "masks")
    }
    connection.execute(
        """
        CREATE TABLE shards AS
        SELECT unnest($index)::UINTEGER AS shard, unnest($documents) AS documents_file,
               unnest($scores) AS scores_file, unnest($masks) AS masks_file
        """,
        {"index": list(range(len(job.shards))), **files},
    )
    connection.execute(
        """
        CREATE TABLE chosen AS
        SELECT shard, row, inclusion, block
        FROM read_parquet($masks, filename = 'masks_file') JOIN shards USING (masks_file)
        WHERE selected
        """,
        {"masks": files["masks"]},
    )


def _selected_documents(job: MaterializeJob) -> tuple[str, dict[str, list[str]]]:
    """Return a query of the selected documents with their scores, and its parameters."""
    left_out = ", ".join(["row", "shard", "documents_file", *MEASURED.names])
    query = f"""
        SELECT documents.* EXCLUDE ({left_out}), scores.* EXCLUDE (row, shard, scores_file), inclusion, block,
               documents.shard AS _shard, documents.row AS _row, coalesce(nullif(dump, ''), '{UNKNOWN_DUMP}') AS _dump
        FROM (SELECT * FROM read_parquet($documents, filename = 'documents_file', union_by_name = true)
              JOIN (SELECT shard, documents_file FROM shards) USING (documents_file)) AS documents
        JOIN chosen ON documents.shard = chosen.shard AND documents.row = chosen.row
        JOIN (SELECT * FROM read_parquet($scores, filename = 'scores_file')
              JOIN (SELECT shard, scores_file FROM shards) USING (scores_file)) AS scores
          ON documents.shard = scores.shard AND documents.row = scores.row
        """  # noqa: S608 - column names of our own schemas only
    return query, {
        name: [str(job.lake.resolve(getattr(shard, name))) for shard in job.shards] for name in ("documents", "scores")
    }


def _write_documents(connection: duckdb.DuckDBPyConnection, job: MaterializeJob, folder: Path) -> None:
    folder.mkdir(parents=True)
    schema, file_size = _dataset_schema(job), job.recipe.materialize.file_size
    query, parameters = _selected_documents(job)
    if job.recipe.materialize.layout == "flat":
        _copy(connection, query, parameters, folder, schema, file_size)
        return
    dumps = connection.execute(
        f"SELECT _dump, list(DISTINCT _shard ORDER BY _shard) FROM ({query}) GROUP BY _dump ORDER BY _dump",  # noqa: S608
        parameters,
    ).fetchall()
    for dump, shards in dumps:
        of_dump = {name: [files[index] for index in shards] for name, files in parameters.items()}
        in_dump = f"SELECT * FROM ({query}) WHERE _dump = $dump"  # noqa: S608
        _copy(connection, in_dump, {**of_dump, "dump": dump}, folder / folder_name(dump), schema, file_size)


def folder_name(dump: str) -> str:
    """Return a dump's name as a folder's: anything but letters, digits, dot, dash and underscore is %-escaped.

    A name too long for a folder is cut, and told from others that begin alike by its digest.
    """
    name = quote(dump, safe="")
    if len(name) > MAX_FOLDER_NAME:
        name = f"{name[:MAX_FOLDER_NAME]}-{digest(dump)}"
    return name if not name.startswith(".") else "%2E" + name[1:]


def _copy(
    connection: duckdb.DuckDBPyConnection,
    query: str,
    parameters: dict[str, Any],
    folder: Path,
    schema: pa.Schema,
    file_size: int,
) -> None:
    """Write a query's rows, in the order of the source, as part-00000.parquet and so on.

    DuckDB's own writer would mark a column as required wherever a file happens to hold no null in it; every file of
    the dataset is to have the one `schema`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    ordered = f"SELECT * EXCLUDE (_shard, _row, _dump) FROM ({query}) ORDER BY _shard, _row"  # noqa: S608
    reader: pa.RecordBatchReader = connection.sql(ordered, params=parameters).to_arrow_reader(ROW_GROUP_ROWS)
    batches = iter(reader)
    batch = next(batches, None)
    part = 0
    while batch is not None:
        with (
            pa.OSFile(str(folder / f"part-{part:05d}.parquet"), "wb") as sink,
            pq.ParquetWriter(sink, schema, compression="zstd", write_page_checksum=True) as writer,
        ):
            while batch is not None and sink.tell() < file_size:
                stop_if_requested()
                writer.write_table(_conform(pa.table(batch), schema))
                batch = next(batches, None)
        part += 1


def _conform(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return a table in the dataset's schema; a column that only shards of other dumps have is null."""
    columns = [
        table[field.name] if field.name in table.schema.names else pa.nulls(table.num_rows, field.type)
        for field in schema
    ]
    return pa.table(columns, names=schema.names).cast(schema)


def _dataset_schema(job: MaterializeJob) -> pa.Schema:
    """Return the columns of the dataset: the source's in their own types, the scores, what the selection learned."""
    documents = common_schema([pq.read_schema(job.lake.resolve(shard.documents)) for shard in job.shards])
    scores = pq.read_schema(job.lake.resolve(job.shards[0].scores))
    inner = {"row", *MEASURED.names}
    fields = [field for field in [*documents, *scores] if field.name not in inner]
    return pa.schema([*fields, MASKS.field("inclusion"), MASKS.field("block")])


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


def _retention(connection: duckdb.DuckDBPyConnection, job: MaterializeJob) -> list[dict[str, Any]]:
    """Return, per dump, how many documents were ingested and how many of them were selected."""
    documents = [str(job.lake.resolve(shard.documents)) for shard in job.shards]
    rows = connection.execute(
        """
        SELECT coalesce(nullif(dump, ''), $unknown) AS dump, count(*) AS documents, count(chosen.row) AS selected
        FROM (SELECT row, dump, shard
              FROM read_parquet($documents, filename = 'documents_file', union_by_name = true)
              JOIN shards USING (documents_file)) AS documents
        LEFT JOIN chosen USING (shard, row)
        GROUP BY ALL ORDER BY ALL
        """,
        {"documents": documents, "unknown": UNKNOWN_DUMP},
    ).fetchall()
    return [{"dump": dump, "documents": documents, "selected": selected} for dump, documents, selected in rows]


def _verify(folder: Path, selected: int) -> None:
    written = sum(pq.read_metadata(path).num_rows for path in folder.rglob("*.parquet"))
    if written != selected:
        raise LakeError(f"the dataset holds {written} documents, {selected} were selected")


def _provenance(job: MaterializeJob, retention: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what the dataset was made from, with what, and how."""
    return {
        "rows": job.counts.selected,
        "counts": job.counts.model_dump(),
        "retention": retention,
        "sources": [
            {
                **shard.source.model_dump(include={"relative", "bytes", "fingerprint"}),
                "documents_in": shard.documents.details["rows_in"],
                "documents_kept": shard.documents.rows,
                "dropped": shard.documents.details["dropped"],
            }
            for shard in job.shards
        ],
        "recipe": job.recipe.model_dump(mode="json", exclude={"workspace", "report", "engine"}),
        "blocks": [{name: value for name, value in block.items() if name != "history"} for block in job.blocks],
        "seed": job.recipe.selection.seed,
        "code": {"version": version("fineweb-mask"), **code_commit()},
        "python": sys.version.split()[0],
        "packages": {name: version(name) for name in RECORDED_PACKAGES},
    }


def code_commit() -> dict[str, Any]:
    """Return the git commit that this code stands at and whether it was changed since; nulls outside a checkout."""
    root = Path(__file__).resolve().parents[1]
    unknown = {"commit": None, "dirty": None}
    try:
        top, commit = _git(root, "rev-parse", "--show-toplevel", "HEAD").splitlines()
        if Path(top) != root:
            return unknown
        return {"commit": commit, "dirty": bool(_git(root, "status", "--porcelain"))}
    except (OSError, subprocess.CalledProcessError, ValueError):
        return unknown


def _git(root: Path, *arguments: str) -> str:
    command = ["git", "-C", str(root), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=30).stdout  # noqa: S603


def _card(job: MaterializeJob, details: dict[str, Any]) -> str:
    """Return the dataset card: the hub's YAML header, then what is inside and how it was made."""
    settings = job.recipe.materialize
    header = {
        "pretty_name": settings.title,
        "license": settings.license,
        "language": job.recipe.ingest.languages or ["en"],
        "task_categories": ["text-generation"],
        "size_categories": [size_category(job.counts.selected)],
        "source_datasets": settings.source_datasets,
        "tags": ["fineweb-mask", "pre-training", "data-selection"],
        "configs": [{"config_name": "default", "data_files": [{"split": "train", "path": "data/**/*.parquet"}]}],
    }
    return render(
        "card.md",
        header=yaml.safe_dump(header, sort_keys=False, allow_unicode=True),
        title=settings.title,
        recipe=yaml.safe_dump(details["recipe"], sort_keys=False, allow_unicode=True),
        details=details,
        scorers=[scorer.name for scorer in job.recipe.quality.scorers],
    )


def size_category(rows: int) -> str:
    """Return the hub's size category of a dataset."""
    edges = [
        (10**3, "n<1K"),
        (10**4, "1K<n<10K"),
        (10**5, "10K<n<100K"),
        (10**6, "100K<n<1M"),
        (10**7, "1M<n<10M"),
    ]
    edges += [(10**8, "10M<n<100M"), (10**9, "100M<n<1B"), (10**10, "1B<n<10B"), (10**11, "10B<n<100B")]
    return next((name for edge, name in edges if rows < edge), "100B<n<1T")


materialize_task = stage_task(materialize)
