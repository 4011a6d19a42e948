"""Find and remove the files of a workspace that no recipe reaches: those of other settings, inputs or code.

A file is removed only if it is certain that no given recipe reads it. Where a recipe's work is not finished, it may not
be known which files of later stages it will read: these are left. What the buckets of a corpus found is kept for a run
that goes on; once the duplicates of all shards are listed, it is not read again and is removed.
"""

from collections.abc import Container, Sequence
from pathlib import Path

from pydantic import BaseModel, Field

from fineweb_mask.flows.pipeline.fit import number_of_fits
from fineweb_mask.flows.pipeline.run import Run
from fineweb_mask.flows.status.catalog import of_the_dataset
from fineweb_mask.flows.status.inspection import inspect_recipe, inspect_workspace, open_workspace
from fineweb_mask.models.names import TAGGED
from fineweb_mask.models.settings import PipelineSettings
from fineweb_mask.tasks.dataset.output import MATERIALIZE
from fineweb_mask.tasks.dataset.parts import FOLDER
from fineweb_mask.tasks.dedup.buckets import BucketJob
from fineweb_mask.tasks.dedup.duplicates import DedupJob, NearDedupJob
from fineweb_mask.tasks.dedup.sort import ShinglesJob
from fineweb_mask.tasks.losses import LossesJob
from fineweb_mask.tasks.select import SelectJob
from fineweb_mask.tasks.selection.cells import CellJob, DivideJob, RouteJob, SampleJob
from fineweb_mask.tasks.selection.groups import SharesJob
from fineweb_mask.tasks.storage.atomic import remove_file
from fineweb_mask.tasks.workspace.listing import FOLDERS, update_index
from fineweb_mask.tasks.workspace.references import shard_and_tag
from fineweb_mask.tasks.workspace.workspace import Workspace

COMPARED = ("hashes", DedupJob.summaries, *DedupJob.stage.folders)
"""Folders of files that are read only if duplicates are looked for across shards."""

SKETCHED = ("references", "signatures", *ShinglesJob.stage.folders, NearDedupJob.summaries, *NearDedupJob.stage.folders)
"""Folders of files that are read only if near-duplicates are looked for, or pages of one URL."""


READ_UNTIL = {
    **{job.summaries: job.stage.folders for job in (DedupJob, NearDedupJob)},
    **dict.fromkeys(ShinglesJob.stage.folders, NearDedupJob.stage.folders),
    **{
        folder: SelectJob.stage.folders
        for job in (SampleJob, RouteJob, DivideJob, CellJob, SharesJob)
        for folder in job.stage.folders
    },
}
"""Folders of files of which those of later folders, named with each, tell what is read: mostly nothing any more."""

OF_MANY = frozenset(folder for job in (BucketJob, LossesJob, CellJob, SharesJob) for folder in job.stage.folders)
"""Folders of files that are of no single shard."""


class Removed(BaseModel):
    """What is removed from one folder of a workspace."""

    folder: str
    files: int = 0
    bytes: int = 0
    undecided: int = 0  # files of shards that are left, because a recipe's work on them is not finished
    paths: list[Path] = Field(default_factory=list, exclude=True)  # what is removed

    def add(self, path: Path, size: int) -> None:
        """Count a file of this many bytes."""
        self.paths.append(path)
        self.files += 1
        self.bytes += size


def collect_garbage(folder: str, recipes: Sequence[PipelineSettings], *, dry_run: bool = False) -> list[Removed]:
    """Remove the files that no recipe reaches, and return what was removed from each folder.

    Parameters
    ----------
    folder
        The workspace: a folder, or a URL.
    recipes
        The recipes whose files are kept; without any, that of the last run, and that of the dataset that is there.
    dry_run
        Whether to only return what would be removed.

    Raises
    ------
    WorkspaceError
        If the folder is no workspace, or a run is using it.
    """
    workspace = open_workspace(folder)
    with workspace.idle():
        inspections = [inspect_recipe(workspace, one) for one in recipes]
        if not recipes:
            last = inspect_workspace(folder)
            inspections = [one for one in (last, of_the_dataset(last)) if one is not None]
        jobs = [job for one in inspections for pairs in one.found.values() for job, _ in pairs]
        reached = {path for job in jobs for path in job.paths()}
        found = [
            *(_stage_files(workspace, inspections, reached, name) for name in FOLDERS),
            _entries(workspace, "fitted", reached, is_decided=all(map(_is_decided, inspections))),
            _entries(workspace, FOLDER, reached, is_decided=all(one.found[MATERIALIZE] for one in inspections)),
        ]
        if not dry_run:
            for removed in found:
                for path in removed.paths:
                    remove_file(path)
                workspace.remove_empty_folders(removed.folder)
            update_index(workspace)
    return [removed for removed in found if removed.files or removed.undecided]


def _stage_files(workspace: Workspace, inspections: Sequence[Run], reached: Container[Path], folder: str) -> Removed:
    """Return what to remove of a folder of stage files."""
    unplanned = {
        name for one in inspections for name in one.shards.keys() - one.quarantined.keys() - _planned(one, folder)
    }
    is_of_corpus = folder in OF_MANY
    removed = Removed(folder=folder)
    for name, size in workspace.sizes(folder).items():
        path = workspace.root / name
        found = shard_and_tag(path.relative_to(workspace.root / folder).as_posix())
        if found is None or path in reached:
            continue
        if found[0] in unplanned or (is_of_corpus and unplanned):
            removed.undecided += 1
            continue
        removed.add(path, size)
    return removed


def _planned(run: Run, folder: str) -> set[str]:
    """Return the shards for which it is known which file of a folder is read."""
    ingest = run.settings.ingest
    if (folder in COMPARED and ingest.exact_dedup != "corpus") or (folder in SKETCHED and not ingest.finds_copies):
        return set(run.shards)  # none
    made = READ_UNTIL.get(folder, (folder,))
    return {
        name
        for jobs in run.found.values()
        for job, file in jobs
        if set(made) & set(job.stage.folders) and not (isinstance(job, DedupJob | NearDedupJob) and file is None)
        for name in job.shard_names
    }


def _is_decided(run: Run) -> bool:
    """Return whether all fits of a recipe are planned, also those of its selection if it has any."""
    is_selecting = not run.settings.selection.by_likeness or any(
        isinstance(job, SelectJob) for job, _ in run.found["select"]
    )
    return is_selecting and len(run.found["fit"]) >= number_of_fits(run.settings)


def _entries(workspace: Workspace, folder: str, reached: Container[Path], *, is_decided: bool) -> Removed:
    """Return what to remove of a folder whose entries are no shard's: fitted models, parts of unfinished datasets.

    `is_decided` says whether it is known which of them the recipes read.
    """
    removed = Removed(folder=folder)
    for name, size in workspace.sizes(folder, suffix="").items():
        entry = "/".join(name.split("/")[:2])
        if workspace.root / entry in reached or (folder != FOLDER and TAGGED.search(entry) is None):
            continue
        if is_decided:
            removed.add(workspace.root / name, size)
        else:
            removed.undecided += 1
    return removed
