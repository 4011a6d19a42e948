"""The pipeline: ingest -> score -> embed -> select -> materialize, each stage cached, over all shards of a source."""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, Literal, NamedTuple, Self, TypeGuard, cast

from prefect import Task, flow
from prefect.futures import PrefectFuture
from prefect.task_runners import TaskRunner, ThreadPoolTaskRunner
from pydantic import BaseModel

from flows import events
from flows.artifacts import shown_in_ui
from flows.progress import listener
from models.device import choose_devices
from models.quality.settings import FastTextScorerSettings, ScorerSettings
from models.settings import FROM_QUALITY, PipelineSettings
from tasks import dedup, embed, fit, ingest, materialize, one_pass, report, score, select
from tasks.accounting import Counts, account, mean_terms
from tasks.lake import StageFile, Workspace
from tasks.quality_models import QualityModel, check_scorers, fitted_model, given_model
from tasks.scoring import end_scoring_processes, useful_processes
from tasks.source import SourceShard, discover
from tasks.stage import BadShardError, StageJob

WINDOW = 100  # task runs submitted ahead of their results; more would flood the server

Refit = Literal["encoder", "quality"]


class StageSummary(BaseModel):
    """What a run spent on a stage."""

    stage: str
    files: int = 0
    cached: int = 0
    seconds: float = 0.0


class Quarantined(BaseModel):
    """A shard that was set aside."""

    shard: str
    reason: str


class RunSummary(BaseModel):
    """What a run of the pipeline did; `fineweb-mask run --json` prints it."""

    status: Literal["done", "quarantined"]
    workspace: str
    dataset: str
    card: str
    report: str
    documents_in: int
    documents_kept: int
    not_selected: int
    dropped: dict[str, int]
    quarantined: list[Quarantined]
    counts: Counts
    stages: list[StageSummary]
    objective: float | None
    terms: dict[str, float]
    blocks: int


class Run:
    """Submits jobs and keeps the books of one run."""

    def __init__(self, workspace: Workspace, *, quarantine: bool) -> None:
        self.workspace = workspace
        self.quarantine = quarantine
        self.stages: dict[str, StageSummary] = {}
        self.quarantined: dict[str, str] = {}

    def submit(self, task: Task[..., StageFile], job: StageJob) -> PrefectFuture[StageFile]:
        """Submit a job; a cached result whose file is no longer whole is not used."""
        is_whole = job.current() is not None
        return task.with_options(refresh_cache=not is_whole, result_storage=self.workspace.cache).submit(job=job)

    def result(self, stage: str, job: StageJob, future: PrefectFuture[StageFile]) -> StageFile | None:
        """Wait for a job; return None if its shard was set aside.

        Raises
        ------
        Exception
            What the job raised, unless it is a bad shard and those are quarantined.
        """
        file = future.result(raise_on_failure=False)
        summary = self.stages.setdefault(stage, StageSummary(stage=stage))
        summary.files += 1
        if isinstance(file, BadShardError) and self.quarantine:
            self.quarantined[job.name] = str(file)
            listener.get().finished(stage, None)
            events.quarantined(job.name, str(file))
            return None
        if isinstance(file, BaseException):
            raise file
        if future.state.name == "Cached" or file.reused:
            file = file.model_copy(update={"reused": True, "seconds": 0.0})
        summary.cached += file.reused
        summary.seconds = round(summary.seconds + file.seconds, 3)
        listener.get().finished(stage, file)
        return file

    def one(self, stage: str, task: Task[..., StageFile], job: StageJob) -> StageFile:
        """Run a stage's only job."""
        listener.get().started(stage, 1)
        file = self.result(stage, job, self.submit(task, job))
        if file is None:
            raise BadShardError(self.quarantined[job.name])
        return file

    def all(
        self, stages: Sequence[tuple[str, Task[..., StageFile]]], jobs: Sequence[Sequence[StageJob]]
    ) -> Iterator[list[StageFile | None]]:
        """Run several stages' jobs side by side; yield each entry's files in order.

        Parameters
        ----------
        stages
            Name and task of each stage.
        jobs
            Entries with one job for each of the stages.
        """
        for name, _ in stages:
            listener.get().started(name, len(jobs))
        remaining = iter(jobs)
        while window := list(islice(remaining, WINDOW)):
            futures = [
                [self.submit(task, job) for (_, task), job in zip(stages, entry, strict=True)] for entry in window
            ]
            for entry, pending in zip(window, futures, strict=True):
                yield [
                    self.result(name, job, future)
                    for (name, _), job, future in zip(stages, entry, pending, strict=True)
                ]


