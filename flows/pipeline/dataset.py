"""Write the dataset partition by partition, then the training files and the report."""

from pathlib import Path
from typing import NamedTuple

from fineweb_mask.flows.pipeline.run import Run
from fineweb_mask.flows.pipeline.selection import Selection
from fineweb_mask.tasks.dataset.output import Output
from fineweb_mask.tasks.dataset.partitioning import Partitioning
from fineweb_mask.tasks.dataset.parts import Parts
from fineweb_mask.tasks.export import ExportJob
from fineweb_mask.tasks.materialize import MaterializeJob
from fineweb_mask.tasks.report import ReportJob
from fineweb_mask.tasks.workspace.references import StageFile


class Curated(NamedTuple):
    """What a run of the pipeline made."""

    selection: Selection
    dataset: StageFile
    exports: dict[str, Path]  # folders of training files, by name


def materialize(run: Run, selection: Selection) -> StageFile:
    """Write the files of all partitions, and put them in place as the dataset."""
    parts = Partitioning(run.root, selection.shards, run.shards, run.settings.materialize, run.at_once)
    job = MaterializeJob(
        root=run.root,
        inputs=parts.inputs,
        version=parts.version,
        counts=selection.counts,
        blocks=selection.blocks,
        recipe=run.settings,
    )
    if run.remembers:
        _remove_left_parts(parts, job)
    if run.done(job) is None:
        survey = run.one(parts.survey())
        shuffled = run.all(parts.shuffles(survey)) if parts.is_shuffled else []
        counted = run.all(parts.counts(survey))
        written = run.all(parts.partitions(survey, shuffled))
        update = {
            "survey": survey,
            "shuffled": tuple(shuffled),
            "counted": tuple(counted),
            "partitions": tuple(written),
        }
        job = job.model_copy(update=update)
    return run.one(job)


def _remove_left_parts(parts: Partitioning, dataset: MaterializeJob) -> None:
    """Remove what a run left that was killed after it had put the dataset in place, before it removed its parts."""
    if (survey := parts.survey().current()) is None or dataset.current() is None:
        return
    shuffled = parts.shuffles(survey) if parts.is_shuffled else []
    streams = [file for job in shuffled if (file := job.current()) is not None]
    made = [*parts.counts(survey), *(parts.partitions(survey, streams) if len(streams) == len(shuffled) else [])]
    left = [file for job in made if (file := job.current()) is not None]
    with dataset.workspace.alone():
        Parts.of(dataset.workspace, dataset.recipe.materialize, dataset.version).remove([*left, *streams, survey])


def export(run: Run, dataset: StageFile) -> dict[str, Path]:
    """Write the training files of the dataset, and return their folders by name."""
    output = Output.of(run.workspace, run.settings.materialize)
    own = f"{run.root}/dataset" if run.workspace.url is not None else str(output.folder)
    place = output.url or (own if output.is_own else str(output.folder))
    jobs = [
        ExportJob(root=run.root, dataset=dataset, place=place, settings=settings)
        for settings in run.settings.materialize.export
    ]
    run.all(jobs)
    return {job.settings.folder: job.folder for job in jobs}


def report(run: Run, selection: Selection, dataset: StageFile) -> StageFile:
    """Write the report on the dataset."""
    job = ReportJob(
        root=run.root,
        dataset=dataset,
        shards=selection.shards,
        counts=selection.counts,
        blocks=selection.blocks,
        stages=run.times,
        settings=run.settings.report,
    )
    return run.one(job)
