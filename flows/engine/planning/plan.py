"""Plan the pipeline: add each job as soon as the outputs that it depends on exist.

A shard is scored and embedded as soon as it is ingested, without waiting for other shards. Two things are made from
many shards: what is fitted on a sample of the corpus (the first time only), and the duplicates across it, exact and
near ones, if they are looked for.
"""

from collections import deque
from collections.abc import Collection, Container
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

from fineweb_mask.flows.engine.choices import REFITTED, PretrainedModels, Refit, Share, is_trained
from fineweb_mask.flows.engine.dataset import EarlyParts, remove_left_parts, write_dataset
from fineweb_mask.flows.engine.planning.duplicates import Duplicates
from fineweb_mask.flows.engine.planning.state import State, keep
from fineweb_mask.flows.engine.scheduler import Jobs, OnDone
from fineweb_mask.flows.engine.selection.budgets import divide_budget
from fineweb_mask.flows.engine.selection.corpus import select_from_corpus
from fineweb_mask.models.settings import FROM_QUALITY, STATIC, PipelineSelectionSettings, PipelineSettings
from fineweb_mask.models.settings.engine import JobResources
from fineweb_mask.models.settings.quality import ClassesScorerSettings, FastTextScorerSettings
from fineweb_mask.tasks import embed
from fineweb_mask.tasks.dataset.output import Output
from fineweb_mask.tasks.dataset.partitioning import Partitioning
from fineweb_mask.tasks.embed import EmbedJob
from fineweb_mask.tasks.exclusion.benchmarks import BenchmarksJob
from fineweb_mask.tasks.exclusion.known import KnownJob
from fineweb_mask.tasks.export import ExportJob
from fineweb_mask.tasks.fit.job import FitJob, sampled_shards
from fineweb_mask.tasks.fit.models import FitClassifierJob, FitEncoderJob, FitStatisticsJob
from fineweb_mask.tasks.fit.targets import FitTargetsJob
from fineweb_mask.tasks.inference.scorers import QualityModel, fitted_model
from fineweb_mask.tasks.inference.scoring_pool import useful_processes
from fineweb_mask.tasks.ingest import IngestJob
from fineweb_mask.tasks.materialize import MaterializeJob
from fineweb_mask.tasks.processes.workers import end_workers
from fineweb_mask.tasks.report import ReportJob
from fineweb_mask.tasks.score import ScoreJob
from fineweb_mask.tasks.score_embed import ScoreEmbedJob
from fineweb_mask.tasks.select import SelectJob
from fineweb_mask.tasks.selection.blocks import merged
from fineweb_mask.tasks.selection.contenders import reads_targets
from fineweb_mask.tasks.selection.corpus.learning import KeepPolicyJob
from fineweb_mask.tasks.selection.groups import Groups, Packing, grouped, remember_groups, remembered_groups
from fineweb_mask.tasks.selection.inputs.given import EarlierSelection
from fineweb_mask.tasks.source.discovery import SourceShard, find_files
from fineweb_mask.tasks.source.sidecars import Sidecar
from fineweb_mask.tasks.workspace.counts import Counts, account
from fineweb_mask.tasks.workspace.job import BadShardError, StageJob
from fineweb_mask.tasks.workspace.listing import Listing
from fineweb_mask.tasks.workspace.references import StageFile, digest
from fineweb_mask.tasks.workspace.shard_files import ShardFiles
from fineweb_mask.tasks.workspace.workspace import Workspace

if TYPE_CHECKING:
    from pathlib import Path

LISTED = 3
"""Most reasons in one message."""


