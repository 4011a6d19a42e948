"""Have a workspace's catalog show the dataset that is there, also while a newer run is not finished.

The run that makes a dataset writes the catalog at its end, and what a later run makes has other names: the catalog is
right until another dataset is in place. One that is lost or damaged is written again, by the last recipe if that made
the dataset, else by the earlier one that the dataset's record names.
"""

import os
from contextlib import chdir, suppress

from fineweb_mask.flows.pipeline.records import shard_files
from fineweb_mask.flows.pipeline.run import Run
from fineweb_mask.flows.status.inspection import StatusError, inspect_recipe, inspect_workspace, last_run
from fineweb_mask.models.errors import WorkspaceError
from fineweb_mask.tasks.dataset.output import MATERIALIZE
from fineweb_mask.tasks.materialize import MaterializeJob, recipe_recorded
from fineweb_mask.tasks.workspace.manifest import PROVENANCE
from fineweb_mask.tasks.workspace.records.runs import run_records
from fineweb_mask.tasks.workspace.workspace import Workspace

UNFINISHED = "the last run, of other settings or files, is not finished: the tables are those of the dataset before it"
UNKNOWN = "the dataset is not of the last run, and no record of a run tells of which: the tables are the last run's"


def ensure_catalog(folder: str) -> str:
    """Write the catalog unless it is that of the dataset; return what a reader of it must know, mostly nothing.

    Raises
    ------
    StatusError
        If there is none and it cannot be written: the folder is no workspace, or what its runs read is out of reach.
    """
    from fineweb_mask.tasks.catalog.views import is_current, is_newer_than, write_catalog  # DuckDB

    workspace = Workspace(folder)
    if is_current(workspace):
        return ""
    try:
        found, note = inspect_workspace(folder), ""
        record = found.output.folder / PROVENANCE
        if not _made_the_dataset(found) and found.output.whole() is not None:
            if is_newer_than(workspace, record):
                return UNFINISHED
            earlier = of_the_dataset(found)
            found, note = (found, UNKNOWN) if earlier is None else (earlier, UNFINISHED)
        with workspace.in_use(), workspace.alone():
            path = write_catalog(workspace, shard_files(found), found.losses)
            if note:
                changed = record.stat().st_mtime_ns if record.exists() else 0
                os.utime(path, ns=(changed, changed))  # so the next reader is told, too
    except (OSError, WorkspaceError) as error:
        if not is_newer_than(workspace):
            raise StatusError(str(error)) from error
        note = f"the catalog is older than the last run, and cannot be rebuilt: {error}"
    return note


def of_the_dataset(last: Run) -> Run | None:
    """Return a run that has looked at what the dataset was made of, if it is not of the last run; None if not known."""
    workspace = last.workspace
    record = last.output.whole()
    if record is None or _made_the_dataset(last):
        return None
    sources = {source["relative"] for source in record.details["sources"]}
    with chdir(last_run(workspace.address)[2]):
        recipes = [last.settings]
        for run in run_records(workspace):
            with suppress(ValueError):  # of a version that had other settings
                recipes.append(run.settings(last.settings.workspace))
        for recipe in recipes:
            if recipe_recorded(recipe) == record.details["recipe"]:
                with suppress(OSError, ValueError, ImportError):  # what it read may be gone
                    if _made_the_dataset(found := inspect_recipe(workspace, recipe, sources)):
                        return found
    return None


def _made_the_dataset(found: Run) -> bool:
    return any(isinstance(job, MaterializeJob) and file is not None for job, file in found.found[MATERIALIZE])