class Given(NamedTuple):
    """The models that the settings name, fetched before the first stage: a wrong name is known at once."""

    scorers: dict[str, QualityModel]  # by the scorer's name
    encoder: embed.EmbeddingModel | None  # None where it is built in or one of the scorers

    @classmethod
    def of(cls, settings: PipelineSettings) -> Self:
        """Find the models on this machine or fetch them from the hub."""
        named = [scorer for scorer in settings.quality.scorers if not _is_trained(scorer)]
        built_in = settings.embedding.model in embed.BUILT_IN
        return cls(
            scorers={scorer.name: given_model(scorer) for scorer in named},
            encoder=None if built_in else embed.given_model(settings.embedding),
        )


def _is_trained(scorer: ScorerSettings) -> TypeGuard[FastTextScorerSettings]:
    return isinstance(scorer, FastTextScorerSettings) and scorer.model is None


@flow(name="curate", flow_run_name="curate {settings.workspace}", cache_result_in_memory=False)
def curate(settings: PipelineSettings, refit: list[Refit] | None = None) -> RunSummary:
    """Turn the raw documents of a source into a selected dataset.

    Parameters
    ----------
    settings
        The recipe.
    refit
        What was fitted on the corpus earlier and is to be fitted anew on the corpus as it is now.

    Raises
    ------
    BadShardError
        If no shard can be read, or one cannot and `ingest.on_bad_shard` is `fail`.
    """
    shards = check_inputs(settings)
    with Workspace(settings.workspace).exclusive() as workspace, shown_in_ui() as shown:
        run = Run(workspace, quarantine=settings.ingest.on_bad_shard == "quarantine")
        forget_fitted(workspace, refit or [])
        given = Given.of(settings)
        documents = _ingest(run, shards, settings)
        duplicates = _dedup(run, documents, settings)
        try:
            scored = _score_and_embed(run, documents, given, settings)
        finally:
            end_scoring_processes()
        masks = _select(run, scored, duplicates, settings)
        summary = _publish(run, shards, scored, masks, settings)
        shown.publish(summary)
        return summary


def check_inputs(settings: PipelineSettings) -> list[SourceShard]:
    """Return the source's files, once it is clear that all that the settings name is there.

    Raises
    ------
    ValueError
        With the key of the setting that names something missing.
    """
    check_scorers(settings.quality.scorers)
    embed.check_model(settings.embedding)
    return discover(settings.source)


def forget_fitted(workspace: Workspace, refit: Sequence[Refit]) -> None:
    """Drop the record of what is to be fitted anew."""
    patterns = {"encoder": ["encoder.json"], "quality": ["quality-*.json"]}
    for name in refit:
        for pattern in patterns[name]:
            for manifest in workspace.fitted.glob(pattern):
                manifest.unlink()


def _ingest(run: Run, shards: list[SourceShard], settings: PipelineSettings) -> list[StageFile]:
    jobs = [[ingest.plan(run.workspace, shard, settings.source, settings.ingest)] for shard in shards]
    files = [file for [file] in run.all([("ingest", ingest.ingest_task)], jobs) if file is not None]
    if not files:
        raise BadShardError("no source file could be read: " + "; ".join(run.quarantined.values()))
    if not any(file.rows for file in files):
        raise BadShardError("no document passed the ingest settings: look at min_chars, languages and text_column")
    return files


def _dedup(run: Run, documents: list[StageFile], settings: PipelineSettings) -> dict[str, StageFile]:
    job = dedup.plan(run.workspace, documents, settings.ingest.exact_dedup, settings.materialize.memory_limit)
    run.one("dedup", dedup.dedup_task, job)
    return {file.name: file for file in job.shard_files() or []}


def _quality_models(run: Run, given: Given, settings: PipelineSettings) -> list[QualityModel]:
    models = []
    for scorer in settings.quality.scorers:
        if _is_trained(scorer):
            job = fit.plan_classifier(run.workspace, scorer)
            models.append(fitted_model(scorer, run.one("fit", fit.fit_classifier_task, job)))
        else:
            models.append(given.scorers[scorer.name])
    return models


def _score_and_embed(
    run: Run, documents: list[StageFile], given: Given, settings: PipelineSettings
) -> list[tuple[StageFile, StageFile, StageFile]]:
    """Return the documents, scores and embeddings of every shard that has all three."""
    models = _quality_models(run, given, settings)
    processes = useful_processes(sum(file.rows for file in documents), settings.engine.score_processes)
    statistics = run.one(
        "fit",
        fit.fit_statistics_task,
        fit.plan_statistics(run.workspace, documents, models, settings.quality, processes),
    )
    if settings.embedding.model == FROM_QUALITY:
        scored = _in_one_pass(run, documents, models, statistics, settings)
    else:
        scored = _in_two_passes(run, documents, models, given.encoder, statistics, settings, processes)
    if not scored:
        raise BadShardError("no shard could be scored and embedded: " + "; ".join(run.quarantined.values()))
    return scored


