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
from fineweb_mask.tasks.ledger.decisions import Corpus, Explanation, explain, explain_gone
from fineweb_mask.tasks.ledger.lookup import find_documents, find_dropped

SHOWN = 10
"""Documents of one id or URL that are explained."""
NOT_KEPT = "What ingest dropped is not known: set ingest.keep_dropped, and run the recipe again."


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
    found, notes = inspect_workspace(folder), list[str]()
    shards = shard_files(found)
    if not any(shard.masks.path for shard in shards) and (earlier := of_the_dataset(found)) is not None:
        found, shards, notes = earlier, shard_files(earlier), [UNFINISHED.replace("the tables are", "this is")]
    if not shards:
        raise SettingsError(f"{folder} has no documents: run its recipe first, as far as ingest at least")
    corpus, wanted = Corpus(found.workspace, found.settings, shards), list(dict.fromkeys(documents))
    answers = {name: list[Explanation]() for name in wanted}
    with chdir(last_run(folder)[2]):
        for name, refs in find_documents(corpus.workspace, shards, wanted).items():
            answers[name] += [explain(corpus, ref, name) for ref in refs[:SHOWN]]
            if len(refs) > SHOWN:
                notes.append(f"{name}: {len(refs) - SHOWN:,} more documents have it")
        for name, gone in find_dropped(corpus.workspace, shards, wanted):
            answers[name].append(explain_gone(corpus, gone, name))
    unknown = [name for name in wanted if not answers[name]]
    if unknown and not found.settings.ingest.keep_dropped:
        notes.append(NOT_KEPT)
    return WhySummary(
        status="unknown" if unknown else "done",
        workspace=corpus.workspace.display_path(corpus.workspace.root),
        documents=[one for name in wanted for one in answers[name][:SHOWN]],
        unknown=unknown,
        notes=notes,
    )
