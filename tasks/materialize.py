"""Write the dataset: the selected documents with their scores, a card and a provenance record.

DuckDB joins documents, scores and masks. The folder replaces the last one after its rows and tokens are verified; a
folder at a URL is written by `fineweb_mask.tasks.dataset.publish`.
"""

import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, ClassVar

import duckdb

from fineweb_mask.models.errors import WorkspaceError
from fineweb_mask.models.runtime.progress import track_by_size
from fineweb_mask.models.settings import MaterializeSettings, PipelineSettings
from fineweb_mask.tasks.dataset.card import what_was_kept, write_card
from fineweb_mask.tasks.dataset.output import MATERIALIZE, Output
from fineweb_mask.tasks.dataset.publish import PROVENANCE, publish, published, version_folder
from fineweb_mask.tasks.dataset.rows import SelectedDocuments, ShardPaths
from fineweb_mask.tasks.dataset.writers import WRITERS, Written, read_back
from fineweb_mask.tasks.inference.prefetch import background_writer
from fineweb_mask.tasks.source.discovery import SourceShard
from fineweb_mask.tasks.storage.atomic import atomic_folder, tree_files
from fineweb_mask.tasks.workspace.build_info import code_and_packages
from fineweb_mask.tasks.workspace.counts import Counts
from fineweb_mask.tasks.workspace.job import Dependencies, Stage, StageJob, rows_through, stage_task
from fineweb_mask.tasks.workspace.listing import Listing
from fineweb_mask.tasks.workspace.manifest import is_whole, manifest_reference, read_manifest, write_manifest
from fineweb_mask.tasks.workspace.references import StageFile, digest
from fineweb_mask.tasks.workspace.shard_files import ShardFiles
from fineweb_mask.tasks.workspace.stage_parquet import read_fingerprint
from fineweb_mask.tasks.workspace.workspace import DISK_REMEDIES, Workspace, disk_errors_explained

NOT_RECORDED: dict[str, Any] = {
    "workspace": True,
    "report": True,
    "engine": True,
    "materialize": {"output", "spill", "threads"},
}
"""Settings that say where and how fast a dataset is made, not what is in it."""


class MaterializeJob(StageJob):
    """Write the dataset of all shards, which are in the order of their names."""

    stage: ClassVar[Stage] = Stage(
        MATERIALIZE,
        version=2,
        folders=("dataset",),
        product=True,
        run_with=("materialize",),
        documents=rows_through,
        counts=("selected", "selected"),
    )
    name: ClassVar[str] = "dataset"
    shards: list[ShardFiles]
    sources: list[SourceShard]  # of the shards
    counts: Counts
    blocks: list[dict[str, Any]]  # what the selection recorded of every block
    recipe: PipelineSettings

    @property
    def output(self) -> Output:
        """The place of the dataset."""
        return Output.of(self.workspace, self.recipe.materialize)

    def depends_on(self) -> Dependencies:
        """Return the settings that change the dataset's bytes, and the files that it is made from."""
        files = [
            [shard.name, shard.documents.fingerprint, shard.scores.fingerprint, shard.masks.fingerprint]
            for shard in self.shards
        ]
        excluded = {"output", "memory_limit", "threads", "spill"}
        return Dependencies(settings=self.recipe.materialize.model_dump(exclude=excluded), inputs=files)

    def current(self, listing: Listing | None = None) -> StageFile | None:  # noqa: ARG002 - manifests are small
        """Return a reference to the dataset if it is whole and agrees with the job's key, else None."""
        output, path = self.output, self.output.folder / PROVENANCE
        if output.url is not None:
            manifest = published(output.url)
        else:
            manifest = read_manifest(path)
            manifest = manifest if manifest is not None and is_whole(path, manifest) else None
        if manifest is None or manifest.key != self.key:
            return None
        return manifest_reference(self.workspace, path, self.name, manifest)


@stage_task
def materialize(job: MaterializeJob) -> None:
    """Write the selected documents, the dataset card and the provenance record.

    Raises
    ------
    WorkspaceError
        If a shard's files are missing or not those that were selected from, or what was written is not what was
        selected.
    """
    for shard in job.shards:
        _check_inputs(job.workspace, shard)
    output = job.output
    output.check()
    with job.workspace.alone(), atomic_folder(output.folder) as folder, _database(job) as connection:
        shards = [
            ShardPaths(*(str(job.workspace.resolve(file)) for file in (shard.documents, shard.scores, shard.masks)))
            for shard in job.shards
        ]
        documents = SelectedDocuments(connection, shards, job.recipe.materialize)
        if documents.rows != job.counts.selected:
            raise WorkspaceError(
                f"the masks select {documents.rows:,} documents, the counts say {job.counts.selected:,}"
            )
        with ThreadPoolExecutor(1) as thread:  # it takes as long as a third of the files of a million documents
            counted = thread.submit(what_was_kept, job.workspace, job.shards)
            written = _write(documents, folder / "data", connection, job.recipe.materialize)
            kept = counted.result()
        details = _provenance(job, written.tokens) | {
            "retention": documents.retention(),
            "retention_by_decile": kept.deciles,
        }
        data = folder / "data"
        if output.url is not None or job.workspace.url is not None:
            data = data.rename(folder / version_folder(data))
        write_card(folder, details, kept, data.name)
        write_manifest(folder / PROVENANCE, job.key, tree_files(folder), details)
    if output.url is not None:
        publish(output.folder, output.url)
        shutil.rmtree(output.folder)