class Plan(State):
    """The stages of one corpus: each method asks for the stage of its name.

    Parameters
    ----------
    jobs, workspace, settings, shards, listing, share, refresh, remembers
        As for `State`.
    models
        The models that the settings name.
    refit
        What is fitted again, although an earlier run fitted it.
    """

    def __init__(
        self,
        jobs: Jobs,
        workspace: Workspace,
        settings: PipelineSettings,
        shards: list[SourceShard],
        models: PretrainedModels,
        *,
        listing: Listing | None = None,
        refit: Collection[Refit] = (),
        share: Share | None = None,
        refresh: Collection[str] = (),
        remembers: bool = True,
    ) -> None:
        super().__init__(
            jobs, workspace, settings, shards, listing=listing, share=share, refresh=refresh, remembers=remembers
        )
        self._groups: dict[str, StageFile] = {}  # of shards that were selected from together, by name
        self._early: EarlyParts | None = None  # of the dataset
        self.dataset: StageFile | None = None
        self.exports: dict[str, Path] = {}  # folders of training files, by name
        self._models = dict(models.scorers)
        self._encoder = models.encoder
        self._sidecars = models.sidecars
        self._statistics: StageFile | None = None
        self.targets: StageFile | None = None  # examples of target tasks
        self.selecting = models.selecting
        self._given = EarlierSelection.of(settings)
        self._refit = frozenset(stage.name for name in refit for stage in REFITTED[name])
        self.sample = sampled_shards(workspace, list(self.shards), refit=self._refit)
        self._fitting: set[str] = set()
        self._duplicates = Duplicates(self, self._model_of_vectors)
        self._rows = 0  # that are ingested
        self._selecting: set[str] = set()  # names of groups
        self._packing: Packing | None = None  # of the groups that are selected from early, if any are
        self._unpacked = deque(sorted(self.shards))

    def run_all(self) -> None:
        """Run the pipeline: every stage, each job as soon as what it reads is there.

        Raises
        ------
        BadShardError
            If no shard can be read, or one cannot and bad shards end the run.
        """
        self.ingest()  # shard by shard; the shards of the sample that is fitted on come first
        self.fit()  # the score statistics and the built-in encoder, when their sample is ingested
        self.score()  # each shard, when it is ingested and the statistics are fitted
        self.embed()  # each shard, when it is ingested and the encoder is fitted
        self.deduplicate()  # across shards, when the last one is ingested
        self.write_early()  # each part of the dataset, when its own shards are selected from
        self.select()  # from each block, when all shards are prepared, or its own if it depends on no others
        self.materialize()
        self.export()
        self.report()

    def ingest(self) -> None:
        """Ingest every source file, those of the sample that is fitted on first."""
        self.jobs.expect("ingest", len(self._to_ingest))
        settings, lists = self.settings.ingest, dict[str, StageFile | None]()
        listing: dict[str, StageJob] = {}
        if settings.against:
            files = [file for path in settings.against for file in find_files(path, "ingest.against")]
            listing["known"] = KnownJob(root=self.root, files=files)
        if settings.decontaminate:
            files = [file for path in settings.decontaminate for file in find_files(path, "ingest.decontaminate")]
            listing["benchmarks"] = BenchmarksJob(root=self.root, files=files)

        def on_listed(name: str, file: StageFile | None) -> None:
            lists[name] = file
            if len(lists) == len(listing):
                self._ingest(**lists)

        if not listing:
            self._ingest()
            return
        self.jobs.expect("fit", len(listing))
        for name, job in listing.items():
            self.jobs.add(job, partial(on_listed, name))

    def _ingest(self, known: StageFile | None = None, benchmarks: StageFile | None = None) -> None:
        settings = self.settings
        for name in self._to_ingest:
            job = IngestJob(
                root=self.root,
                shard=self.shards[name],
                source=settings.source,
                settings=settings.ingest,
                known=known,
                benchmarks=benchmarks,
            )
            self.jobs.add(job, partial(self._on_ingested, name))

    @property
    def _to_ingest(self) -> list[str]:
        return list(dict.fromkeys([*self.sample, *self.own]))

    def fit(self) -> None:
        """Train classifiers on labels; fit the score statistics and the built-in encoder on a sample of the corpus.

        What was fitted by an earlier run is used at once.
        """
        for scorer in self.settings.quality.scorers:
            if is_trained(scorer):
                self.jobs.expect("fit", 1)
                job = FitClassifierJob.of(self.root, scorer, force=FitClassifierJob.stage.name in self._refit)
                self.jobs.add(job, partial(self._on_trained, scorer))
        self.ask(self._fit)

    def score(self) -> None:
        """Score every shard when it is ingested and the statistics are fitted; `from_quality` embeds it, too."""
        if self.settings.embedding.model == FROM_QUALITY:
            self.ask_per_shard("score_embed", self._score_embed_job, self._on_scored_and_embedded)
        else:
            self.ask_per_shard("score", self._score_job, partial(keep, self.scores))

    def embed(self) -> None:
        """Embed every shard when it is ingested and the encoder is fitted; with `from_quality`, `score` does it."""
        if self.settings.embedding.model != FROM_QUALITY:
            self.ask_per_shard("embed", self._embed_job, self._on_embedded)

    def deduplicate(self) -> None:
        """Find duplicates across shards when the last one is ingested; without, a shard waits for no other."""
        self._duplicates.find()

    def sort_hashes(self) -> None:
        """Sort the hashes of every shard when it is ingested, and sketch its texts, if shards are to be compared."""
        self._duplicates.sort_hashes()

    def prepare(self) -> None:
        """Run everything that a selection reads: ingest, fit, score, embed, deduplicate."""
        self.ingest()
        self.fit()
        self.score()
        self.embed()
        self.deduplicate()
        self._finish_preparation()

    def fit_targets(self) -> None:
        """Embed the target examples, when the documents are embedded."""
        settings = self.settings
        if settings.selection.targets is None or self._encoder is None or not self.documents:
            return
        job = FitTargetsJob(
            root=self.root,
            documents=[self.documents[name] for name in self.sample if name in self.documents],
            files=find_files(settings.selection.targets.path, "selection.targets.path"),
            settings=settings.selection.targets,
            embedding=settings.embedding,
            encoder=self._encoder.path,
            encoder_fingerprint=self._encoder.fingerprint,
            force=FitTargetsJob.stage.name in self._refit,
        )
        self.jobs.expect("fit", 1)
        self.jobs.add(job, self._on_targets)
        self.jobs.finish()

    def _on_targets(self, file: StageFile | None) -> None:
        self.targets = file

    @property
    def _reads_targets(self) -> bool:
        """Whether the recipe's solver reads target examples or compares texts with theirs."""
        return reads_targets([self.settings.selection.solver])

    def select(self) -> None:
        """Select from every block: when its shards are prepared if that can be known, else when all shards are.

        Raises
        ------
        BadShardError
            If there is nothing to select from.
        """
        self.select_early()
        self._finish_preparation()
        self.check_prepared()
        if self._reads_targets:
            self.fit_targets()
        settings = self.settings.selection
        if settings.scope == "global":
            self._select_from_corpus()
            return
        with self.workspace.alone() if self.remembers else nullcontext():
            groups = grouped(self.selectable, settings, remembered_groups(self.workspace, settings))
            if self.remembers:
                remember_groups(self.workspace, settings, groups)
        if settings.block_budget == "price":
            divide_budget(self.jobs, self.root, groups, settings, self._add_selecting)
            return
        self._select_from(groups, settings)

    def _select_from_corpus(self) -> None:
        """Select from all shards at once, with what these models made."""
        models = [model.identity for model in self._models_in_order]
        models += [file.fingerprint for file in (self._statistics, self._encoder) if file is not None]
        is_refitted = KeepPolicyJob.stage.name in self._refit
        rule = KeepPolicyJob(root=self.root, settings=self.settings.selection, models=models, force=is_refitted)
        select_from_corpus(self.jobs, self.selectable, rule, self._add_selecting)

    def after_each(self) -> None:
        """Select from the groups of shards that are full."""
        self._select_full_groups()

    def select_early(self) -> None:
        """Select from each group of shards as soon as these are prepared, where nothing in it depends on later ones.

        This is so if duplicates are not looked for across shards, blocks follow the order of the names, and each gives
        the same share.
        """
        settings = self.settings
        selection = settings.selection
        is_apart = settings.ingest.exact_dedup != "corpus" and settings.ingest.near_dedup == "off"
        if (is_apart and not self._reads_targets) and (
            selection.scope,
            selection.blocks,
            selection.block_budget,
        ) == ("block", "by_shard", "fixed"):
            self._packing = Packing(selection.block_size)
            self._select_full_groups()

    def _select_full_groups(self) -> None:
        """Select from the groups of the first shards, by name, that are prepared or left out: all but the last one.

        To that one, the next shard may belong.
        """
        while self._packing is not None and self._unpacked:
            name = self._unpacked[0]
            if not self.is_left_out(name):
                if not all(name in files for files in (self.duplicates, self.scores, self.embeddings)):
                    return
                self._select_from(self._packing.add(self.files_of(name)), self.settings.selection)
            self._unpacked.popleft()

    def _select_from(self, groups: Groups, settings: PipelineSelectionSettings) -> None:
        self._add_selecting(
            [
                SelectJob(
                    root=self.root,
                    shards=group,
                    settings=settings,
                    targets=self.targets,
                    given=self._given,
                    scorer=self.selecting,
                )
                for group in groups
            ]
        )

    def _add_selecting(self, jobs: list[SelectJob]) -> None:
        """Add jobs, unless they were added before."""
        new = [job for job in jobs if job.name not in self._selecting]
        self.jobs.expect("select", len(new))
        for job in new:
            self._selecting.add(job.name)
            self.jobs.add(job, partial(self._on_selected, job))

    def write_early(self) -> None:
        """Write each part of the dataset as soon as its own shards are selected from, where that is possible."""
        self._early = EarlyParts(self.jobs, self.root, self.shards, self.settings.materialize)

    def materialize(self) -> None:
        """Write the dataset, or what is not written of it, when every block is selected from."""
        self.jobs.finish()
        at_once = self.jobs.at_once
        parts = Partitioning(self.root, self._selected, self.shards, self.settings.materialize, at_once)
        job = MaterializeJob(
            root=self.root,
            inputs=parts.inputs,
            version=parts.version,
            counts=self.counts,
            blocks=self.blocks,
            recipe=self.settings,
        )
        if self.remembers:
            remove_left_parts(parts, job)
        early = {} if self._early is None else self._early.written
        write_dataset(self.jobs, parts, job, self._on_materialized, early)

    def export(self) -> None:
        """Write the training files, when the dataset is written."""
        self.jobs.finish()
        exports = self.settings.materialize.export
        if self.dataset is None or not exports:
            return
        output = Output.of(self.workspace, self.settings.materialize)
        own = f"{self.root}/dataset" if self.workspace.url is not None else str(output.folder)
        self.jobs.expect("export", len(exports))
        for settings in exports:
            place = output.url or (own if output.is_own else str(output.folder))
            job = ExportJob(root=self.root, dataset=self.dataset, place=place, settings=settings)
            self.exports[settings.folder] = job.folder
            self.jobs.add(job, lambda _: None)
        self.jobs.finish()

    def report(self) -> None:
        """Write the report, when the dataset is written."""
        self.jobs.finish()
        if self.dataset is None:
            return
        job = ReportJob(
            root=self.root,
            dataset=self.dataset,
            shards=self._selected,
            counts=self.counts,
            blocks=self.blocks,
            stages=self.jobs.times(),
            settings=self.settings.report,
        )
        self.jobs.expect("report", 1)
        self.jobs.add(job, lambda _: None)
        self.jobs.finish()

    def check_prepared(self) -> None:
        """Check that there is something to select from.

        Raises
        ------
        BadShardError
            If there is not; the message says why.
        """
        bad = list(self.jobs.quarantined.values())
        reasons = "; ".join(bad[:LISTED]) + (f"; and {len(bad) - LISTED:,} more" if len(bad) > LISTED else "")
        if not self.documents:
            raise BadShardError(f"no source file could be read: {reasons}")
        if not any(file.rows for file in self.documents.values()):
            raise BadShardError("no document passed the ingest settings: check min_chars, languages and text_column")
        if not self.selectable:
            raise BadShardError(f"no shard could be scored and embedded: {reasons}")

    def _finish_preparation(self) -> None:
        self.jobs.finish()
        end_workers()

    @property
    def is_prepared(self) -> bool:
        """Whether every shard has what a selection reads."""
        return bool(self.duplicates) and len(self.selectable) == len(self.shards)

    @property
    def output(self) -> Output:
        """The place of the dataset."""
        return Output.of(self.workspace, self.settings.materialize)

    @property
    def groups(self) -> list[StageFile]:
        """The groups of shards that were selected from together, in the order of their names."""
        return [self._groups[name] for name in sorted(self._groups)]

    @property
    def blocks(self) -> list[dict[str, Any]]:
        """What the selection recorded of every block, or of the whole corpus."""
        return merged([block for group in self.groups for block in group.details["blocks"]])

    @property
    def counts(self) -> Counts:
        """The document and token counts of the shards that were selected from."""
        return account([shard.documents for shard in self._selected], self.groups)

    def catalog_files(self, quarantined: Container[str] = ()) -> list[ShardFiles]:
        """Return the files of every shard, in the order of the source, for the catalog."""
        return [self.files_of(name) for name in self.shards if name in self.documents and name not in quarantined]

    @property
    def _selected(self) -> list[ShardFiles]:
        return [shard for shard in self.selectable if shard.name in self.masks]

    def _on_ingested(self, name: str, file: StageFile | None) -> None:
        self.ingested.add(name)
        if file is not None:
            self.documents[name] = file
            self._rows += file.rows
        self.changed(name)
        self._select_full_groups()

    def _on_trained(self, scorer: FastTextScorerSettings, file: StageFile | None) -> None:
        if file is not None:
            self._models[scorer.name] = fitted_model(scorer, file)
            self.changed()

    def _fit(self, shard: str | None) -> None:
        """Fit what an earlier run fitted at once, and the rest when its sample is ingested."""
        if shard is not None and shard not in self.sample:
            return
        sample = [self.documents[name] for name in self.sample if name in self.documents]
        ready = self.ingested.issuperset(self.sample) and any(file.rows for file in sample)
        settings = self.settings
        jobs: list[tuple[FitJob, OnDone]] = []
        if len(self._models) == len(settings.quality.scorers):
            statistics = FitStatisticsJob(
                root=self.root,
                documents=sample,
                models=[
                    model for model in self._models_in_order if not isinstance(model.settings, ClassesScorerSettings)
                ],
                settings=settings.quality,
                sidecars={file.name: found for file in sample if (found := self._sidecars_of(file.name))},
                processes=self._processes,
                force=FitStatisticsJob.stage.name in self._refit,
            )
            jobs.append((statistics, self._on_statistics))
        if settings.embedding.model == STATIC:
            encoder = FitEncoderJob(
                root=self.root,
                documents=sample,
                settings=settings.embedding,
                force=FitEncoderJob.stage.name in self._refit,
            )
            jobs.append((encoder, self._on_encoder))
        for job, on_done in jobs:
            if job.name not in self._fitting and (ready or (not job.force and job.current() is not None)):
                self._fitting.add(job.name)
                self.jobs.expect("fit", 1)
                self.jobs.add(job, on_done)

    def _on_statistics(self, file: StageFile | None) -> None:
        self._statistics = file
        self.changed()

    def _on_encoder(self, file: StageFile | None) -> None:
        self._encoder = None if file is None else embed.fitted_model(file)
        self.changed()

    @property
    def models(self) -> tuple[list[QualityModel], StageFile, str, str] | None:
        """The scorers, their statistics, and the path and fingerprint of the encoder; None if one is not there."""
        if self._statistics is None or self._encoder is None or len(self._models) < len(self.settings.quality.scorers):
            return None
        return self._models_in_order, self._statistics, self._encoder.path, self._encoder.fingerprint

    @property
    def _models_in_order(self) -> list[QualityModel]:
        return [self._models[scorer.name] for scorer in self.settings.quality.scorers]

    @property
    def _processes(self) -> int:
        """Processes that are worth starting for the documents of the corpus, estimated from the ingested shards."""
        engine = self.settings.engine
        if engine.kind == "ray":  # a job has the cores that Ray set aside for it
            return max(1, int(engine.resources.get(ScoreJob.stage.name, JobResources()).num_cpus))
        expected = self._rows * len(self.shards) // max(1, len(self.documents))
        return useful_processes(expected, self.settings.engine.score_processes)

    def _score_job(self, documents: StageFile) -> ScoreJob | None:
        if self._statistics is None:
            return None
        return ScoreJob(
            root=self.root,
            documents=documents,
            models=self._models_in_order,
            statistics=self._statistics,
            settings=self.settings.quality,
            sidecars=self._sidecars_of(documents.name),
            processes=1 if self.settings.embedding.model == FROM_QUALITY else self._processes,
        )

    def _sidecars_of(self, name: str) -> dict[str, Sidecar]:
        return {scorer: files.beside(self.shards[name]) for scorer, files in self._sidecars.items()}

    def _score_embed_job(self, documents: StageFile) -> ScoreEmbedJob | None:
        job = self._score_job(documents)
        return None if job is None else ScoreEmbedJob.of(job, self.settings.embedding)

    def _embed_job(self, documents: StageFile) -> EmbedJob | None:
        if self._encoder is None:
            return None
        return EmbedJob(root=self.root, documents=documents, model=self._encoder, settings=self.settings.embedding)

    def _model_of_vectors(self, documents: StageFile) -> str:
        """Return a digest of the model that made a shard's vectors, and of its settings."""
        job = self._embed_job(documents)
        if job is None and (together := self._score_embed_job(documents)) is not None:  # they are a scorer's
            job = together.embed
        return "" if job is None else digest([job.key.settings, job.model.fingerprint])

    def _on_scored_and_embedded(self, job: StageJob, file: StageFile | None) -> None:
        files = None
        if file is not None and isinstance(job, ScoreEmbedJob):
            files = job.files(self.listing) or job.files()
        if files is not None:
            self.scores[job.name], self.embeddings[job.name] = files
        self._duplicates.compare_vectors(job.name)

    def _on_embedded(self, job: StageJob, file: StageFile | None) -> None:
        keep(self.embeddings, job, file)
        self._duplicates.compare_vectors(job.name)

    def _on_selected(self, job: SelectJob, group: StageFile | None) -> None:
        if group is not None:
            self._groups[group.name] = group
            self.masks.update(self.files_of_job(job))
            if self._early is not None:
                self._early.add(job.shard_names, self._selected_files, is_new=not group.cached)

    def _selected_files(self, name: str) -> ShardFiles | None:
        """Return the files of a shard, None if it is left out.

        Raises
        ------
        KeyError
            If it is not selected from yet.
        """
        if self.is_left_out(name):
            return None
        return self.files_of(name).model_copy(update={"masks": self.masks[name]})

    def _on_materialized(self, file: StageFile | None) -> None:
        self.dataset = file
