"""Have a workspace's catalog show the dataset that is there, also while a newer run is not finished.

The run that makes a dataset writes the catalog at its end, and what a later run makes has other names: the catalog is
right until another dataset is in place. One that is lost or damaged is written again, by the last recipe if that made
the dataset, else by the earlier one that the dataset's record names.
"""

import os
from contextlib import chdir, suppress

from fineweb_mask.flows.pipeline.records import shard_files
from fineweb_mask.flows.pipeline.run import Run
from fineweb_mask.flows.status.inspection import inspect_recipe, last_run
from fineweb_mask.models.errors import WorkspaceError
from fineweb_mask.models.settings import PipelineSettings
from fineweb_mask.tasks.dataset.output import MATERIALIZE, Output
from fineweb_mask.tasks.materialize import MaterializeJob, recipe_recorded
from fineweb_mask.tasks.workspace.manifest import PROVENANCE
from fineweb_mask.tasks.workspace.records.runs import LastRun, run_records
from fineweb_mask.tasks.workspace.workspace import Workspace

UNFINISHED = "the last run, of other settings or files, is not finished: the tables are those of the dataset before it"
UNKNOWN = "the dataset is not of the last run, and no record of a run tells of which: the tables are the last run's"


class CatalogError(WorkspaceError, ValueError):
    """There is no catalog of the workspace as it is now."""


def ensure_catalog(folder: str) -> str:
    """Write the catalog unless it is that of the dataset; return what a reader of it must know, mostly nothing.

    Raises
    ------
    CatalogError
        If there is none and it cannot be written: the folder is no workspace, or what its runs read is out of reach.
    """
    from fineweb_mask.tasks.catalog.views import is_current, is_newer_than, write_catalog  # DuckDB

    workspace = Workspace(folder)
    if is_current(workspace):
        return ""
    if not workspace.exists(LastRun.path(workspace)):
        raise CatalogError(
            f"{folder} is no workspace: no run was started there: first `fineweb-mask run RECIPE --workspace {folder}`"
        )
    try:
        _, last, start = last_run(folder)
        with chdir(start):
            found, note = inspect_recipe(workspace, last.settings), ""
            output = Output.of(workspace, last.settings.materialize)
            record = output.folder / PROVENANCE
            if not _made_the_dataset(found) and output.whole() is not None:
                note = UNFINISHED
                if is_newer_than(workspace, record):
                    return note
                earlier = of_the_dataset(found)
                found, note = (found, UNKNOWN) if earlier is None else (earlier, note)
        with workspace.in_use(), workspace.alone():
            path = write_catalog(workspace, shard_files(found), found.losses)
            if note:
                changed = record.stat().st_mtime_ns if record.exists() else 0
                os.utime(path, ns=(changed, changed))  # so the next reader is told, too
    except (OSError, ValueError, ImportError, WorkspaceError) as error:
        if not is_newer_than(workspace):
            raise CatalogError(str(error)) from error
        note = f"the catalog is older than the last run, and cannot be rebuilt: {error}"
    return note


def of_the_dataset(last: Run) -> Run | None:
    """Return a run that has looked at what the dataset was made of, if it is not of the last run; None if not known."""
    workspace = last.workspace
    _, _, start = last_run(workspace.address)
    with chdir(start):
        record = Output.of(workspace, last.settings.materialize).whole()
        if record is None or _made_the_dataset(last):
            return None
        sources = {source["relative"] for source in record.details["sources"]}
        for recipe in (last.settings, *_earlier_recipes(last)):
            if recipe_recorded(recipe) == record.details["recipe"]:
                with suppress(OSError, ValueError, ImportError):  # what it read may be gone
                    if _made_the_dataset(found := inspect_recipe(workspace, recipe, sources)):
                        return found
    return None


def _earlier_recipes(last: Run) -> list[PipelineSettings]:
    """Return the recipes of the runs that have records, the newest first."""
    found: list[PipelineSettings] = []
    for record in run_records(last.workspace):
        with suppress(ValueError):
            settings = record.settings(last.settings.workspace)
            found += [] if settings in found else [settings]
    return found


def _made_the_dataset(found: Run) -> bool:
    return any(isinstance(job, MaterializeJob) and file is not None for job, file in found.found[MATERIALIZE])