def _check_inputs(workspace: Workspace, shard: ShardFiles) -> None:
    """Check that a shard's files are unchanged since the job was planned, and have equal numbers of rows."""
    for file in (shard.documents, shard.scores, shard.masks):
        found = read_fingerprint(workspace.resolve(file))
        if found is None:
            raise WorkspaceError(f"{file.path} is missing or damaged: run again to rebuild it")
        if found != file.fingerprint:
            raise WorkspaceError(
                f"{file.path} was written by another run since this one read it: run again, one run at a time"
            )
        if file.rows != shard.documents.rows:
            raise WorkspaceError(
                f"{file.path} has {file.rows:,} rows for {shard.documents.rows:,} documents: "
                f"run again with --refresh {file.stage}"
            )


@contextmanager
def _database(job: MaterializeJob) -> Iterator[duckdb.DuckDBPyConnection]:
    """Yield a database with the memory limit of the settings, which spills into a folder of this workspace."""
    settings = job.recipe.materialize
    own = digest(str(job.workspace.root))
    spill = job.workspace.cache / "materialize-spill" if settings.spill is None else Path(settings.spill) / own
    shutil.rmtree(spill, ignore_errors=True)  # of a run that was killed
    with disk_errors_explained(spill):
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
    except duckdb.OutOfMemoryException as error:
        if "max_temp_directory_size" in str(error):
            raise WorkspaceError(
                f"{spill}: no space is left to spill to: free some there, or set materialize.spill to a folder "
                "on a larger disk; the dataset that was there before is unchanged"
            ) from error
        raise WorkspaceError(
            f"materialize.memory_limit: {settings.memory_limit} is too little for DuckDB: raise it, or set "
            "materialize.threads to fewer threads; the dataset that was there before is unchanged"
        ) from error
    except duckdb.IOException as error:
        if not any(os.strerror(number) in str(error) for number in DISK_REMEDIES):
            raise
        raise WorkspaceError(
            f"{spill}: {error}: free some space there, or set materialize.spill to another folder; "
            "the dataset that was there before is unchanged"
        ) from error
    finally:
        shutil.rmtree(spill, ignore_errors=True)


def _write(
    documents: SelectedDocuments, folder: Path, connection: duckdb.DuckDBPyConnection, settings: MaterializeSettings
) -> Written:
    """Write the files of every folder, and return their rows and tokens after checking them."""
    longest = 0
    read = track_by_size(
        "documents written", documents.read(), documents.rows, lambda pair: pair[1].num_rows, part=(0, 0.8)
    )
    for of_folder, tables in groupby(read, key=lambda pair: pair[0]):
        with (
            WRITERS[settings.format](folder / of_folder.name, documents.schema, settings) as writer,
            background_writer() as write,
        ):
            for _, table in tables:
                write(partial(writer.write, table))
        longest = max(longest, writer.longest)
    written = read_back(tree_files(folder), connection, longest)
    expected = Written(documents.rows, documents.tokens)
    if written != expected:
        raise WorkspaceError(
            f"the dataset's files hold {written.rows:,} documents of {written.tokens:,} tokens, "
            f"{expected.rows:,} of {expected.tokens:,} were selected"
        )
    return written


def _provenance(job: MaterializeJob, tokens: int) -> dict[str, Any]:
    """Return the provenance record: sources, recipe, blocks, code and packages."""
    return {
        "rows": job.counts.selected,
        "tokens": tokens,
        "counts": job.counts.model_dump(),
        "sources": [
            {
                **source.model_dump(include={"relative", "bytes", "fingerprint"}),
                "documents_in": shard.documents.details["rows_in"],
                "documents_kept": shard.documents.rows,
                "dropped": shard.documents.details["dropped"],
            }
            for shard, source in zip(job.shards, job.sources, strict=True)
        ],
        "recipe": job.recipe.model_dump(mode="json", exclude=NOT_RECORDED),
        "blocks": [{name: value for name, value in block.items() if name != "history"} for block in job.blocks],
        "seed": job.recipe.selection.seed,
        **code_and_packages(),
    }
