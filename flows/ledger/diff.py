"""Compare two workspaces, datasets or versions of one; nothing needs Prefect."""

from contextlib import chdir
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from pydantic import BaseModel

from fineweb_mask.flows.pipeline.records import shard_files
from fineweb_mask.flows.pipeline.run import Run
from fineweb_mask.flows.status.catalog import of_the_dataset
from fineweb_mask.flows.status.inspection import (
    StatusError,
    inspect_recipe,
    inspect_workspace,
    last_run,
    open_workspace,
)
from fineweb_mask.models.errors import SettingsError
from fineweb_mask.tasks.dataset.verify import VerifyError, find_dataset, read_provenance
from fineweb_mask.tasks.ledger.decisions import Corpus
from fineweb_mask.tasks.ledger.difference import DatasetSide, Side, WorkspaceSide, compare
from fineweb_mask.tasks.workspace.records.runs import RunRecord, run_records

LISTED = 5
"""Runs that are named to a person who looks for another."""


class DiffSummary(BaseModel):
    """What changed between two sides; `fineweb-mask diff --json` prints it."""

    status: Literal["done", "changed"]
    a: dict[str, Any]  # the earlier side: name, documents and tokens that are selected
    b: dict[str, Any]
    by: str
    in_both: int
    entered: int
    left: int
    other_text: int  # selected by both, with another text
    changed: float  # share of the documents that either selects which are not in both
    tolerance: float | None
    is_above: bool
    entered_by: list[dict[str, Any]]  # by what the earlier side decided, with examples
    left_by: list[dict[str, Any]]
    groups: list[dict[str, Any]]
    scores: list[dict[str, Any]]
    steps: list[dict[str, Any]]


def diff(a: str | Path, b: str | Path, by: str = "dump", tolerance: float | None = None) -> DiffSummary:
    """Compare what two workspaces or datasets hold.

    Parameters
    ----------
    a, b
        The earlier and the later: each a workspace or a dataset, a folder or URL, or `WORKSPACE@RUN`, an earlier run of
        a workspace by the beginning of the name of its record in `runs/`.
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
        If one is neither, has no selection, or no column `by`.
    """
    if tolerance is not None and not 0 <= tolerance <= 1:
        raise SettingsError(f"--tolerance must be a share from 0 to 1, received {tolerance:g}")
    sides = [_side_of(str(place)) for place in (a, b)]
    with TemporaryDirectory(prefix="fineweb-mask-") as folder:
        found = compare(sides, by, Path(folder) / "spill", tolerance)
    return DiffSummary(status="changed" if found["is_above"] else "done", **found)


def _side_of(place: str) -> Side:
    """Return what a place holds: a workspace, an earlier run of one, or a dataset.

    Raises
    ------
    FinewebMaskError
        If it is neither, or has no selection.
    """
    try:
        workspace = open_workspace(place)
    except StatusError as no_workspace:
        folder, at, run = place.rpartition("@")
        if at and _is_workspace(folder):
            return _selection(place, _earlier(folder, run))
        try:
            dataset = find_dataset(place)
            return DatasetSide(place, dataset, read_provenance(dataset))
        except VerifyError as error:
            raise SettingsError(f"{error}; {no_workspace}: name a workspace, a dataset or WORKSPACE@RUN") from error
    found = inspect_workspace(place)
    if not any(shard.masks.path for shard in shard_files(found)):
        found = of_the_dataset(found) or found  # a newer run is not finished
    return _selection(workspace.display_path(workspace.root), found)


def _is_workspace(folder: str) -> bool:
    try:
        open_workspace(folder)
    except StatusError:
        return False
    return True


def _selection(name: str, found: Run) -> WorkspaceSide:
    shards = [shard for shard in shard_files(found) if shard.masks.path]
    if not shards:
        raise SettingsError(f"{name} has no selection, or its files were removed: run its recipe again")
    return WorkspaceSide(name, Corpus(found.workspace, found.settings, shards))


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
