"""Find and remove the files of a workspace that no recipe reaches: those of other settings, inputs or code.

A file is removed only if it is certain that no given recipe reads it. Where a recipe's work is not finished, it may not
be known which files of later stages it will read: their folders are left.
"""

from collections.abc import Sequence, Set
from pathlib import Path

from pydantic import BaseModel, Field

from fineweb_mask.flows.pipeline.fit import number_of_fits
from fineweb_mask.flows.pipeline.run import Run
from fineweb_mask.flows.status.catalog import of_the_dataset
from fineweb_mask.flows.status.inspection import inspect_recipe, inspect_workspace, open_workspace
from fineweb_mask.models.names import TAGGED
from fineweb_mask.models.settings import PipelineSettings
from fineweb_mask.tasks.dataset.output import MATERIALIZE, UNFINISHED
from fineweb_mask.tasks.dedup.duplicates import SUMMARIES, DedupJob
from fineweb_mask.tasks.dedup.sketch import SketchJob
from fineweb_mask.tasks.select import SelectJob
from fineweb_mask.tasks.selection.cells import CellJob, DivideJob, RouteJob, SampleJob
from fineweb_mask.tasks.selection.groups import CountJob, SharesJob
from fineweb_mask.tasks.storage.atomic import remove_file
from fineweb_mask.tasks.workspace.listing import FOLDERS, update_index
from fineweb_mask.tasks.workspace.workspace import Workspace

COMPARED = (SUMMARIES, *DedupJob.stage.folders)
"""Folders of files that are read only if duplicates are looked for across shards."""

READ_UNTIL = {
    SUMMARIES: DedupJob.stage.folders,
    **{
        folder: SelectJob.stage.folders
        for job in (SampleJob, RouteJob, DivideJob, CellJob, CountJob, SharesJob)
        for folder in job.stage.folders
    },
}
"""Folders of files of which those of later folders, named with each, tell what is read: mostly nothing any more."""


class Removed(BaseModel):
    """What is removed from one folder of a workspace."""

    folder: str
    files: int = 0
    bytes: int = 0
    undecided: int = 0  # files that are left, because a recipe's work is not finished
    paths: list[Path] = Field(default_factory=list, exclude=True)  # what is removed

    def add(self, path: Path, size: int) -> None:
        """Count a file of this many bytes."""
        self.paths.append(path)
        self.files += 1
        self.bytes += size


class Garbage(BaseModel):
    """What is removed; `fineweb-mask gc --json` prints it."""

    dry_run: bool
    removed: list[Removed]


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
        decided = {name: all(_is_planned(one, name) for one in inspections) for name in FOLDERS}
        decided |= {"fitted": all(map(_is_decided, inspections))}
        decided |= {UNFINISHED: all(one.found[MATERIALIZE] for one in inspections)}
        found = [_unreached(workspace, name, reached, is_decided) for name, is_decided in decided.items()]
        if not dry_run:
            for removed in found:
                for path in removed.paths:
                    remove_file(path)
                workspace.remove_empty_folders(removed.folder)
            update_index(workspace)
    return [removed for removed in found if removed.files or removed.undecided]


def _unreached(workspace: Workspace, folder: str, reached: Set[Path], is_decided: bool) -> Removed:
    """Return what to remove of a folder; `is_decided` says whether it is known which of its files the recipes read."""
    removed = Removed(folder=folder)
    for name, size in workspace.sizes(folder, suffix=".parquet" if folder in FOLDERS else "").items():
        path, entry = workspace.root / name, workspace.root / "/".join(name.split("/")[:2])  # such as a model's folder
        if path in reached or entry in reached or (folder != UNFINISHED and TAGGED.search(name) is None):
            continue
        if is_decided:
            removed.add(path, size)
        else:
            removed.undecided += 1
    return removed


def _is_planned(run: Run, folder: str) -> bool:
    """Return whether it is known of every shard which file of a folder is read."""
    ingest = run.settings.ingest
    is_sketched = folder in SketchJob.stage.folders
    if (folder in COMPARED and not ingest.compares_shards) or (is_sketched and ingest.near_dedup == "off"):
        return True  # none
    made = READ_UNTIL.get(folder, (folder,))
    planned = {
        name
        for jobs in run.found.values()
        for job, file in jobs
        if set(made) & set(job.stage.folders) and not (isinstance(job, DedupJob) and file is None)
        for name in job.shard_names
    }
    return run.shards.keys() - run.quarantined.keys() <= planned


def _is_decided(run: Run) -> bool:
    """Return whether all fits of a recipe are planned, also those of its selection if it has any."""
    is_selecting = not run.settings.selection.by_likeness or any(
        isinstance(job, SelectJob) for job, _ in run.found["select"]
    )
    return is_selecting and len(run.found["fit"]) >= number_of_fits(run.settings)
