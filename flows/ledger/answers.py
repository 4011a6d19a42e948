"""Answer what became of documents, and what would become of a text, from a workspace's files; nothing needs Prefect."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import chdir, suppress
from html import escape
from pathlib import Path
from typing import Literal

from pydantic import BaseModel

from fineweb_mask.flows.pipeline.records import shard_files
from fineweb_mask.flows.pipeline.run import Run
from fineweb_mask.flows.status.catalog import UNFINISHED, of_the_dataset
from fineweb_mask.flows.status.inspection import inspect_workspace, last_run
from fineweb_mask.models.documents import content_hash
from fineweb_mask.models.errors import SettingsError
from fineweb_mask.tasks.dedup.sort import SortJob
from fineweb_mask.tasks.ingest import IngestJob
from fineweb_mask.tasks.ledger.decisions import DROPPED, Corpus, Decision, Explanation, explain, explain_gone
from fineweb_mask.tasks.ledger.lookup import find_documents, find_dropped, find_in_source, find_texts
from fineweb_mask.tasks.select import SelectJob

SHOWN = 10
"""Documents of one URL or text that are explained."""


class WhySummary(BaseModel):
    """What became of documents; `fineweb-mask why --json` prints it."""

    status: Literal["done", "unknown"]
    workspace: str
    documents: list[Explanation]
    unknown: list[str]  # ids and URLs that neither the workspace nor its source has
    notes: list[str]

    def __str__(self) -> str:
        """Return it as a person reads it: a paragraph for each document."""
        found = list[str]()
        for one in self.documents:
            place = "" if one.shard is None else f"  {one.shard}"
            place += "" if one.row is None else f" row {one.row:,}"
            place += f", row {one.source_row:,} of its file" if one.source_row is not None else ""
            found.append(f"{one.url or one.id or one.asked}: {one.outcome}{place}")
            found += [f"  {step.stage:<7} {step.decision}: {step.reason}" for step in one.decisions]
        return "\n".join([*found, *(f"{name}: not found" for name in self.unknown), *self.notes])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """Return what a notebook shows."""
        return f"<pre>{escape(str(self))}</pre>"


def explained(folder: str | Path, documents: Sequence[str] = (), texts: Mapping[str, str] | None = None) -> WhySummary:
    """Return every stage's decision on documents and texts.

    Parameters
    ----------
    folder
        The workspace: a folder or URL.
    documents
        URLs or ids.
    texts
        Texts by the names that they are called by. One that no document has is judged as if it came now.

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
    with chdir(last_run(folder)[2]):
        answers = {name: list[Explanation]() for name in wanted}
        for name, refs in find_documents(corpus.workspace, shards, wanted).items():
            answers[name] += [explain(corpus, ref, name) for ref in refs[:SHOWN]]
            if len(refs) > SHOWN:
                notes.append(f"{name}: {len(refs) - SHOWN:,} more documents have it")
        for name, gone in find_dropped(corpus.workspace, shards, wanted):
            answers[name].append(explain_gone(corpus, gone, name))
        missing = [name for name in wanted if not answers[name]]
        if missing:
            for one in _in_source(found, corpus, missing):
                answers[one.asked].append(one)
        of_texts = [one for name, text in (texts or {}).items() for one in _of_text(found, corpus, name, text)]
    unknown = [name for name in wanted if not answers[name]]
    return WhySummary(
        status="unknown" if unknown else "done",
        workspace=corpus.workspace.display_path(corpus.workspace.root),
        documents=[*(one for name in wanted for one in answers[name][:SHOWN]), *of_texts],
        unknown=unknown,
        notes=notes,
    )


def _in_source(found: Run, corpus: Corpus, missing: Sequence[str]) -> Iterator[Explanation]:
    """Yield what ingest would say, or said, of rows of the source that are not among the documents."""
    from fineweb_mask.tasks.ledger.outside import explain_source_row

    jobs = {job.name: job for job, _ in found.found["ingest"] if isinstance(job, IngestJob)}
    ingested = {shard.name for shard in corpus.shards}
    for name, row in find_in_source(list(found.shards.values()), found.settings.source, missing):
        shard = row.shard.name
        if shard in ingested:
            yield explain_source_row(corpus, jobs[shard], row, name)
            continue
        reason = found.quarantined.get(shard, "its file is not ingested yet: run the recipe again")
        outcome = DROPPED if shard in found.quarantined else "not ingested yet"
        decision = Decision(stage="ingest", decision=outcome, reason=reason)
        yield Explanation(asked=name, shard=shard, source_row=row.row, outcome=outcome, decisions=[decision])


def _of_text(found: Run, corpus: Corpus, name: str, text: str) -> list[Explanation]:
    """Return the decisions on the documents of a text, or what they would be on one that no document has."""
    from fineweb_mask.flows.status.rule import ready  # torch, whose import takes seconds
    from fineweb_mask.tasks.ledger.outside import Judges, explain_text

    own = content_hash(text)
    if refs := find_texts(corpus.workspace, corpus.shards, [own]).get(own):
        return [explain(corpus, ref, name) for ref in refs[:SHOWN]]
    ingesting = next(job for job, _ in found.found["ingest"] if isinstance(job, IngestJob))
    sorting = [(job, file) for job, file in found.found["dedup"] if isinstance(job, SortJob)]
    rules = [job.policy for job, file in found.found["select"] if file is not None and isinstance(job, SelectJob)]
    models = None
    with suppress(SettingsError):
        models = ready(found)[1]
    judges = Judges(
        ingest=ingesting,
        models=models,
        rule=next((rule for rule in rules if rule is not None), None),
        signatures={job.name: file for job, file in sorting if job.by == "signatures" and file is not None},
    )
    return [explain_text(corpus, judges, text, name)]
