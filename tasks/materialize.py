"""Materialize: the product.

DuckDB joins documents, scores and masks, the selected rows are written; a card and a provenance record lie beside them.
The folder is put in place whole, once it is verified.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import duckdb
from pydantic import BaseModel, ConfigDict

from models.settings import MaterializeSettings, PipelineSettings
from tasks.accounting import Counts
from tasks.card import write_card
from tasks.dataset_files import WRITERS, Written, read_back
from tasks.dataset_rows import SelectedDocuments, ShardFiles
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
    written_fingerprint,
    written_folder,
)
from tasks.overlap import behind
from tasks.provenance import code_and_packages
from tasks.retention import retention_by_decile, retention_by_dump
from tasks.source import SourceShard
from tasks.stage import StageJob, build_once, stage_task

VERSION = 2


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
        settings=digest(recipe.materialize.model_dump(exclude={"memory_limit", "threads", "spill"})),
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
        If a shard's files are missing or not those that were selected from, or what was written is not what was
        selected.
    """
    return build_once(job, lambda: _build(job))


def _build(job: MaterializeJob) -> None:
    for shard in job.shards:
        _check_inputs(job.lake, shard)
    with written_folder(job.lake.dataset) as folder, _database(job) as connection:
        shards = [
            ShardFiles(*(str(job.lake.resolve(file)) for file in (shard.documents, shard.scores, shard.masks)))
            for shard in job.shards
        ]
        documents = SelectedDocuments(connection, shards, job.recipe.materialize)
        if documents.rows != job.counts.selected:
            raise LakeError(f"the masks select {documents.rows:,} documents, the books say {job.counts.selected:,}")
        written = _write(documents, folder / "data", connection, job.recipe.materialize)
        details = _provenance(job, written.tokens) | {
            "retention": retention_by_dump(connection, shards),
            "retention_by_decile": retention_by_decile(connection, shards),
        }
        write_card(folder, details)
        write_manifest(folder / "provenance.json", job.key, tree_files(folder), details)


def _check_inputs(lake: Workspace, shard: MaterializeShard) -> None:
    """See that a shard's files are those that the job was planned for, and fit together row by row."""
    for file in (shard.documents, shard.scores, shard.masks):
        found = written_fingerprint(lake.resolve(file))
        if found is None:
            raise LakeError(f"{file.path} is missing or damaged: run again, and it is made anew")
        if found != file.fingerprint:
            raise LakeError(
                f"{file.path} was written by another run since this one read it: run again, one run at a time"
            )
        if file.rows != shard.documents.rows:
            raise LakeError(
                f"{file.path} has {file.rows:,} rows for {shard.documents.rows:,} documents: "
                f"run again with --refresh {file.stage}"
            )


@contextmanager
def _database(job: MaterializeJob) -> Iterator[duckdb.DuckDBPyConnection]:
    """Give a database that works in the memory it may have, and spills into a folder of this workspace's own."""
    settings = job.recipe.materialize
    own = digest(str(job.lake.root))
    spill = job.lake.cache / "materialize-spill" if settings.spill is None else Path(settings.spill) / own
    shutil.rmtree(spill, ignore_errors=True)  # of a run that was killed
    spill.mkdir(parents=True)
    config: dict[str, str | bool | int | float | list[str]] = {
        "memory_limit": settings.memory_limit,
        "temp_directory": str(spill),
    }
    if settings.threads is not None:
        config["threads"] = settings.threads
    try:
        with duckdb.connect(str(spill / "chosen.duckdb"), config=config) as connection:
            connection.execute("SET enable_progress_bar = false")
            yield connection
    finally:
        shutil.rmtree(spill, ignore_errors=True)


def _write(
    documents: SelectedDocuments, folder: Path, connection: duckdb.DuckDBPyConnection, settings: MaterializeSettings
) -> Written:
    """Write the files of every folder, and return what is in them, once that is what was selected."""
    longest = 0
    for of_folder, tables in groupby(documents.read(), key=lambda pair: pair[0]):
        with WRITERS[settings.format](folder / of_folder.name, documents.schema, settings) as writer, behind() as write:
            for _, table in tables:
                write(partial(writer.write, table))
        longest = max(longest, writer.longest)
    written = read_back(tree_files(folder), connection, longest)
    expected = Written(documents.rows, documents.tokens)
    if written != expected:
        raise LakeError(
            f"the dataset's files hold {written.rows:,} documents of {written.tokens:,} tokens, "
            f"{expected.rows:,} of {expected.tokens:,} were selected"
        )
    return written


def _provenance(job: MaterializeJob, tokens: int) -> dict[str, Any]:
    """Return what the dataset was made from, with what, and how."""
    return {
        "rows": job.counts.selected,
        "tokens": tokens,
        "counts": job.counts.model_dump(),
        "sources": [
            {
                **shard.source.model_dump(include={"relative", "bytes", "fingerprint"}),
                "documents_in": shard.documents.details["rows_in"],
                "documents_kept": shard.documents.rows,
                "dropped": shard.documents.details["dropped"],
            }
            for shard in job.shards
        ],
        "recipe": job.recipe.model_dump(mode="json", exclude={"workspace", "engine"}),
        "blocks": [{name: value for name, value in block.items() if name != "history"} for block in job.blocks],
        "seed": job.recipe.selection.seed,
        **code_and_packages(),
    }


materialize_task = stage_task(materialize)
