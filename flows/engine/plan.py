"""The order of the stages: which job is known as soon as which others are done.

A shard is scored and embedded when it is ingested, whatever its neighbours do. Two things are made of many shards: what
is fitted on a sample of the corpus (the first time only), and the duplicates across it, which the selection needs.
"""

from collections.abc import Container, Iterable
from functools import partial
from typing import Any, NamedTuple, Self, TypeGuard

from fineweb_mask.flows.engine.scheduler import Jobs, OnDone, Stage
from fineweb_mask.models.settings import FROM_QUALITY, STATIC, PipelineSettings
from fineweb_mask.models.settings.quality import FastTextScorerSettings, ScorerSettings
from fineweb_mask.tasks import dedup, embed, fit, ingest, materialize, report, score, score_embed, select
from fineweb_mask.tasks.dataset.output import Output
from fineweb_mask.tasks.inference.scorers import QualityModel, fitted_model, resolve_model
from fineweb_mask.tasks.inference.scoring_pool import useful_processes
from fineweb_mask.tasks.reporting.samples import SelectedShard
from fineweb_mask.tasks.reporting.sections import StageTime
from fineweb_mask.tasks.selection.blocks import SelectionShard
from fineweb_mask.tasks.source.discovery import SourceShard
from fineweb_mask.tasks.workspace.catalog import CatalogShard
from fineweb_mask.tasks.workspace.counts import Counts, account
from fineweb_mask.tasks.workspace.workspace import StageFile, Workspace


class PretrainedModels(NamedTuple):
    """The models that the settings name, fetched before the first stage: a wrong name is known at once."""

    scorers: dict[str, QualityModel]  # by the scorer's name
    encoder: embed.EmbeddingModel | None  # None where it is built in or one of the scorers

    @classmethod
    def of(cls, settings: PipelineSettings) -> Self:
        """Find the models on this machine or fetch them from the hub."""
        named = [scorer for scorer in settings.quality.scorers if not _is_trained(scorer)]
        built_in = settings.embedding.model in embed.BUILT_IN
        return cls(
            scorers={scorer.name: resolve_model(scorer) for scorer in named},
            encoder=None if built_in else embed.resolve_model(settings.embedding),
        )


def _is_trained(scorer: ScorerSettings) -> TypeGuard[FastTextScorerSettings]:
    return isinstance(scorer, FastTextScorerSettings) and scorer.model is None


class ScoredShard(NamedTuple):
    """A shard that has all that a selection reads, duplicates aside."""

    documents: StageFile
    scores: StageFile
    embeddings: StageFile


