"""Plan the pipeline: add each job as soon as the outputs that it depends on exist.

A shard is scored and embedded as soon as it is ingested, without waiting for other shards. Two things are made from
many shards: what is fitted on a sample of the corpus (the first time only), and the duplicates across it, exact and
near ones, if they are looked for.
"""

from collections import deque
from collections.abc import Callable, Collection, Container
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

from fineweb_mask.flows.engine.choices import REFITTED, PretrainedModels, Refit, Share, is_trained
from fineweb_mask.flows.engine.dataset import EarlyParts, remove_left_parts, write_dataset
from fineweb_mask.flows.engine.scheduler import Jobs, OnDone, add_all
from fineweb_mask.flows.engine.selection.budgets import divide_budget
from fineweb_mask.flows.engine.selection.corpus import Vectors, select_from_corpus
from fineweb_mask.models.settings import FROM_QUALITY, STATIC, PipelineSelectionSettings, PipelineSettings
from fineweb_mask.models.settings.engine import JobResources
from fineweb_mask.models.settings.quality import ClassesScorerSettings, FastTextScorerSettings
from fineweb_mask.tasks import embed
from fineweb_mask.tasks.dataset.output import Output
from fineweb_mask.tasks.dataset.partitioning import Partitioning
from fineweb_mask.tasks.dedup.arrivals import in_order_of_arrival, remember_arrivals
from fineweb_mask.tasks.dedup.cells import CellsJob, CentresJob
from fineweb_mask.tasks.dedup.duplicates import DedupJob, no_duplicates
from fineweb_mask.tasks.dedup.hashes import HashJob
from fineweb_mask.tasks.dedup.near_duplicates import NearDedupJob
from fineweb_mask.tasks.dedup.pairs import pairs_jobs
from fineweb_mask.tasks.dedup.repeats import repeats_jobs
from fineweb_mask.tasks.dedup.signatures import SignatureJob
from fineweb_mask.tasks.dedup.similar import similar_jobs
from fineweb_mask.tasks.embed import EmbedJob
from fineweb_mask.tasks.exclusion.benchmarks import BenchmarksJob
from fineweb_mask.tasks.exclusion.known import KnownJob
from fineweb_mask.tasks.export import ExportJob
from fineweb_mask.tasks.fit.job import FitJob, sampled_shards
from fineweb_mask.tasks.fit.models import FitClassifierJob, FitEncoderJob, FitStatisticsJob
from fineweb_mask.tasks.fit.targets import FitTargetsJob
from fineweb_mask.tasks.inference.scorers import QualityModel, fitted_model
from fineweb_mask.tasks.inference.scoring_pool import end_scoring_processes, useful_processes
from fineweb_mask.tasks.ingest import IngestJob
from fineweb_mask.tasks.judge import JudgeJob, Work
from fineweb_mask.tasks.materialize import MaterializeJob
from fineweb_mask.tasks.report import ReportJob
from fineweb_mask.tasks.score import ScoreJob
from fineweb_mask.tasks.score_embed import ScoreEmbedJob
from fineweb_mask.tasks.select import SelectJob
from fineweb_mask.tasks.selection.blocks import merged
from fineweb_mask.tasks.selection.contenders import reads_targets
from fineweb_mask.tasks.selection.corpus.learning import KeepRuleJob
from fineweb_mask.tasks.selection.given import EarlierSelection
from fineweb_mask.tasks.selection.groups import Groups, Packing, grouped, remember_groups, remembered_groups
from fineweb_mask.tasks.source.discovery import SourceShard, find_files
from fineweb_mask.tasks.source.sidecars import Sidecar
from fineweb_mask.tasks.workspace.counts import Counts, account
from fineweb_mask.tasks.workspace.job import BadShardError, GroupJob, StageJob
from fineweb_mask.tasks.workspace.listing import Listing
from fineweb_mask.tasks.workspace.references import StageFile, digest
from fineweb_mask.tasks.workspace.shard_files import NO_FILE, ShardFiles
from fineweb_mask.tasks.workspace.workspace import Workspace

if TYPE_CHECKING:
    from pathlib import Path

