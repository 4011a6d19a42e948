"""Find the duplicates across shards: exact ones by the hashes of their texts, near ones, and those of one URL."""

from fineweb_mask.flows.pipeline.run import Files, PerShard, Run
from fineweb_mask.models.dedup.minhash import Sketch
from fineweb_mask.tasks.dedup.duplicates import DedupJob, Shard, no_duplicates
from fineweb_mask.tasks.dedup.sketch import SketchJob, sketch
from fineweb_mask.tasks.source.discovery import find_files


def find_duplicates(run: Run, documents: Files) -> Files:
    """Return the rows of every shard that are duplicates, of whatever kind is looked for.

    Of equal documents, that of the shard of the first name is kept; of others, by `ingest.copies`.
    """
    run.require_all(documents)
    run.duplicates = PerShard({name: no_duplicates(name) for name in documents})
    if run.settings.ingest.compares_shards:
        in_order = PerShard(sorted(documents.items()))
        sketches = sketch_shards(run, in_order)
        own = [Shard(documents=file, signatures=sketches.get(name)) for name, file in in_order.items()]
        job = DedupJob(
            root=run.root,
            shards=(*_other_corpora(run), *own),
            settings=run.settings.ingest,
            memory_limit=run.settings.engine.memory_limit,
        )
        run.one(job)
        run.duplicates = run.files_of(job)
    return run.duplicates


def sketch_shards(run: Run, documents: Files) -> Files:
    """Return the sketches of every shard, none if near-duplicates are not looked for."""
    ingest = run.settings.ingest
    if ingest.near_dedup is None:
        return PerShard()
    return run.map(sketch, documents=documents, sketch=Sketch.for_threshold(ingest.near_dedup))


def _other_corpora(run: Run) -> list[Shard]:
    """Return the files of other corpora that documents are compared with, and their sketches."""
    ingest = run.settings.ingest
    if ingest.near_dedup is None:
        return []
    files = [file for path in ingest.against for file in find_files(path, "ingest.against")]
    how = Sketch.for_threshold(ingest.near_dedup)
    sketches = run.all([SketchJob(root=run.root, documents=file, sketch=how) for file in files])
    return [Shard(documents=file, signatures=made) for file, made in zip(files, sketches, strict=True)]