class Curation:
    """Plans the jobs of a corpus, each as soon as what it depends on is known.

    Parameters
    ----------
    jobs
        Takes the jobs: runs them, or only looks whether they are done.
    workspace
        Where the files lie.
    settings
        The recipe.
    shards
        The source's files.
    given
        The models that the settings name.
    """

    def __init__(
        self,
        jobs: Jobs,
        workspace: Workspace,
        settings: PipelineSettings,
        shards: list[SourceShard],
        given: PretrainedModels,
    ) -> None:
        self.documents: dict[str, StageFile] = {}
        self.duplicates: dict[str, StageFile] = {}
        self.masks: dict[str, tuple[StageFile, StageFile]] = {}  # a shard's and its whole group's
        self.dataset: StageFile | None = None
        self._jobs = jobs
        self._workspace = workspace
        self._settings = settings
        self._shards = {shard.name: shard for shard in shards}
        self._given = given
        self._models = dict(given.scorers)
        self._statistics: StageFile | None = None
        self._encoder = given.encoder
        self._scores: dict[str, StageFile] = {}
        self._embeddings: dict[str, StageFile] = {}
        self._sample = fit.sampled_shards(workspace, list(self._shards))
        self._fitting: set[str] = set()  # what is planned to be fitted
        self._settled: set[str] = set()  # shards that were ingested or set aside

    @property
    def scored(self) -> list[ScoredShard]:
        """The shards that have scores and embeddings, in the order of the source."""
        return [
            ScoredShard(self.documents[name], self._scores[name], self._embeddings[name])
            for name in self._shards
            if name in self._scores and name in self._embeddings
        ]

    @property
    def is_scored(self) -> bool:
        """Whether every shard has what a selection reads."""
        return bool(self.duplicates) and len(self.scored) == len(self._shards)

    def catalogued(self, set_aside: Container[str] = ()) -> list[CatalogShard]:
        """Return the files of every shard, in the order of the source, for the catalog."""
        masks = {name: file for name, (file, _) in self.masks.items()}
        stages = {"duplicates": self.duplicates, "scores": self._scores, "embeddings": self._embeddings, "masks": masks}
        return [
            CatalogShard(
                documents=file,
                # One that is only looked for and was lost has no path.
                **{stage: files[name] for stage, files in stages.items() if name in files and files[name].path},
            )
            for name in self._shards
            if name not in set_aside and (file := self.documents.get(name)) is not None
        ]

    def plan_documents(self) -> None:
        """Plan what needs nothing else: the classifiers that are trained on labels, and ingest."""
        settings = self._settings
        for scorer in settings.quality.scorers:
            if _is_trained(scorer):
                job = fit.plan_classifier(self._workspace, scorer)
                self._jobs.expect("fit", 1)
                self._jobs.add("fit", job, partial(self._trained, scorer))
        for stage in ("ingest", *self._per_document):
            self._jobs.expect(stage, len(self._shards))
        self._jobs.expect("dedup", 1)
        self._fit()
        sampled = set(self._sample)
        for name in [*self._sample, *(name for name in self._shards if name not in sampled)]:
            shard = self._shards[name]
            plan = ingest.plan(self._workspace, shard, settings.source, settings.ingest)
            self._jobs.add("ingest", plan, partial(self._ingested, name))

    @property
    def _per_document(self) -> tuple[Stage, ...]:
        return ("score_embed",) if self._settings.embedding.model == FROM_QUALITY else ("score", "embed")

    def _trained(self, scorer: FastTextScorerSettings, file: StageFile | None) -> None:
        if file is not None:
            self._models[scorer.name] = fitted_model(scorer, file)
            self._fit()

    def _ingested(self, name: str, file: StageFile | None) -> None:
        self._settled.add(name)
        if file is None:
            for stage in self._per_document:
                self._jobs.expect(stage, -1)
        else:
            self.documents[name] = file
            self._score(name)
            self._embed(name)
        if name in self._sample:
            self._fit()
        if len(self._settled) == len(self._shards) and self.documents:
            self._find_duplicates()

    def _fit(self) -> None:
        """Plan what is fitted on the corpus: at once if it is there from an earlier run, else once its sample is."""
        sample = [self.documents[name] for name in self._sample if name in self.documents]
        ready = self._settled.issuperset(self._sample) and any(file.rows for file in sample)
        settings = self._settings
        jobs: dict[str, tuple[fit.FitJob, OnDone]] = {}
        if len(self._models) == len(settings.quality.scorers):
            models = self._models_in_order
            processes = useful_processes(self._expected_rows, settings.engine.score_processes)
            statistics = fit.plan_statistics(self._workspace, sample, models, settings.quality, processes)
            jobs["statistics"] = (statistics, self._have_statistics)
        if settings.embedding.model == STATIC:
            encoder = fit.plan_encoder(self._workspace, sample, settings.embedding)
            jobs["encoder"] = (encoder, self._have_encoder)
        for name, (job, then) in jobs.items():
            if name not in self._fitting and (ready or job.current() is not None):
                self._fitting.add(name)
                self._jobs.expect("fit", 1)
                self._jobs.add("fit", job, then)

    def _have_statistics(self, file: StageFile | None) -> None:
        self._statistics = file
        for name in self.documents:
            self._score(name)

    def _have_encoder(self, file: StageFile | None) -> None:
        self._encoder = None if file is None else embed.fitted_model(file)
        for name in self.documents:
            self._embed(name)

    @property
    def _models_in_order(self) -> list[QualityModel]:
        return [self._models[scorer.name] for scorer in self._settings.quality.scorers]

    @property
    def _expected_rows(self) -> int:
        """Documents in the corpus, as far as the shards that are ingested tell."""
        rows = sum(file.rows for file in self.documents.values())
        return rows * len(self._shards) // max(1, len(self.documents))

    def _score(self, name: str) -> None:
        if self._statistics is None:
            return
        settings, documents = self._settings, self.documents[name]
        common = (self._workspace, documents, self._models_in_order, self._statistics, settings.quality)
        if settings.embedding.model == FROM_QUALITY:
            both = score_embed.plan(*common, settings.embedding)
            self._jobs.add("score_embed", both, partial(self._scored_and_embedded, both))
        else:
            processes = useful_processes(self._expected_rows, settings.engine.score_processes)
            self._jobs.add("score", score.plan(*common, processes), partial(self._keep, self._scores, name))

    def _embed(self, name: str) -> None:
        if self._encoder is not None:
            job = embed.plan(self._workspace, self.documents[name], self._encoder, self._settings.embedding)
            self._jobs.add("embed", job, partial(self._keep, self._embeddings, name))

    def _scored_and_embedded(self, job: score_embed.ScoreEmbedJob, file: StageFile | None) -> None:
        files = None if file is None else job.files()
        if files is not None:
            self._scores[job.name], self._embeddings[job.name] = files

    def _keep(self, files: dict[str, StageFile], name: str, file: StageFile | None) -> None:
        if file is not None:
            files[name] = file

    def _find_duplicates(self) -> None:
        documents = [self.documents[name] for name in self._shards if name in self.documents]
        settings = self._settings
        job = dedup.plan(self._workspace, documents, settings.ingest.exact_dedup, settings.materialize.memory_limit)
        self._jobs.add("dedup", job, partial(self._found_duplicates, job))

    def _found_duplicates(self, job: dedup.DedupJob, file: StageFile | None) -> None:
        if file is not None:
            self.duplicates = {shard.name: shard for shard in job.shard_files() or []}

    @property
    def selectable(self) -> list[SelectionShard]:
        """The shards that have all that a selection reads."""
        return [
            SelectionShard(
                documents=shard.documents,
                scores=shard.scores,
                embeddings=shard.embeddings,
                duplicates=self.duplicates[shard.documents.name],
            )
            for shard in self.scored
        ]

    def plan_selection(self) -> None:
        """Plan the selection of every block, once all shards have what it reads."""
        jobs = select.plan(self._workspace, self.selectable, self._settings.selection)
        self._jobs.expect("select", len(jobs))
        for job in jobs:
            self._jobs.add("select", job, partial(self._selected, job))

    def _selected(self, job: select.SelectJob, group: StageFile | None) -> None:
        if group is not None:
            for file in job.shard_files() or []:
                self.masks[file.name] = (file, group)

    def plan_dataset(self) -> None:
        """Plan the dataset, once every block is selected."""
        plan = materialize.plan(self._workspace, self._chosen, self.counts, self.blocks, self._settings)
        self._jobs.expect("materialize", 1)
        self._jobs.add("materialize", plan, self._materialized)

    def _materialized(self, file: StageFile | None) -> None:
        self.dataset = file

    def plan_report(self, stages: Iterable[StageTime]) -> None:
        """Plan the report, once the dataset is there; `stages` says what each took."""
        if self.dataset is None:
            return
        job = report.plan(
            self._workspace,
            dataset=self.dataset,
            shards=[
                SelectedShard(**shard._asdict(), masks=self.masks[shard.documents.name][0])
                for shard in self.scored
                if shard.documents.name in self.masks
            ],
            counts=self.counts,
            blocks=self.blocks,
            stages=list(stages),
            settings=self._settings.report,
        )
        self._jobs.expect("report", 1)
        self._jobs.add("report", job, lambda _: None)

    @property
    def output(self) -> Output:
        """Where the dataset goes."""
        return Output.of(self._workspace, self._settings.materialize)

    @property
    def groups(self) -> list[StageFile]:
        """The groups of shards that were selected from together."""
        return list({group.name: group for _, group in self.masks.values()}.values())

    @property
    def blocks(self) -> list[dict[str, Any]]:
        """What the selection says of every block."""
        return [block for group in self.groups for block in group.details["blocks"]]

    @property
    def counts(self) -> Counts:
        """The books of the shards that were selected from."""
        return account([shard.documents for shard in self._chosen], self.groups)

    @property
    def _chosen(self) -> list[materialize.MaterializeShard]:
        return [
            materialize.MaterializeShard(
                source=self._shards[shard.documents.name],
                documents=shard.documents,
                scores=shard.scores,
                masks=self.masks[shard.documents.name][0],
            )
            for shard in self.scored
            if shard.documents.name in self.masks
        ]
