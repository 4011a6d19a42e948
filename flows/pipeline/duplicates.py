"""Find the duplicates across shards: exact ones by the hashes of their texts, then near ones by words or vectors."""

from contextlib import nullcontext
from typing import Any

from fineweb_mask.flows.pipeline.fit import Models
from fineweb_mask.flows.pipeline.run import Files, PerShard, Run
from fineweb_mask.models.settings.quality import EduScorerSettings
from fineweb_mask.tasks.dedup.buckets import bucket_jobs
from fineweb_mask.tasks.dedup.duplicates import (
    DedupJob,
    NearDedupJob,
    in_order_of_arrival,
    no_duplicates,
    remember_arrivals,
)
from fineweb_mask.tasks.dedup.sort import CentresJob, sort_rows
from fineweb_mask.tasks.embed import embed
from fineweb_mask.tasks.inference.model_files import ModelFolder
from fineweb_mask.tasks.workspace.references import StageFile, digest


def find_duplicates(run: Run, documents: Files, vectors: Files, models: Models) -> Files:
    """Return the rows of every shard that are duplicates, of whatever kind is looked for.

    Of equal documents, that of the shard that came into the workspace first is kept.
    """
    run.require_all(documents, "ingest")
    duplicates = PerShard({name: no_duplicates(name) for name in documents})
    ingest = run.settings.ingest
    if ingest.exact_dedup == "corpus" or ingest.near_dedup != "off":
        in_order = _in_order_of_arrival(run, documents)
        if ingest.exact_dedup == "corpus":
            sorting = run.jobs(sort_rows, file=in_order, by="hash")
            sorted_rows = [job.reference(job.file.rows) for job in sorting.values()]
            listing = DedupJob(root=run.root, sorted_rows=sorted_rows)
            duplicates = _listed(run, sorting, listing, comparison="repeats")
        if ingest.near_dedup != "off":
            duplicates = _near(run, in_order, duplicates, vectors, models)
    run.duplicates = duplicates
    return duplicates


def sort_shards(run: Run, documents: Files) -> None:
    """Sort the rows of every shard by what they are compared by, as far as the documents alone tell it."""
    ingest = run.settings.ingest
    if ingest.exact_dedup == "corpus":
        run.map(sort_rows, file=documents, by="hash")
    if ingest.near_dedup == "minhash":
        run.map(sort_rows, file=documents, by="signatures", minhash=ingest.minhash)


def _in_order_of_arrival(run: Run, documents: Files) -> Files:
    """Return the documents in the order in which their shards came into the workspace, which is remembered."""
    with run.workspace.alone() if run.remembers else nullcontext():
        names = in_order_of_arrival(run.workspace, documents)
        if run.remembers:
            remember_arrivals(run.workspace, names)
    return PerShard({name: documents[name] for name in names})


def _near(run: Run, documents: Files, exact: Files, vectors: Files, models: Models) -> Files:
    settings = run.settings.ingest
    options: dict[str, Any]
    if settings.near_dedup == "minhash":
        sorting = run.jobs(sort_rows, file=documents, by="signatures", minhash=settings.minhash)
        keys, options = settings.minhash.bands, {"comparison": "pairs"}
    else:
        in_order = PerShard({name: vectors[name] for name in documents if name in vectors})
        centres = _centres(run, in_order, models)
        sorting = run.jobs(sort_rows, file=in_order, by="cells", semantic=settings.semantic, centres=centres)
        dimensions = max((int(file.details.get("dimensions", 0)) for file in vectors.values()), default=0)
        options = {"comparison": "similar", "threshold": settings.semantic.threshold, "dimensions": dimensions}
        keys = 1
    listing = NearDedupJob(
        root=run.root,
        sorted_rows=[job.reference(keys * documents[name].rows) for name, job in sorting.items()],
        exact=[exact[name] for name in sorting],
    )
    return _listed(run, sorting, listing, **options)


def _listed(run: Run, sorting: PerShard[Any], listing: DedupJob | NearDedupJob, **options: Any) -> Files:  # noqa: ANN401
    """Return the duplicates of every shard; unless they are listed already, they are looked for in buckets.

    `options` are arguments of `bucket_jobs`.
    """
    run.map(sorting)
    if run.done(listing) is None:
        memory_limit = run.settings.materialize.memory_limit
        buckets = bucket_jobs(run.root, sorted_rows=listing.sorted_rows, memory_limit=memory_limit, **options)
        listing = listing.model_copy(update={"buckets": tuple(run.all(buckets))})
    run.one(listing)
    return run.files_of(listing)


def _centres(run: Run, vectors: Files, models: Models) -> StageFile:
    """Return the centres of the clusters that vectors are compared in, fitted on the sample of the corpus."""
    encoder = models.encoder
    if encoder is None:
        [edu] = [model for model in models.quality.scorers if isinstance(model.settings, EduScorerSettings)]
        encoder = ModelFolder(path=edu.path, fingerprint=edu.identity)
    made_by = run.jobs(embed, documents=vectors, model=encoder, settings=run.settings.embedding)
    job = next(iter(made_by.values()))
    return run.one(
        CentresJob(
            root=run.root,
            embeddings=[vectors[name] for name in run.sample if name in vectors],
            model=digest([job.key.settings, job.model.fingerprint]),
            settings=run.settings.ingest.semantic,
        )
    )
