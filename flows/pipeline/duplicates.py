"""Find the duplicates across shards: exact ones by the hashes of their texts, then near ones, and those of one URL."""

from contextlib import nullcontext
from typing import Any

from fineweb_mask.flows.pipeline.run import Files, PerShard, Run
from fineweb_mask.models.dedup.minhash import Sketch
from fineweb_mask.tasks.dedup.buckets import Compared, bucket_jobs
from fineweb_mask.tasks.dedup.copies import Shard
from fineweb_mask.tasks.dedup.duplicates import (
    DedupJob,
    NearDedupJob,
    in_order_of_arrival,
    no_duplicates,
    remember_arrivals,
)
from fineweb_mask.tasks.dedup.references import ReferenceJob
from fineweb_mask.tasks.dedup.sort import sort_rows, sort_shingles
from fineweb_mask.tasks.source.discovery import find_files
from fineweb_mask.tasks.workspace.references import NO_FILE, StageFile


def find_duplicates(run: Run, documents: Files) -> Files:
    """Return the rows of every shard that are duplicates, of whatever kind is looked for.

    Of equal documents, that of the shard that came into the workspace first is kept; of others, by `ingest.copies`.
    """
    run.require_all(documents)
    duplicates = PerShard({name: no_duplicates(name) for name in documents})
    ingest = run.settings.ingest
    if ingest.compares_shards:
        in_order = _in_order_of_arrival(run, documents)
        if ingest.exact_dedup == "corpus":
            sorting = run.jobs(sort_rows, file=in_order, by="hash")
            sorted_rows = [job.reference(job.file.rows) for job in sorting.values()]
            listing = DedupJob(root=run.root, sorted_rows=sorted_rows)
            run.map(sorting)
            if run.done(listing) is None:
                listing = listing.model_copy(update={"buckets": tuple(_in_buckets(run, "repeats", sorted_rows))})
            run.one(listing)
            duplicates = run.files_of(listing)
        if ingest.finds_copies:
            duplicates = _copies(run, in_order, duplicates)
    run.duplicates = duplicates
    return duplicates


def sort_shards(run: Run, documents: Files) -> None:
    """Sort the rows of every shard by what they are compared by."""
    ingest = run.settings.ingest
    if ingest.exact_dedup == "corpus":
        run.map(sort_rows, file=documents, by="hash")
    if ingest.url_dedup:
        run.map(sort_rows, file=documents, by="urls")
    if ingest.near_dedup == "minhash":
        run.map(sort_rows, file=documents, by="signatures", sketch=Sketch.for_threshold(ingest.near_threshold))


def _in_order_of_arrival(run: Run, documents: Files) -> Files:
    """Return the documents in the order in which their shards came into the workspace, which is remembered."""
    with run.workspace.alone() if run.remembers else nullcontext():
        names = in_order_of_arrival(run.workspace, documents)
        if run.remembers:
            remember_arrivals(run.workspace, names)
    return PerShard({name: documents[name] for name in names})


def _copies(run: Run, documents: Files, exact: Files) -> Files:
    """Return the rows of every shard that are near-duplicates or of a URL that is kept, with the exact duplicates."""
    settings = run.settings.ingest
    documents = PerShard({**_other_corpora(run), **documents})
    threshold, found = settings.near_threshold, {}
    sketch = Sketch.for_threshold(threshold)
    if settings.near_dedup == "minhash":
        found["pairs"] = run.jobs(sort_rows, file=documents, by="signatures", sketch=sketch)
    if settings.url_dedup:
        found["urls"] = run.jobs(sort_rows, file=documents, by="urls")
    keys = {"pairs": sketch.bands, "urls": 1}
    rows = {
        kind: [jobs[name].reference(keys[kind] * file.rows) for name, file in documents.items()]
        for kind, jobs in found.items()
    }
    listing = NearDedupJob(
        root=run.root,
        sorted_rows=next(iter(rows.values())),
        urls=tuple(rows["urls"]) if len(rows) > 1 else (),
        shards=tuple(Shard(documents=file, exact=exact.get(name)) for name, file in documents.items()),
        threshold=threshold,
        copies=settings.copies,
    )
    for sorting in found.values():
        run.map(sorting)
    if run.done(listing) is None:
        preferred = {"shards": listing.shards, "copies": settings.copies}
        pairs = list[StageFile]()
        if "urls" in rows:
            pairs += _in_buckets(run, "urls", rows["urls"], **preferred)
        if "pairs" in rows:
            candidates = _in_buckets(run, "pairs", rows["pairs"], **preferred)
            places = PerShard({name: place for place, name in enumerate(documents)})
            shingles = run.map(sort_shingles, documents=documents, place=places, pairs=candidates, words=sketch.words)
            pairs += _in_buckets(run, "verified", list(shingles.values()), threshold=threshold)
        listing = listing.model_copy(update={"buckets": tuple(pairs)})
    run.one(listing)
    run.near = listing.summarised() or NO_FILE
    return run.files_of(listing)


def _other_corpora(run: Run) -> Files:
    """Return the texts of other corpora that documents are compared with, by file."""
    ingest = run.settings.ingest
    if ingest.near_dedup != "minhash":
        return PerShard()
    files = [file for path in ingest.against for file in find_files(path, "ingest.against")]
    jobs = [ReferenceJob(root=run.root, file=file) for file in files]
    return PerShard(zip((job.name for job in jobs), run.all(jobs), strict=True))


def _in_buckets(run: Run, comparison: Compared, sorted_rows: list[StageFile], **options: Any) -> list[StageFile]:  # noqa: ANN401
    """Return what a comparison of all shards finds in each of its buckets; `options` are those of `bucket_jobs`."""
    memory_limit = run.settings.engine.memory_limit
    return run.all(bucket_jobs(run.root, comparison, sorted_rows, memory_limit, **options))
