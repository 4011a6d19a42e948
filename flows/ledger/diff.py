"""Compare the selections of two workspaces, or of two runs of one; nothing needs Prefect."""

from contextlib import chdir
from pathlib import Path
from tempfile import TemporaryDirectory

from fineweb_mask.flows.pipeline.records import shard_files
from fineweb_mask.flows.pipeline.run import Run
from fineweb_mask.flows.status.catalog import of_the_dataset
from fineweb_mask.flows.status.inspection import StatusError, inspect_recipe, inspect_workspace, last_run
from fineweb_mask.models.errors import SettingsError
from fineweb_mask.tasks.ledger.decisions import Corpus
from fineweb_mask.tasks.ledger.difference import DiffSummary, compare
from fineweb_mask.tasks.workspace.records.runs import RunRecord, run_records

LISTED = 5
"""Runs that are named to a person who looks for another."""


def diff(a: str | Path, b: str | Path, by: str = "dump", tolerance: float | None = None) -> DiffSummary:
    """Compare what two selections hold.

    Parameters
    ----------
    a, b
        The earlier and the later: each a workspace, a folder or URL, or `WORKSPACE@RUN`, an earlier run of a workspace
        by the beginning of the name of its record in `runs/`.
    by
        Column whose values are groups.
    tolerance
        Share of the documents that either selects which may differ.

    Returns
    -------
    DiffSummary
        Documents and tokens of both, what entered and left, by group, and how the scores moved.

    Raises
    ------
    FinewebMaskError
        If one is no workspace, or has no selection or no column `by`.
    """
    if tolerance is not None and not 0 <= tolerance <= 1:
        raise SettingsError(f"--tolerance must be a share from 0 to 1, received {tolerance:g}")
    sides = [_side_of(str(place)) for place in (a, b)]
    with TemporaryDirectory(prefix="fineweb-mask-") as folder:
        return compare((str(a), str(b)), sides, by, Path(folder) / "spill", tolerance)


def _side_of(place: str) -> Corpus:
    """Return the selection of a workspace, or of an earlier run of one."""
    try:
        found = inspect_workspace(place)
    except StatusError:
        folder, at, run = place.rpartition("@")
        if not at:
            raise
        found = _earlier(folder, run)
    else:
        if not any(shard.masks.path for shard in shard_files(found)):
            found = of_the_dataset(found) or found  # a newer run is not finished
    shards = [shard for shard in shard_files(found) if shard.masks.path]
    if not shards:
        raise SettingsError(f"{place} has no selection, or its files were removed: run its recipe again")
    return Corpus(found.workspace, found.settings, shards)


def _earlier(folder: str, run: str) -> Run:
    """Return an earlier run of a workspace that has looked at what is left of it.

    Raises
    ------
    SettingsError
        If there is no such run, or more than one.
    """
    workspace, last, start = last_run(folder)
    records = [record for record in run_records(workspace) if record.flow == "curate"]
    chosen = [record for record in records if run and _name(record).startswith(run)]
    if len(chosen) != 1:
        names = ", ".join(f"{folder}@{_name(record)}" for record in records[:LISTED])
        raise SettingsError(f"{folder}@{run}: {len(chosen)} runs have such a name, name one of {names}")
    with chdir(start):
        try:
            return inspect_recipe(workspace, chosen[0].settings(last.settings.workspace))
        except (OSError, ValueError, ImportError) as error:
            raise SettingsError(f"{folder}@{run}: what it read is out of reach: {error}: name another run") from error


def _name(record: RunRecord) -> str:
    """Return the time in the name of a run's record."""
    return f"{record.started:%Y%m%dT%H%M%S}"
