"""Answer what became of documents, from a workspace's files; nothing needs Prefect."""

from collections.abc import Sequence
from contextlib import chdir
from html import escape
from pathlib import Path
from typing import Literal

from pydantic import BaseModel

from fineweb_mask.flows.pipeline.records import shard_files
from fineweb_mask.flows.status.catalog import UNFINISHED, of_the_dataset
from fineweb_mask.flows.status.inspection import inspect_workspace, last_run
from fineweb_mask.models.errors import SettingsError
from fineweb_mask.tasks.ledger.decisions import Corpus, Explanation, explain

SHOWN = 10
"""Documents of one id or URL that are told of."""


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


def explained(folder: str | Path, documents: Sequence[str]) -> WhySummary:
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
    run, notes = inspect_workspace(folder), list[str]()
    shards = shard_files(run)
    if not any(shard.masks.path for shard in shards) and (earlier := of_the_dataset(run)) is not None:
        run, shards, notes = earlier, shard_files(earlier), [UNFINISHED.replace("the tables are", "this is")]
    if not shards:
        raise SettingsError(f"{folder} has no documents: run its recipe first, as far as ingest at least")
    wanted = list(dict.fromkeys(documents))
    with chdir(last_run(folder)[2]):
        found = explain(Corpus(run.workspace, run.settings, shards), wanted)
    answers = {name: [one for one in found if name in {one.id, one.url}] for name in wanted}
    notes += [
        f"{name}: {len(some) - SHOWN:,} more documents have it" for name, some in answers.items() if len(some) > SHOWN
    ]
    unknown = [name for name, some in answers.items() if not some]
    return WhySummary(
        status="unknown" if unknown else "done",
        workspace=run.workspace.display_path(run.workspace.root),
        documents=[one for some in answers.values() for one in some[:SHOWN]],
        unknown=unknown,
        notes=notes,
    )