LISTED = 3
"""Most reasons in one message."""


class Plan:
    """The stages of one corpus: each method asks for the stage of its name.

    Parameters
    ----------
    jobs
        Takes the jobs: runs them, or only checks whether they are done.
    workspace
        The workspace of the corpus.
    settings
        The recipe.
    shards
        The source's files.
    models
        The models that the settings name.
    listing
        The stage files that were there before. Without it, files are opened to see whether they are current.
    refit
        What is fitted again, although an earlier run fitted it.
    share
        The shards that are worked on, besides those of the sample that is fitted on; None works on all.
    refresh
        Names of the stages that are run again, although their outputs are current.
    remembers
        Whether to record in which order shards came, and which are selected from together, for later runs.
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
        self.documents: dict[str, StageFile] = {}  # by shard, as are the next four
        self.scores: dict[str, StageFile] = {}
        self.embeddings: dict[str, StageFile] = {}
        self.duplicates: dict[str, StageFile] = {}
        self.masks: dict[str, StageFile] = {}
        self._groups: dict[str, StageFile] = {}  # of shards that were selected from together, by name
        self._early: EarlyParts | None = None  # of the dataset
        self.dataset: StageFile | None = None
        self.exports: dict[str, Path] = {}  # folders of training files, by name
        self._jobs = jobs
        self._listing = listing
        self._remembers = remembers
        self._workspace = workspace
        self._root = workspace.address
        self._settings = settings
        self._shards = {shard.name: shard for shard in shards}
        self._own = list(self._shards) if share is None else list(self._shards)[share.number - 1 :: share.of]
        self._models = dict(models.scorers)
        self._encoder = models.encoder
        self._sidecars = models.sidecars
        self._statistics: StageFile | None = None
        self.targets: StageFile | None = None  # examples of target tasks
        self.selecting = models.selecting
        self._given = EarlierSelection.of(settings)
        self._refresh = frozenset(refresh)
        self._refit = frozenset(stage.name for name in refit for stage in REFITTED[name])
        self._sample = sampled_shards(workspace, list(self._shards), refit=self._refit)
        self._fitting: set[str] = set()
        self._ingested: set[str] = set()  # or quarantined
        self._hashed: set[str] = set()
        self._sketched: set[str] = set()
        self._dedup_job: DedupJob | None = None  # once every shard is ingested
        self._near_job: NearDedupJob | None = None  # once exact duplicates are known, too
        self._centres: StageFile | None = None  # of cells of vectors
        is_near = settings.ingest.near_dedup != "off"
        self._exact: dict[str, StageFile] = {} if is_near else self.duplicates  # by shard
        self._rows = 0  # that are ingested
        self._asked: list[Callable[[str | None], None]] = []
        self._selecting: set[str] = set()  # names of groups
        self._packing: Packing | None = None  # of the groups that are selected from early, if any are
        self._unpacked = deque(sorted(self._shards))

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
        self._jobs.expect("ingest", len(self._to_ingest))
        settings, lists = self._settings.ingest, dict[str, StageFile | None]()
        listing: dict[str, StageJob] = {}
        if settings.against:
            files = [file for path in settings.against for file in find_files(path, "ingest.against")]
            listing["known"] = KnownJob(root=self._root, files=files)
        if settings.decontaminate:
            files = [file for path in settings.decontaminate for file in find_files(path, "ingest.decontaminate")]
            listing["benchmarks"] = BenchmarksJob(root=self._root, files=files)

        def on_listed(name: str, file: StageFile | None) -> None:
            lists[name] = file
            if len(lists) == len(listing):
                self._ingest(**lists)

        if not listing:
            self._ingest()
            return
        self._jobs.expect("fit", len(listing))
        for name, job in listing.items():
            self._jobs.add(job, partial(on_listed, name))

    def _ingest(self, known: StageFile | None = None, benchmarks: StageFile | None = None) -> None:
        settings = self._settings
        for name in self._to_ingest:
            job = IngestJob(
                root=self._root,
                shard=self._shards[name],
                source=settings.source,
                settings=settings.ingest,
                known=known,
                benchmarks=benchmarks,
            )
            self._jobs.add(job, partial(self._on_ingested, name))

    @property
    def _to_ingest(self) -> list[str]:
        return list(dict.fromkeys([*self._sample, *self._own]))

    def fit(self) -> None:
        """Train classifiers on labels; fit the score statistics and the built-in encoder on a sample of the corpus.

        What was fitted by an earlier run is used at once.
        """
        for scorer in self._settings.quality.scorers:
            if is_trained(scorer):
                self._jobs.expect("fit", 1)
                job = FitClassifierJob.of(self._root, scorer, force=FitClassifierJob.stage.name in self._refit)
                self._jobs.add(job, partial(self._on_trained, scorer))
        self._ask(self._fit)

    def score(self) -> None:
        """Score every shard when it is ingested and the statistics are fitted; `from_quality` embeds it, too."""
        if self._settings.embedding.model == FROM_QUALITY:
            self._ask_per_shard("score_embed", self._score_embed_job, self._on_scored_and_embedded)
        else:
            self._ask_per_shard("score", self._score_job, partial(_keep, self.scores))

    def embed(self) -> None:
        """Embed every shard when it is ingested and the encoder is fitted; with `from_quality`, `score` does it.

        Vectors that are not stored are made by the jobs that read them (`embedding.keep`).
        """
        if not self._settings.embedding.keep:
            self._ask(self._find_vectors)
        elif self._settings.embedding.model != FROM_QUALITY:
            self._ask_per_shard("embed", self._embed_job, self._on_embedded)

    def deduplicate(self) -> None:
        """Sort the hashes of every shard when it is ingested, and compare all shards when the last one's are sorted.

        Where duplicates are not looked for across shards, a shard waits for no other.
        """
        self.sort_hashes()
        if self._settings.ingest.exact_dedup == "corpus":
            self._jobs.expect("dedup", 1)
            self._ask(self._compare)
        else:
            self._ask(self._keep_all)
        if self._settings.ingest.near_dedup != "off":
            self._jobs.expect("dedup", 1)
            self._ask(self._compare_near)

    def sort_hashes(self) -> None:
        """Sort the hashes of every shard when it is ingested, and sketch its texts, if shards are to be compared."""
        if self._settings.ingest.exact_dedup == "corpus":
            self._ask_per_shard("dedup", self._hash_job, self._on_hashed)
        if self._settings.ingest.near_dedup != "off":
            self._ask_per_shard("dedup", self._signature_job, self._on_sketched)

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
        settings = self._settings
        if settings.selection.targets is None or self._encoder is None or not self.documents:
            return
        job = FitTargetsJob(
            root=self._root,
            documents=[self.documents[name] for name in self._sample if name in self.documents],
            files=find_files(settings.selection.targets.path, "selection.targets.path"),
            settings=settings.selection.targets,
            embedding=settings.embedding,
            encoder=self._encoder.path,
            encoder_fingerprint=self._encoder.fingerprint,
            force=FitTargetsJob.stage.name in self._refit,
        )
        self._jobs.expect("fit", 1)
        self._jobs.add(job, self._on_targets)
        self._jobs.finish()

    def _on_targets(self, file: StageFile | None) -> None:
        self.targets = file

    @property
    def _reads_targets(self) -> bool:
        """Whether the recipe's solver reads target examples or compares texts with theirs."""
        return reads_targets([self._settings.selection.solver])

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
        settings = self._settings.selection
        if settings.scope == "global":
            self._select_from_corpus()
            return
        with self._workspace.alone() if self._remembers else nullcontext():
            groups = grouped(self.selectable, settings, remembered_groups(self._workspace, settings))
            if self._remembers:
                remember_groups(self._workspace, settings, groups)
        if settings.block_budget == "price":
            divide_budget(self._jobs, self._root, groups, settings, self._add_selecting)
            return
        self._select_from(groups, settings)

    def _select_from_corpus(self) -> None:
        """Select from all shards at once, with what these models made."""
        models = [model.identity for model in self._models_in_order]
        models += [file.fingerprint for file in (self._statistics, self._encoder) if file is not None]
        is_refitted = KeepRuleJob.stage.name in self._refit
        rule = KeepRuleJob(root=self._root, settings=self._settings.selection, models=models, force=is_refitted)
        vectors = Vectors(self._dimensions, self._reading, self._stored)
        select_from_corpus(self._jobs, self.selectable, rule, self._add_selecting, vectors)

    def _dimensions(self) -> int:
        """Return how many values the vectors of the shards have."""
        if stored := [shard.embeddings for shard in self.selectable if shard.embeddings.path]:
            return max(int(file.details["dimensions"]) for file in stored)
        jobs = map(self._embed_job, self.documents.values())
        return next(embed.dimensions_of(job) for job in jobs if job is not None)

    def _reading(self, work: Work) -> StageJob:
        """Return a job that reads a shard's vectors, or else the one that makes them for it."""
        [shard] = work.shards if isinstance(work, SelectJob) else [work.shard]
        job = self._embed_job(shard.documents)
        if self._settings.embedding.keep or shard.embeddings.path or shard.worth.path or job is None:
            return work
        return JudgeJob(root=self._root, embed=job, work=work)

    def _stored(self) -> list[ShardFiles]:
        """Store the vectors of all shards, and return the shards that have them."""
        for name in [] if self._settings.embedding.keep else list(self.embeddings):
            job = self._embed_job(self.documents[name])
            if job is not None and not self.embeddings[name].path:
                del self.embeddings[name]
                self._jobs.expect("embed", 1)
                self._jobs.add(job, partial(_keep, self.embeddings, job))
        self._jobs.finish()
        return self.selectable

    def select_early(self) -> None:
        """Select from each group of shards as soon as these are prepared, where nothing in it depends on later ones.

        This is so if duplicates are not looked for across shards, blocks follow the order of the names, and each gives
        the same share.
        """
        settings = self._settings
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
            if not self._is_left_out(name):
                if not all(name in files for files in (self.duplicates, self.scores, self.embeddings)):
                    return
                self._select_from(self._packing.add(self._files_of(name)), self._settings.selection)
            self._unpacked.popleft()

    def _is_left_out(self, name: str) -> bool:
        return name in self._jobs.quarantined or (name in self._ingested and name not in self.documents)

    def _select_from(self, groups: Groups, settings: PipelineSelectionSettings) -> None:
        self._add_selecting(
            [
                SelectJob(
                    root=self._root,
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
        self._jobs.expect("select", len(new))
        for job in new:
            self._selecting.add(job.name)
            self._jobs.add(job if job.rule is None else self._reading(job), partial(self._on_selected, job))

    def write_early(self) -> None:
        """Write each part of the dataset as soon as its own shards are selected from, where that is possible."""
        self._early = EarlyParts(self._jobs, self._root, self._shards, self._settings.materialize)

    def materialize(self) -> None:
        """Write the dataset, or what is not written of it, when every block is selected from."""
        self._jobs.finish()
        at_once = self._jobs.at_once
        parts = Partitioning(self._root, self._selected, self._shards, self._settings.materialize, at_once)
        job = MaterializeJob(
            root=self._root,
            inputs=parts.inputs,
            version=parts.version,
            counts=self.counts,
            blocks=self.blocks,
            recipe=self._settings,
        )
        if self._remembers:
            remove_left_parts(parts, job)
        early = {} if self._early is None else self._early.written
        write_dataset(self._jobs, parts, job, self._on_materialized, early)

    def export(self) -> None:
        """Write the training files, when the dataset is written."""
        self._jobs.finish()
        exports = self._settings.materialize.export
        if self.dataset is None or not exports:
            return
        output = Output.of(self._workspace, self._settings.materialize)
        own = f"{self._root}/dataset" if self._workspace.url is not None else str(output.folder)
        self._jobs.expect("export", len(exports))
        for settings in exports:
            place = output.url or (own if output.is_own else str(output.folder))
            job = ExportJob(root=self._root, dataset=self.dataset, place=place, settings=settings)
            self.exports[settings.folder] = job.folder
            self._jobs.add(job, lambda _: None)
        self._jobs.finish()

    def report(self) -> None:
        """Write the report, when the dataset is written."""
        self._jobs.finish()
        if self.dataset is None:
            return
        job = ReportJob(
            root=self._root,
            dataset=self.dataset,
            shards=self._selected,
            counts=self.counts,
            blocks=self.blocks,
            stages=self._jobs.times(),
            settings=self._settings.report,
            has_vectors=self._settings.embedding.keep or not self._is_by_rule,
        )
        self._jobs.expect("report", 1)
        self._jobs.add(job, lambda _: None)
        self._jobs.finish()

    def check_prepared(self) -> None:
        """Check that there is something to select from.

        Raises
        ------
        BadShardError
            If there is not; the message says why.
        """
        bad = list(self._jobs.quarantined.values())
        reasons = "; ".join(bad[:LISTED]) + (f"; and {len(bad) - LISTED:,} more" if len(bad) > LISTED else "")
        if not self.documents:
            raise BadShardError(f"no source file could be read: {reasons}")
        if not any(file.rows for file in self.documents.values()):
            raise BadShardError("no document passed the ingest settings: check min_chars, languages and text_column")
        if not self.selectable:
            raise BadShardError(f"no shard could be scored and embedded: {reasons}")

    def _finish_preparation(self) -> None:
        self._jobs.finish()
        end_scoring_processes()

    @property
    def selectable(self) -> list[ShardFiles]:
        """The shards that are scored and embedded, in the order of the source."""
        return [self._files_of(name) for name in self._shards if name in self.scores and name in self.embeddings]

    @property
    def is_prepared(self) -> bool:
        """Whether every shard has what a selection reads."""
        return bool(self.duplicates) and len(self.selectable) == len(self._shards)

    @property
    def output(self) -> Output:
        """The place of the dataset."""
        return Output.of(self._workspace, self._settings.materialize)

    @property
    def groups(self) -> list[StageFile]:
        """The groups of shards that were selected from together, in the order of their names."""
        return [self._groups[name] for name in sorted(self._groups)]

    @property
    def _is_by_rule(self) -> bool:
        """Whether a rule selected, which takes no stored vectors."""
        return any(block.get("by_rule") for group in self.groups for block in group.details["blocks"])

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
        return [self._files_of(name) for name in self._shards if name in self.documents and name not in quarantined]

    @property
    def _selected(self) -> list[ShardFiles]:
        return [shard for shard in self.selectable if shard.name in self.masks]

    def _files_of(self, name: str) -> ShardFiles:
        return ShardFiles(
            documents=self.documents[name],
            scores=self.scores.get(name, NO_FILE),
            embeddings=self.embeddings.get(name, NO_FILE),
            duplicates=self.duplicates.get(name, NO_FILE),
            masks=self.masks.get(name, NO_FILE),
        )

    def _ask(self, plan_ready: Callable[[str | None], None]) -> None:
        """Call `plan_ready` now and after every change: with a shard, or with None if all may be ready."""
        self._asked.append(plan_ready)
        plan_ready(None)

    def _changed(self, shard: str | None = None) -> None:
        for plan_ready in self._asked:
            plan_ready(shard)

    def _ask_per_shard(
        self,
        stage: str,
        job_of: Callable[[StageFile], StageJob | None],
        on_done: Callable[[StageJob, StageFile | None], None],
    ) -> None:
        """Add a job for every shard that is ingested, as soon as `job_of` returns one for its documents."""
        waiting = dict.fromkeys(self._own)

        def plan_ready(shard: str | None) -> None:
            for name in list(waiting) if shard is None else [shard] if shard in waiting else []:
                if name in self.documents:
                    job = job_of(self.documents[name])
                    if job is not None:
                        del waiting[name]
                        self._jobs.add(job, partial(self._after, on_done, job))
                elif name in self._ingested:
                    del waiting[name]
                    self._jobs.expect(stage, -1)

        self._jobs.expect(stage, len(self._own))
        self._ask(plan_ready)

    def _after(
        self, on_done: Callable[[StageJob, StageFile | None], None], job: StageJob, file: StageFile | None
    ) -> None:
        on_done(job, file)
        self._select_full_groups()

    def _on_ingested(self, name: str, file: StageFile | None) -> None:
        self._ingested.add(name)
        if file is not None:
            self.documents[name] = file
            self._rows += file.rows
        self._changed(name)
        self._select_full_groups()

    def _on_trained(self, scorer: FastTextScorerSettings, file: StageFile | None) -> None:
        if file is not None:
            self._models[scorer.name] = fitted_model(scorer, file)
            self._changed()

    def _fit(self, shard: str | None) -> None:
        """Fit what an earlier run fitted at once, and the rest when its sample is ingested."""
        if shard is not None and shard not in self._sample:
            return
        sample = [self.documents[name] for name in self._sample if name in self.documents]
        ready = self._ingested.issuperset(self._sample) and any(file.rows for file in sample)
        settings = self._settings
        jobs: list[tuple[FitJob, OnDone]] = []
        if len(self._models) == len(settings.quality.scorers):
            statistics = FitStatisticsJob(
                root=self._root,
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
                root=self._root,
                documents=sample,
                settings=settings.embedding,
                force=FitEncoderJob.stage.name in self._refit,
            )
            jobs.append((encoder, self._on_encoder))
        for job, on_done in jobs:
            if job.name not in self._fitting and (ready or (not job.force and job.current() is not None)):
                self._fitting.add(job.name)
                self._jobs.expect("fit", 1)
                self._jobs.add(job, on_done)

    def _on_statistics(self, file: StageFile | None) -> None:
        self._statistics = file
        self._changed()

    def _on_encoder(self, file: StageFile | None) -> None:
        self._encoder = None if file is None else embed.fitted_model(file)
        self._changed()

    @property
    def models(self) -> tuple[list[QualityModel], StageFile, str, str] | None:
        """The scorers, their statistics, and the path and fingerprint of the encoder; None if one is not there."""
        if self._statistics is None or self._encoder is None or len(self._models) < len(self._settings.quality.scorers):
            return None
        return self._models_in_order, self._statistics, self._encoder.path, self._encoder.fingerprint

    @property
    def _models_in_order(self) -> list[QualityModel]:
        return [self._models[scorer.name] for scorer in self._settings.quality.scorers]

    @property
    def _processes(self) -> int:
        """Processes that are worth starting for the documents of the corpus, estimated from the ingested shards."""
        engine = self._settings.engine
        if engine.kind == "ray":  # a job has the cores that Ray set aside for it
            return max(1, int(engine.resources.get(ScoreJob.stage.name, JobResources()).num_cpus))
        expected = self._rows * len(self._shards) // max(1, len(self.documents))
        return useful_processes(expected, self._settings.engine.score_processes)

    def _score_job(self, documents: StageFile) -> ScoreJob | None:
        if self._statistics is None:
            return None
        return ScoreJob(
            root=self._root,
            documents=documents,
            models=self._models_in_order,
            statistics=self._statistics,
            settings=self._settings.quality,
            sidecars=self._sidecars_of(documents.name),
            processes=1 if self._settings.embedding.model == FROM_QUALITY else self._processes,
        )

    def _sidecars_of(self, name: str) -> dict[str, Sidecar]:
        return {scorer: files.beside(self._shards[name]) for scorer, files in self._sidecars.items()}

    def _score_embed_job(self, documents: StageFile) -> ScoreEmbedJob | None:
        job = self._score_job(documents)
        return None if job is None else ScoreEmbedJob.of(job, self._settings.embedding)

    def _embed_job(self, documents: StageFile) -> EmbedJob | None:
        if self._encoder is None:
            return None
        return EmbedJob(root=self._root, documents=documents, model=self._encoder, settings=self._settings.embedding)

    def _find_vectors(self, shard: str | None) -> None:
        """Enter the vectors that an earlier run stored; others are known by the same key, and are not there."""
        for name in self.documents if shard is None else [shard]:
            job = self._embed_job(self.documents[name]) if name in self.documents else None
            if job is not None and name not in self.embeddings:
                self.embeddings[name] = self._jobs.done(job) or job.unstored

    def _on_scored_and_embedded(self, job: StageJob, file: StageFile | None) -> None:
        files = None
        if file is not None and isinstance(job, ScoreEmbedJob):
            files = job.files(self._listing) or job.files()
        if files is not None:
            self.scores[job.name], self.embeddings[job.name] = files
        self._compare_vectors(job.name)

    def _on_embedded(self, job: StageJob, file: StageFile | None) -> None:
        _keep(self.embeddings, job, file)
        self._compare_vectors(job.name)

    def _compare_vectors(self, shard: str) -> None:
        """Go on with near-duplicates that are found by vectors, those of one more shard being there."""
        if self._settings.ingest.near_dedup != "semantic":
            return
        sample = [name for name in self._sample if name in self.documents and name not in self._jobs.quarantined]
        is_sampled = self._ingested.issuperset(self._sample) and all(name in self.embeddings for name in sample)
        if is_sampled and sample and "centres" not in self._fitting:
            self._fitting.add("centres")
            self._jobs.expect("dedup", 1)
            job = CentresJob(
                root=self._root,
                embeddings=[self.embeddings[name] for name in sample],
                model=self._model_of_vectors(self.documents[sample[0]]),
                settings=self._settings.ingest.semantic,
            )
            self._jobs.add(job, self._on_centres)
        self._changed(shard)

    def _model_of_vectors(self, documents: StageFile) -> str:
        """Return a digest of the model that made a shard's vectors, and of its settings."""
        job = self._embed_job(documents)
        if job is None and (together := self._score_embed_job(documents)) is not None:  # they are a scorer's
            job = together.embed
        return "" if job is None else digest([job.key.settings, job.model.fingerprint])

    def _on_centres(self, file: StageFile | None) -> None:
        self._centres = file
        self._changed()

    def _keep_all(self, shard: str | None) -> None:
        for name in self.documents if shard is None else [shard]:
            if name in self.documents:
                self._exact[name] = no_duplicates(name)

    def _hash_job(self, documents: StageFile) -> HashJob:
        return HashJob(root=self._root, documents=documents)

    def _on_hashed(self, job: StageJob, file: StageFile | None) -> None:
        if file is not None:
            self._hashed.add(job.name)
            self._compare(None)

    def _compare(self, _shard: str | None) -> None:
        """Compare all shards, bucket by bucket, unless an earlier run listed the duplicates of every shard."""
        if "dedup" in self._fitting or len(self._ingested) < len(self._shards) or not self.documents:
            return
        if self._dedup_job is None:
            self._dedup_job = self._in_order_of_arrival()
            is_again = DedupJob.stage.name in self._refresh
            if not is_again and self._dedup_job.current(self._listing) is not None:  # hashes that are lost do not count
                self._fitting.add("dedup")
                self._jobs.add(self._dedup_job, partial(self._on_deduplicated, self._dedup_job))
                return
        if len(self._hashed) == len(self.documents):
            self._fitting.add("dedup")
            buckets = repeats_jobs(self._root, self._dedup_job.hashes, self._settings.materialize.memory_limit)
            add_all(self._jobs, buckets, partial(self._on_compared, self._dedup_job))

    def _in_order_of_arrival(self) -> DedupJob:
        hashes = [self._hash_job(shard).reference(shard.rows) for shard in self._arrived()]
        return DedupJob(root=self._root, hashes=hashes)

    def _arrived(self) -> list[StageFile]:
        """Return the documents of all shards in the order in which they came, which is remembered."""
        with self._workspace.alone() if self._remembers else nullcontext():
            names = in_order_of_arrival(self._workspace, self.documents)
            if self._remembers:
                remember_arrivals(self._workspace, names)
        return [self.documents[name] for name in names]

    def _on_compared(self, job: DedupJob, buckets: list[StageFile]) -> None:
        self._jobs.add(job.model_copy(update={"repeats": tuple(buckets)}), partial(self._on_deduplicated, job))

    def _on_deduplicated(self, job: DedupJob, file: StageFile | None) -> None:
        if file is not None:
            self._exact.update(self._files_of_job(job))
            self._compare_near(None)

    def _signature_job(self, documents: StageFile) -> SignatureJob | CellsJob | None:
        """Return what makes a shard's documents comparable with those of others, if what it reads is there."""
        settings = self._settings.ingest
        if settings.near_dedup == "minhash":
            return SignatureJob(root=self._root, documents=documents, settings=settings.minhash)
        if self._centres is None or documents.name not in self.embeddings:
            return None
        embeddings = self.embeddings[documents.name]
        return CellsJob(root=self._root, embeddings=embeddings, centres=self._centres, settings=settings.semantic)

    def _on_sketched(self, job: StageJob, file: StageFile | None) -> None:
        if file is not None:
            self._sketched.add(job.name)
            self._compare_near(None)

    def _compare_near(self, _shard: str | None) -> None:
        """Compare the signatures of all shards, unless an earlier run listed the near-duplicates of every shard."""
        settings = self._settings.ingest
        if settings.near_dedup == "off" or "near_dedup" in self._fitting or not self.documents:
            return
        if len(self._ingested) < len(self._shards) or len(self._exact) < len(self.documents):
            return
        if self._near_job is None:
            waiting = self.documents.keys() - self.embeddings.keys() - self._jobs.quarantined.keys()
            if settings.near_dedup == "semantic" and (self._centres is None or waiting):
                return
            keys = settings.minhash.bands if settings.near_dedup == "minhash" else 1
            shards = [(shard, job) for shard in self._arrived() if (job := self._signature_job(shard)) is not None]
            self._near_job = NearDedupJob(
                root=self._root,
                signatures=[job.reference(keys * shard.rows) for shard, job in shards],
                exact=[self._exact[shard.name] for shard, _ in shards],
            )
            is_again = NearDedupJob.stage.name in self._refresh
            if not is_again and self._near_job.current(self._listing) is not None:
                self._fitting.add("near_dedup")
                self._jobs.add(self._near_job, partial(self._on_near_deduplicated, self._near_job))
                return
        if self._sketched.issuperset(self._near_job.shard_names):
            self._fitting.add("near_dedup")
            signatures, buckets = self._near_job.signatures, list[StageJob]()
            if settings.near_dedup == "minhash":
                buckets += pairs_jobs(self._root, signatures, self._settings.materialize.memory_limit)
            else:
                dimensions = max(int(file.details["dimensions"]) for file in self.embeddings.values())
                buckets += similar_jobs(self._root, signatures, dimensions, settings.semantic)
            add_all(self._jobs, buckets, partial(self._on_paired, self._near_job))

    def _on_paired(self, job: NearDedupJob, buckets: list[StageFile]) -> None:
        self._jobs.add(job.model_copy(update={"pairs": tuple(buckets)}), partial(self._on_near_deduplicated, job))

    def _on_near_deduplicated(self, job: NearDedupJob, file: StageFile | None) -> None:
        if file is not None:
            self.duplicates.update(self._files_of_job(job))

    def _on_selected(self, job: SelectJob, group: StageFile | None) -> None:
        if group is not None:
            self._groups[group.name] = group
            self.masks.update(self._files_of_job(job))
            if self._early is not None:
                self._early.add(job.shard_names, self._selected_files, is_new=not group.cached)

    def _selected_files(self, name: str) -> ShardFiles | None:
        """Return the files of a shard, None if it is left out.

        Raises
        ------
        KeyError
            If it is not selected from yet.
        """
        if self._is_left_out(name):
            return None
        return self._files_of(name).model_copy(update={"masks": self.masks[name]})

    def _files_of_job(self, job: GroupJob) -> dict[str, StageFile]:
        """Return the files of a job's shards by the shard's name; they may be newer than the listing."""
        return {file.name: file for file in job.shard_files(self._listing) or job.shard_files() or []}

    def _on_materialized(self, file: StageFile | None) -> None:
        self.dataset = file


def _keep(files: dict[str, StageFile], job: StageJob, file: StageFile | None) -> None:
    if file is not None:
        files[job.name] = file
