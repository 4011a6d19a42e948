"""Find or fit what belongs to the whole corpus: quality scorers, statistics of their scores, the encoder, lists."""

from collections.abc import Mapping
from typing import Any, NamedTuple, Self, TypeGuard

from fineweb_mask.flows.pipeline.run import Files, PerShard, Run
from fineweb_mask.flows.recipe import Refit
from fineweb_mask.models.settings import STATIC, PipelineSettings
from fineweb_mask.models.settings.quality import (
    EduScorerSettings,
    FastTextScorerSettings,
    ScorerSettings,
    SidecarScorerSettings,
)
from fineweb_mask.tasks.comparison.variants import reads_targets
from fineweb_mask.tasks.embed import resolve_encoder
from fineweb_mask.tasks.exclusion import ExclusionJob
from fineweb_mask.tasks.fit import FitClassifierJob, FitEncoderJob, FitJob, FitStatisticsJob, FitTargetsJob
from fineweb_mask.tasks.inference.model_files import ModelFolder, ModelNotFoundError
from fineweb_mask.tasks.inference.scorers import QualityModel, resolve_model, useful_processes
from fineweb_mask.tasks.selection.cells import FitCentresJob, PlanJob
from fineweb_mask.tasks.source.discovery import find_files
from fineweb_mask.tasks.source.labels import LabelsError, check_labels
from fineweb_mask.tasks.source.sidecars import Sidecar, Sidecars
from fineweb_mask.tasks.workspace.job import Stage
from fineweb_mask.tasks.workspace.references import StageFile

REFITTED: dict[Refit, list[Stage]] = {
    "encoder": [FitEncoderJob.stage],
    "quality": [FitClassifierJob.stage, FitStatisticsJob.stage],
    "selection": [FitCentresJob.stage, PlanJob.stage, FitTargetsJob.stage],
}


class PretrainedModels(NamedTuple):
    """The models that the settings name, fetched before the first stage, so that a wrong name fails at once."""

    scorers: Mapping[str, QualityModel]  # by the scorer's name
    encoder: ModelFolder | None  # None if it is built in or one of the scorers
    sidecars: Mapping[str, Sidecars]  # annotations of the source files, by the scorer's name

    @classmethod
    def of(cls, settings: PipelineSettings) -> Self:
        """Find the models on this machine or fetch them from the hub, and check the labels that others are trained on.

        Raises
        ------
        ModelNotFoundError
            With the key of the setting, if one is not there.
        """
        scorers, sidecars = dict[str, QualityModel](), dict[str, Sidecars]()
        for place, scorer in enumerate(settings.quality.scorers):
            if not is_trained(scorer):
                scorers[scorer.name] = resolve_model(scorer, place)
            elif scorer.labels is not None:
                try:
                    check_labels(scorer.labels)
                except LabelsError as error:
                    raise ModelNotFoundError(f"quality.scorers.{place}.labels: {error}") from error
            if isinstance(scorer, SidecarScorerSettings):
                id_column = settings.source.id_column
                sidecars[scorer.name] = Sidecars(scorer, id_column)
        return cls(scorers, resolve_encoder(settings.embedding), sidecars)


class Models(NamedTuple):
    """What makes the quality and the vector of a document."""

    scorers: list[QualityModel]  # in the order of the settings
    statistics: StageFile  # of their scores
    sidecars: PerShard[dict[str, Sidecar]]  # annotations of each source file, by the scorer's name
    encoder: ModelFolder

    @property
    def identities(self) -> list[str]:
        """What identifies the models of all documents, in the keys of jobs that depend on them."""
        return [*(model.identity for model in self.scorers), self.statistics.fingerprint, self.encoder.fingerprint]


def is_trained(scorer: ScorerSettings) -> TypeGuard[FastTextScorerSettings]:
    """Return whether a scorer's model is trained on labels by the pipeline."""
    return isinstance(scorer, FastTextScorerSettings) and scorer.model is None


