"""Find and remove the files of a workspace that no recipe reaches: those of other settings, inputs or code.

A file is removed if its name tells a key that no job of the given recipes has. Where a recipe's work on a stage is not
finished, it may not be known which of the stage's files it will read: these are left.
"""

from collections.abc import Sequence, Set
from pathlib import Path

from pydantic import BaseModel, Field

from fineweb_mask.flows.pipeline.run import Run
from fineweb_mask.flows.status.catalog import of_the_dataset
from fineweb_mask.flows.status.inspection import inspect_recipe, inspect_workspace, open_workspace
from fineweb_mask.models.names import TAGGED
from fineweb_mask.models.settings import PipelineSettings
from fineweb_mask.tasks.dataset.output import UNFINISHED
from fineweb_mask.tasks.registry import STAGE_FOLDERS
from fineweb_mask.tasks.storage.atomic import remove_file
from fineweb_mask.tasks.workspace.listing import update_index
from fineweb_mask.tasks.workspace.workspace import Workspace

FOLDERS = {**STAGE_FOLDERS, "fitted": {"report"}, UNFINISHED: {"materialize"}}
"""Folders, and the stages of which one must be finished so that it is known what is read of each."""


class Removed(BaseModel):
    """What is removed from one folder of a workspace."""

    folder: str
    files: int = 0
    bytes: int = 0
    undecided: int = 0  # files that are left, because a recipe's work on the stage is not finished
    paths: list[Path] = Field(default_factory=list, exclude=True)  # what is removed


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
        reached = {workspace.relative(path) for job in jobs for path in job.paths()}
        finished = list(map(_finished, inspections))
        found = [
            _unreached(workspace, name, reached, is_decided=all(map(stages.intersection, finished)))
            for name, stages in FOLDERS.items()
        ]
        if not dry_run:
            for removed in found:
                for path in removed.paths:
                    remove_file(path)
                workspace.remove_empty_folders(removed.folder)
            update_index(workspace)
    return [removed for removed in found if removed.files or removed.undecided]


def _unreached(workspace: Workspace, folder: str, reached: Set[str], *, is_decided: bool) -> Removed:
    """Return what to remove of a folder; `is_decided` says whether it is known what the recipes read of it."""
    removed = Removed(folder=folder)
    for name, size in workspace.sizes(folder, suffix="").items():
        entry = "/".join(name.split("/")[:2])  # a file, or the folder of a model or of a dataset's parts
        if reached & {name, entry} or (folder != UNFINISHED and TAGGED.search(name) is None):
            continue
        if is_decided:
            removed.paths.append(workspace.root / name)
            removed.files += 1
            removed.bytes += size
        else:
            removed.undecided += 1
    return removed


def _finished(run: Run) -> set[str]:
    """Return the stages of which a recipe has nothing to do."""
    return {
        stage
        for stage, jobs in run.found.items()
        if all(file is not None or job.name in run.quarantined for job, file in jobs)
    }
