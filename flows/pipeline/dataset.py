"""Write the dataset partition by partition, then the training files and the report."""

from pathlib import Path

from fineweb_mask.flows.pipeline.run import Run
from fineweb_mask.flows.pipeline.selection import SelectedShards
from fineweb_mask.tasks.dataset.partition import partition_jobs
from fineweb_mask.tasks.export import ExportJob
from fineweb_mask.tasks.materialize import MaterializeJob
from fineweb_mask.tasks.report import ReportJob
from fineweb_mask.tasks.witness.job import SELECTION, WitnessJob
from fineweb_mask.tasks.workspace.references import StageFile


def materialize(run: Run, selection: SelectedShards) -> StageFile:
    """Write the files of all partitions, and put them in place as the dataset."""
    shards = sorted(selection.shards, key=lambda shard: shard.name)
    job = MaterializeJob(
        root=run.root,
        shards=shards,
        counts=selection.counts,
        blocks=selection.blocks,
        recipe=run.settings,
        losses=run.losses,
    )
    if run.done(job) is None:
        partitions = run.all(partition_jobs(run.root, shards, run.shards, run.settings.materialize))
        job = job.model_copy(update={"partitions": tuple(partitions)})
    return run.one(job)


def export(run: Run, dataset: StageFile) -> dict[str, Path]:
    """Write the training files of the dataset, and return their folders by name."""
    jobs = [
        ExportJob(root=run.root, dataset=dataset.fingerprint, place=run.output.display_path, settings=settings)
        for settings in run.settings.materialize.export
    ]
    run.all(jobs)
    return {job.settings.folder: job.folder for job in jobs}


def report(run: Run, selection: SelectedShards, dataset: StageFile) -> StageFile:
    """Measure what the selection teaches a language model of n-grams, and write the report on the dataset."""
    teaching = WitnessJob(
        root=run.root,
        shards=selection.shards,
        selections={SELECTION: [shard.masks for shard in selection.shards]},
        threshold=run.settings.selection.alike,
    )
    job = ReportJob(
        teaching=run.one(teaching),
        root=run.root,
        dataset=dataset,
        shards=selection.shards,
        counts=selection.counts,
        blocks=selection.blocks,
        losses=run.losses,
        source=run.source,
        settings=run.settings.report,
    )
    return run.one(job)