def fit_models(run: Run, documents: Files) -> Models:
    """Train classifiers on labels; measure the statistics of all scores and fit the encoder on a sample of the corpus.

    What an earlier run fitted is found, and stays the same while the corpus grows.
    """
    settings, scorers = run.settings.quality, dict(run.models.scorers)
    for scorer in settings.scorers:
        if is_trained(scorer):
            job = FitClassifierJob.of(run.root, scorer, force=FitClassifierJob.stage.name in run.refit)
            file = run.one(job)
            scorers[scorer.name] = QualityModel(settings=scorer, path=file.path, fingerprint=file.fingerprint)
    in_order = [scorers[scorer.name] for scorer in settings.scorers]
    sidecars = PerShard(
        {
            name: {scorer: files.beside(shard) for scorer, files in run.models.sidecars.items()}
            for name, shard in run.shards.items()
        }
    )
    statistics = _fitted(
        run,
        documents,
        FitStatisticsJob,
        models=in_order,
        settings=settings,
        sidecars={name: sidecars[name] for name in run.sample if sidecars.get(name)},
        processes=score_processes(run, documents),
    )
    return Models(in_order, statistics, sidecars, _encoder(run, documents, in_order))


def _encoder(run: Run, documents: Files, scorers: list[QualityModel]) -> ModelFolder:
    """Fit the built-in encoder, or return the one that the settings name, which may be a scorer."""
    if run.models.encoder is not None:
        return run.models.encoder
    settings = run.settings.embedding
    if settings.model == STATIC:
        fitted = _fitted(run, documents, FitEncoderJob, settings=settings)
        return ModelFolder(path=fitted.path, fingerprint=fitted.fingerprint)
    [edu] = [model for model in scorers if isinstance(model.settings, EduScorerSettings)]
    return ModelFolder(path=edu.path, fingerprint=edu.identity, scorer=edu.settings)


def fit_targets(run: Run, documents: Files, models: Models) -> StageFile | None:
    """Embed the examples of target tasks for the selectors that read them; None without any."""
    targets = run.settings.selection.targets
    if targets is None:
        return None
    files, embedding = find_files(targets.path, "selection.targets.path"), run.settings.embedding
    return _fitted(
        run, documents, FitTargetsJob, files=files, settings=targets, embedding=embedding, encoder=models.encoder
    )


def _fitted(run: Run, documents: Files, kind: type[FitJob], **fields: Any) -> StageFile:  # noqa: ANN401
    """Run a fit on the documents of the sample that are no duplicates."""
    names = [name for name in run.sample if name in documents]
    sample = {"documents": [documents[name] for name in names], "duplicates": [run.duplicates[name] for name in names]}
    return run.one(kind(root=run.root, force=kind.stage.name in run.refit, **sample, **fields))


def exclusion_lists(run: Run) -> dict[str, StageFile]:
    """List what other corpora and benchmarks hold, before ingest drops it.

    The lists are by the fields of an `IngestJob`; without `ingest.against` and `ingest.decontaminate`, there are none.
    """
    settings, lists = run.settings.ingest, dict[str, StageFile]()
    if settings.against:
        files = [file for path in settings.against for file in find_files(path, "ingest.against")]
        lists["known"] = run.one(ExclusionJob(root=run.root, of="known", files=files))
    if settings.decontaminate:
        files = [file for path in settings.decontaminate for file in find_files(path, "ingest.decontaminate")]
        job = ExclusionJob(
            root=run.root,
            of="benchmarks",
            files=files,
            sample=[run.shards[name] for name in run.sample],
            text_column=run.settings.source.text_column,
        )
        lists["benchmarks"] = run.one(job)
    return lists


def number_of_fits(settings: PipelineSettings) -> int:
    """Return how many models, statistics and lists a recipe fits or makes for the whole corpus."""
    lists = bool(settings.ingest.against) + bool(settings.ingest.decontaminate)
    lists += reads_targets([settings.selection.solver])
    return sum(map(is_trained, settings.quality.scorers)) + 1 + (settings.embedding.model == STATIC) + lists


def score_processes(run: Run, documents: Files) -> int:
    """Return the processes that are worth starting to score the corpus, of which these documents are ingested."""
    if run.settings.engine.kind == "ray":  # a job has one core of its node
        return 1
    expected = sum(file.rows for file in documents.values()) * len(run.shards) // max(1, len(documents))
    return useful_processes(expected)
