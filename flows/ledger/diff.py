"""Compare two workspaces, datasets or versions of one, and write a page on what changed."""

from contextlib import chdir
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from pydantic import BaseModel

from fineweb_mask.flows.display.prefect_ui import artifact_key, publish_page
from fineweb_mask.flows.pipeline.records import shard_files
from fineweb_mask.flows.pipeline.run import Run
from fineweb_mask.flows.pipeline.start import as_flow
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
from fineweb_mask.tasks.ledger.difference import compare, difference_page
from fineweb_mask.tasks.ledger.groups import check_groups
from fineweb_mask.tasks.ledger.sides import DatasetSide, Side, WorkspaceSide
from fineweb_mask.tasks.outputs import check_output
from fineweb_mask.tasks.reporting.page import write_page
from fineweb_mask.tasks.workspace.manifest import read_manifest
from fineweb_mask.tasks.workspace.records.runs import RunRecord, run_records
from fineweb_mask.tasks.workspace.references import StageKey, digest

STAGE = "diff"
LISTED = 5
"""Runs that are named to a person who looks for another."""


class DiffSummary(BaseModel):
    """What changed between two sides; `fineweb-mask diff --json` prints it."""

    status: Literal["done", "changed"]
    page: str
    metrics: str
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
    entered_by: list[dict[str, Any]]  # by what the earlier side decided
    left_by: list[dict[str, Any]]
    groups: list[dict[str, Any]]
    scores: list[dict[str, Any]]
    steps: list[dict[str, Any]]
    examples: list[dict[str, Any]]


@as_flow("diff", "diff {a} {b}")
def diff(a: str, b: str, by: str = "dump", tolerance: float | None = None, output: str = "diff") -> DiffSummary:
    """Compare what two workspaces or datasets hold, and write a page on what entered and left, and why.

    Parameters
    ----------
    a, b
        The earlier and the later: each a workspace, a dataset, or `WORKSPACE@RUN`, an earlier run of a workspace by
        the beginning of the name of its record in `runs/`.
    by
        Column whose values are groups.
    tolerance
        Share of the documents that either selects which may differ.
    output
        Folder of the page.

    Raises
    ------
    FinewebMaskError
        If one is neither, has no selection, or the folder cannot be replaced.
    """
    found = compared(a, b, by, tolerance, output)
    publish_page(Path(output), artifact_key(STAGE, b), f"What changed from {a} to {b}.")
    return found


def compared(
    a: str | Path, b: str | Path, by: str = "dump", tolerance: float | None = None, output: str | Path = "diff"
) -> DiffSummary:
    """Compare what two workspaces or datasets hold, and write a page on it: `diff` without Prefect.

    Parameters
    ----------
    a, b
        The earlier and the later: each a workspace or a dataset, a folder or URL, or `WORKSPACE@RUN`, an earlier run.
    by
        Column whose values are groups.
    tolerance
        Share of the documents that either selects which may differ.
    output
        Folder of the page.

    Returns
    -------
    DiffSummary
        Documents and tokens of both, what entered and left, by group, how the scores drifted, and examples.

    Raises
    ------
    FinewebMaskError
        If one is neither, has no selection, or the folder cannot be replaced.
    """
    a, b, output = str(a), str(b), str(output)
    check_options(a, b, tolerance, output)
    sides = [side_of(place, by) for place in (a, b)]
    with TemporaryDirectory(prefix="fineweb-mask-") as folder:
        found = compare(sides, by, Path(folder) / "spill", tolerance)
    page, target = difference_page(found), Path(output)
    key = StageKey(
        stage=STAGE, version=1, settings=digest([by, tolerance]), inputs=digest([one.fingerprint for one in sides])
    )
    target.mkdir(parents=True, exist_ok=True)
    write_page(target, page, key)
    status = "changed" if found["is_above"] else "done"
    return DiffSummary(status=status, page=str(target / "index.html"), metrics=str(target / "metrics.json"), **found)


def check_options(a: str, b: str, tolerance: float | None, output: str) -> None:
    """Check what can be checked before anything is read.

    Raises
    ------
    SettingsError
        If the tolerance is no share, or the folder cannot be replaced.
    """
    if tolerance is not None and not 0 <= tolerance <= 1:
        raise SettingsError(f"--tolerance must be a share from 0 to 1, received {tolerance:g}")
    last = read_manifest(Path(output) / "manifest.json")
    is_own = last is not None and last.key.stage == STAGE
    check_output(output, "--output", [a, b], replaces=is_own, folder=True)


def side_of(place: str, by: str) -> Side:
    """Return what a place holds: a workspace, an earlier run of one, or a dataset.

    Raises
    ------
    FinewebMaskError
        If it is neither, has no selection, or no column `by`.
    """
    try:
        workspace = open_workspace(place)
    except StatusError as no_workspace:
        folder, at, run = place.rpartition("@")
        if at and _is_workspace(folder):
            return _selection(place, _earlier(folder, run), by)
        try:
            dataset = find_dataset(place)
            return DatasetSide(place, dataset, read_provenance(dataset))
        except VerifyError as error:
            raise SettingsError(f"{error}; {no_workspace}: name a workspace, a dataset or WORKSPACE@RUN") from error
    found = inspect_workspace(place)
    if not any(shard.masks.path for shard in shard_files(found)):
        found = of_the_dataset(found) or found  # a newer run is not finished
    return _selection(workspace.display_path(workspace.root), found, by)


def _is_workspace(folder: str) -> bool:
    try:
        open_workspace(folder)
    except StatusError:
        return False
    return True


def _selection(name: str, found: Run, by: str) -> WorkspaceSide:
    shards = [shard for shard in shard_files(found) if shard.masks.path]
    if not shards:
        raise SettingsError(f"{name} has no selection, or its files were removed: run its recipe again")
    check_groups(found.workspace, shards, by)
    return WorkspaceSide(name, found.workspace, found.settings, shards)


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
