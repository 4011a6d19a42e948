"""Leave out the documents that the lists of `ingest.exclude` name, or erase them from the workspace."""

import logging
from typing import Any

from fineweb_mask.flows.pipeline.run import Files, PerShard, Run
from fineweb_mask.tasks.dedup.duplicates import no_duplicates
from fineweb_mask.tasks.dedup.excluded import (
    erased,
    exclude,
    find_lists,
    listed,
    remember_erased,
    source_rows,
)
from fineweb_mask.tasks.ingest import ingest
from fineweb_mask.tasks.source.discovery import SourceShard

logger = logging.getLogger(__name__)


def ingest_without_erased(run: Run, shards: PerShard[SourceShard], **fields: Any) -> Files:  # noqa: ANN401
    """Ingest shards; with `ingest.erase`, those that hold what the lists name are written again without it."""
    if not run.settings.ingest.erase:
        return run.map(ingest, shard=shards, **fields)
    before = erased(run.workspace).items()
    known = {name: rows for name, (file, rows) in before if name in shards and shards[name].fingerprint == file}
    while True:
        rows = PerShard({name: tuple(known.get(name, ())) for name in shards})
        documents = run.map(ingest, shard=shards, erased=rows, **fields)
        none = PerShard({name: no_duplicates(name) for name in documents})
        found = _named(run, documents, none, is_known=any(known.values()))
        new = {name: source_rows(run.workspace, file, documents[name]) for name, file in found.items() if file.rows}
        if not new:
            return documents
        known |= {name: sorted({*known.get(name, ()), *rows}) for name, rows in new.items()}
        remember_erased(run.workspace, {name: (shards[name].fingerprint, known[name]) for name in new})


def exclude_named(run: Run, documents: Files, duplicates: Files) -> Files:
    """Return the duplicates of every shard together with the documents that the lists name, unless these are erased."""
    if run.settings.ingest.exclude and not run.settings.ingest.erase:
        found = _named(run, documents, duplicates, is_known=False)
        run.duplicates = PerShard({name: listed(file, duplicates[name]) for name, file in found.items()})
    return run.duplicates


def _named(run: Run, documents: Files, duplicates: Files, *, is_known: bool) -> Files:
    """Return the list of every shard, and say which of the settings' names nothing."""
    lists = find_lists(run.settings.ingest.exclude)
    found = run.map(exclude, documents=documents, duplicates=duplicates, lists=lists)
    for path, known in lists if run.remembers and not is_known else ():
        if not sum(file.details["named"][known] for file in found.values()):
            logger.warning("ingest.exclude: no document has a name of %s: check how it writes URLs and ids", path)
    return found