def _in_one_pass(
    run: Run,
    documents: list[StageFile],
    models: list[QualityModel],
    statistics: StageFile,
    settings: PipelineSettings,
) -> list[tuple[StageFile, StageFile, StageFile]]:
    jobs = [
        one_pass.plan(run.workspace, file, models, statistics, settings.quality, settings.embedding)
        for file in documents
    ]
    done = run.all([("score_embed", one_pass.one_pass_task)], [[job] for job in jobs])
    scored = []
    for shard, job, [both] in zip(documents, jobs, done, strict=True):
        if both is not None and (files := job.files()) is not None:
            scored.append((shard, *files))
    return scored


def _in_two_passes(
    run: Run,
    documents: list[StageFile],
    models: list[QualityModel],
    encoder: embed.EmbeddingModel | None,
    statistics: StageFile,
    settings: PipelineSettings,
    processes: int,
) -> list[tuple[StageFile, StageFile, StageFile]]:
    if encoder is None:
        job = fit.plan_encoder(run.workspace, documents, settings.embedding)
        encoder = embed.fitted_model(run.one("fit", fit.fit_encoder_task, job))
    jobs = [
        (
            score.plan(run.workspace, file, models, statistics, settings.quality, processes),
            embed.plan(run.workspace, file, encoder, settings.embedding),
        )
        for file in documents
    ]
    files = run.all([("score", score.score_task), ("embed", embed.embed_task)], jobs)
    return [
        (shard, scores, vectors)
        for shard, (scores, vectors) in zip(documents, files, strict=True)
        if scores is not None and vectors is not None
    ]


def _select(
    run: Run,
    scored: list[tuple[StageFile, StageFile, StageFile]],
    duplicates: dict[str, StageFile],
    settings: PipelineSettings,
) -> dict[str, tuple[StageFile, StageFile]]:
    """Return, by shard, its mask and the reference to its whole group's masks."""
    shards = [
        select.SelectionShard(
            documents=documents, scores=scores, embeddings=embeddings, duplicates=duplicates[documents.name]
        )
        for documents, scores, embeddings in scored
    ]
    jobs = select.plan(run.workspace, shards, settings.selection)
    masks = {}
    for job, [group] in zip(jobs, run.all([("select", select.select_task)], [[job] for job in jobs]), strict=True):
        if group is not None:
            for file in job.shard_files() or []:
                masks[file.name] = (file, group)
    return masks


def _publish(
    run: Run,
    sources: list[SourceShard],
    scored: list[tuple[StageFile, StageFile, StageFile]],
    masks: dict[str, tuple[StageFile, StageFile]],
    settings: PipelineSettings,
) -> RunSummary:
    source_of = {source.name: source for source in sources}
    shards = [
        materialize.MaterializeShard(
            source=source_of[documents.name],
            documents=documents,
            scores=scores,
            masks=masks[documents.name][0],
        )
        for documents, scores, _ in scored
        if documents.name in masks
    ]
    groups = list({group.name: group for _, group in masks.values()}.values())
    counts = account([shard.documents for shard in shards], groups)
    blocks: list[dict[str, Any]] = [block for group in groups for block in group.details["blocks"]]
    dataset = run.one(
        "materialize",
        materialize.materialize_task,
        materialize.plan(run.workspace, shards, counts, blocks, settings),
    )
    stages = [stage.model_dump() for stage in run.stages.values()]
    run.one(
        "report",
        report.report_task,
        report.plan(run.workspace, dataset=dataset, shards=shards, counts=counts, blocks=blocks, stages=stages),
    )
    objective, terms = mean_terms(groups)
    workspace = run.workspace
    return RunSummary(
        status="quarantined" if run.quarantined else "done",
        workspace=str(workspace.root),
        dataset=str(workspace.dataset),
        card=str(workspace.dataset / "README.md"),
        report=str(workspace.reports / "index.html"),
        documents_in=counts.documents_in,
        documents_kept=counts.selected,
        not_selected=counts.not_selected,
        dropped=counts.dropped,
        quarantined=[Quarantined(shard=shard, reason=reason) for shard, reason in run.quarantined.items()],
        counts=counts,
        stages=list(run.stages.values()),
        objective=objective,
        terms=terms,
        blocks=len(blocks),
    )


def run_curate(settings: PipelineSettings, refit: list[Refit] | None = None) -> RunSummary:
    """Run the pipeline in this process with the recipe's engine."""
    workers = settings.engine.workers or len(choose_devices("auto")) + 1  # one prepares what the others wait for
    runner: ThreadPoolTaskRunner[Any] = ThreadPoolTaskRunner(max_workers=workers)
    return curate.with_options(task_runner=cast("TaskRunner[PrefectFuture[Any]]", runner))(settings, refit)
