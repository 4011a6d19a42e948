"""Answer what became of documents, and compare two selections, from workspaces' files; nothing needs Prefect."""

from collections.abc import Sequence
from contextlib import chdir
from html import escape
from pathlib import Path
from typing import Literal

from pydantic import BaseModel

from fineweb_mask.flows.pipeline.records import shard_files
from fineweb_mask.flows.pipeline.run import Run
from fineweb_mask.flows.status.catalog import UNFINISHED, of_the_dataset
from fineweb_mask.flows.status.inspection import StatusError, inspect_recipe, inspect_workspace, last_run
from fineweb_mask.models.errors import SettingsError
from fineweb_mask.tasks.ledger.decisions import Corpus, Explanation, explain
from fineweb_mask.tasks.ledger.difference import DiffSummary, compare
from fineweb_mask.tasks.workspace.records.runs import RunRecord, run_records

SHOWN = 10
"""Documents of one id or URL that are told of."""
LISTED = 5
"""Runs that are named to a person who looks for another."""


class WhySummary(BaseModel):
    """What became of documents; `fineweb-mask why --json` prints it."""

    status: Literal["done", "unknown"]
    workspace: str
    documents: list[Explanation]
    unknown: list[str]  # ids and URLs that the workspace has not
    notes: list[str]

    def __str__(self) -> str:
        """Return it as a person reads it: a paragraph for each document."""
        found = list[str]()
        for one in self.documents:
            place = one.shard if one.row is None else f"{one.shard} row {one.row:,}"
            found.append(f"{one.url or one.id}: {one.outcome}  {place}, row {one.source_row:,} of its file")
            found += [f"  {step.stage:<7} {step.decision}: {step.reason}" for step in one.decisions]
        return "\n".join([*found, *(f"{name}: not found" for name in self.unknown), *self.notes])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """Return what a notebook shows."""
        return f"<pre>{escape(str(self))}</pre>"


def why(folder: str | Path, documents: Sequence[str]) -> WhySummary:
    """Return every stage's decision on documents.

    Parameters
    ----------
    folder
        The workspace: a folder or URL.
    documents
        URLs or ids.

    Raises
    ------
    StatusError
        If the folder is no workspace, or its source or models are out of reach.
    SettingsError
        If nothing is ingested yet.
    """
    last = inspect_workspace(folder)
    run = _that_selected(last)
    corpus = Corpus(run.workspace, run.settings, shard_files(run))
    if not corpus.shards:
        raise SettingsError(f"{folder} has no documents: run its recipe first, as far as ingest at least")
    notes = [] if run is last else [UNFINISHED.replace("the tables are", "this is")]
    wanted = list(dict.fromkeys(documents))
    with chdir(last_run(folder)[2]):
        found = explain(corpus, wanted)
    answers = {name: [one for one in found if name in {one.id, one.url}] for name in wanted}
    notes += [
        f"{name}: {len(some) - SHOWN:,} more documents have it" for name, some in answers.items() if len(some) > SHOWN
    ]
    unknown = [name for name, some in answers.items() if not some]
    return WhySummary(
        status="unknown" if unknown else "done",
        workspace=last.workspace.display_path(last.workspace.root),
        documents=[one for some in answers.values() for one in some[:SHOWN]],
        unknown=unknown,
        notes=notes,
    )


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
    return compare([(str(place), _side_of(str(place))) for place in (a, b)], by, tolerance)


def _that_selected(last: Run) -> Run:
    """Return the last run, or the one that made the dataset if the last is not finished and that one is known."""
    return last if any(shard.masks.path for shard in shard_files(last)) else of_the_dataset(last) or last


def _side_of(place: str) -> Corpus:
    """Return the selection of a workspace, or of an earlier run of one."""
    try:
        found = _that_selected(inspect_workspace(place))
    except StatusError:
        folder, at, run = place.rpartition("@")
        if not at:
            raise
        found = _earlier(folder, run)
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
