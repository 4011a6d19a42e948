"""Find the duplicates across shards: exact ones by the hashes of their texts, near ones, and those of one URL."""

from fineweb_mask.flows.pipeline.run import Files, PerShard, Run
from fineweb_mask.models.dedup.minhash import Sketch
from fineweb_mask.tasks.dedup.duplicates import DedupJob, no_duplicates
from fineweb_mask.tasks.dedup.sketch import SketchJob, sketch
from fineweb_mask.tasks.source.discovery import SourceShard, find_files


def find_duplicates(run: Run, documents: Files) -> Files:
    """Return the rows of every shard that are duplicates, of whatever kind is looked for.

    Of equal documents, that of the shard of the first name is kept; of others, by `ingest.copies`.
    """
    run.require_all(documents)
    run.duplicates = PerShard({name: no_duplicates(name) for name in documents})
    ingest = run.settings.ingest
    if ingest.compares_shards:
        in_order, others, sketched = PerShard(sorted(documents.items())), list[SourceShard](), list[SketchJob]()
        if ingest.near_dedup is not None:
            how = Sketch.for_threshold(ingest.near_dedup)
            others = [file for path in ingest.against for file in find_files(path, "ingest.against")]
            sketched = [SketchJob(root=run.root, documents=file, sketch=how) for file in others]
        job = DedupJob(
            root=run.root,
            documents=(*others, *in_order.values()),
            signatures=(*run.all(sketched), *sketch_shards(run, in_order).values()),
            settings=ingest,
            memory_limit=run.settings.engine.memory_limit,
        )
        run.one(job)
        run.duplicates = run.files_of(job)
    return run.duplicates


def sketch_shards(run: Run, documents: Files) -> Files:
    """Return the sketches of every shard, none if near-duplicates are not looked for."""
    if run.settings.ingest.near_dedup is None:
        return PerShard()
    return run.map(sketch, documents=documents, sketch=Sketch.for_threshold(run.settings.ingest.near_dedup))
