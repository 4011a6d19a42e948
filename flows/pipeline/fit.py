"""Find or fit what belongs to the whole corpus: quality scorers, statistics of their scores, the encoder, lists."""

import logging
from collections.abc import Mapping
from typing import Literal, NamedTuple, Self, TypeGuard

from fineweb_mask.flows.pipeline.run import Files, PerShard, Run
from fineweb_mask.models.settings import STATIC, PipelineSettings
from fineweb_mask.models.settings.engine import JobResources
from fineweb_mask.models.settings.quality import FastTextScorerSettings, ScorerSettings, SidecarScorerSettings
from fineweb_mask.tasks.comparison.variants import reads_targets
from fineweb_mask.tasks.embed import BUILT_IN
from fineweb_mask.tasks.exclusion import ExclusionJob
from fineweb_mask.tasks.fit.job import FitJob, another_corpus
from fineweb_mask.tasks.fit.models import FitClassifierJob, FitEncoderJob, FitStatisticsJob, FitTargetsJob
from fineweb_mask.tasks.inference.model_files import ModelFolder, model_folder
from fineweb_mask.tasks.inference.scorers import QualityModel, resolve_model, useful_processes
from fineweb_mask.tasks.score import ScoreJob
from fineweb_mask.tasks.selection.cells import FitCentresJob, PlanJob
from fineweb_mask.tasks.source.discovery import find_files
from fineweb_mask.tasks.source.sidecars import Sidecar, Sidecars
from fineweb_mask.tasks.workspace.job import Stage
from fineweb_mask.tasks.workspace.references import StageFile

logger = logging.getLogger(__name__)

Refit = Literal["encoder", "quality", "selection"]
"""What can be fitted again on the corpus as it is now."""

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
        """Find the models on this machine or fetch them from the hub."""
        named = [scorer for scorer in settings.quality.scorers if not is_trained(scorer)]
        by_content = settings.source.fingerprint == "content"
        built_in = settings.embedding.model in BUILT_IN
        return cls(
            scorers={scorer.name: resolve_model(scorer) for scorer in named},
            encoder=None if built_in else model_folder(settings.embedding.model, "embedding.model"),
            sidecars={
                scorer.name: Sidecars(scorer, by_content=by_content, id_column=settings.source.id_column)
                for scorer in named
                if isinstance(scorer, SidecarScorerSettings)
            },
        )


class Quality(NamedTuple):
    """What makes a document's quality, the same for all shards."""

    scorers: list[QualityModel]  # in the order of the settings
    statistics: StageFile  # of their scores
    sidecars: PerShard[dict[str, Sidecar]]  # annotations of each source file, by the scorer's name


class Models(NamedTuple):
    """What makes the quality and the vector of a document."""

    quality: Quality
    encoder: ModelFolder | None  # None if the scorer of kind `edu` makes the vectors

    @property
    def identities(self) -> list[str]:
        """What identifies the models of all documents, in the keys of jobs that depend on them."""
        files = [file.fingerprint for file in (self.quality.statistics, self.encoder) if file is not None]
        return [*(model.identity for model in self.quality.scorers), *files]


def is_trained(scorer: ScorerSettings) -> TypeGuard[FastTextScorerSettings]:
    """Return whether a scorer's model is trained on labels by the pipeline."""
    return isinstance(scorer, FastTextScorerSettings) and scorer.model is None


def fit_quality(run: Run, documents: Files) -> Quality:
    """Train classifiers on labels, and measure the statistics of all scores on the sample of the corpus.

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
    sample = _sample(run, documents)
    statistics = FitStatisticsJob(
        root=run.root,
        documents=sample,
        models=in_order,
        settings=settings,
        sidecars={file.name: found for file in sample if (found := sidecars[file.name])},
        processes=score_processes(run, documents),
        force=FitStatisticsJob.stage.name in run.refit,
    )
    return Quality(in_order, _fitted(run, statistics), sidecars)


def fit_encoder(run: Run, documents: Files) -> ModelFolder | None:
    """Fit the built-in encoder on the sample, as `fit_quality` does, or return the one that the settings name."""
    if run.settings.embedding.model != STATIC:
        return run.models.encoder
    job = FitEncoderJob(
        root=run.root,
        documents=_sample(run, documents),
        settings=run.settings.embedding,
        force=FitEncoderJob.stage.name in run.refit,
    )
    encoder = _fitted(run, job)
    return ModelFolder(path=encoder.path, fingerprint=encoder.fingerprint)


def fit_targets(run: Run, documents: Files, models: Models) -> StageFile | None:
    """Embed the examples of target tasks for the selectors that read them; None without any."""
    targets = run.settings.selection.targets
    if targets is None or models.encoder is None:
        return None
    job = FitTargetsJob(
        root=run.root,
        documents=_sample(run, documents),
        files=find_files(targets.path, "selection.targets.path"),
        settings=targets,
        embedding=run.settings.embedding,
        encoder=models.encoder.path,
        encoder_fingerprint=models.encoder.fingerprint,
        force=FitTargetsJob.stage.name in run.refit,
    )
    return _fitted(run, job)


def _fitted(run: Run, job: FitJob) -> StageFile:
    """Run a fit; where the files of the source have the names of another corpus's, this is seen only here."""
    if run.task_runs is not None and set(job.replaces) & run.shards.keys():
        logger.warning("%s", another_corpus(job.replaces))
    return run.one(job)


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
            threshold=settings.decontaminate_threshold,
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
    engine = run.settings.engine
    wanted = engine.resources.get(ScoreJob.stage.name)
    if engine.kind == "ray":  # a job has the cores that Ray set aside for it
        return max(1, int((wanted or JobResources()).num_cpus))
    expected = sum(file.rows for file in documents.values()) * len(run.shards) // max(1, len(documents))
    return useful_processes(expected, None if wanted is None else max(1, int(wanted.num_cpus)))


def _sample(run: Run, documents: Files) -> list[StageFile]:
    """Return the documents of the shards that are fitted on."""
    return [documents[name] for name in run.sample if name in documents]
