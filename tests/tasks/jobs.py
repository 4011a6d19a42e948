"""Make jobs from what a test has at hand."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, Self

from fineweb_mask.models.settings import MaterializeSettings
from fineweb_mask.tasks.comparison.variants import RangesJob, VariantJob
from fineweb_mask.tasks.dataset import partition
from fineweb_mask.tasks.dataset.partitioning import Partitioning
from fineweb_mask.tasks.dedup.duplicates import DedupJob
from fineweb_mask.tasks.dedup.hashes import HashJob, sort_hashes
from fineweb_mask.tasks.dedup.repeats import RepeatsJob, find_repeats
from fineweb_mask.tasks.embed import EmbedJob
from fineweb_mask.tasks.fit.models import FitClassifierJob, FitEncoderJob, FitStatisticsJob
from fineweb_mask.tasks.ingest import IngestJob
from fineweb_mask.tasks.materialize import MaterializeJob, materialize
from fineweb_mask.tasks.score import ScoreJob
from fineweb_mask.tasks.score_embed import ScoreEmbedJob
from fineweb_mask.tasks.select import SelectJob
from fineweb_mask.tasks.selection.groups import grouped
from fineweb_mask.tasks.workspace.references import StageFile


def ingest_job(workspace: Any, shard: Any, source: Any, settings: Any) -> IngestJob:
    return IngestJob(root=str(workspace.root), shard=shard, source=source, settings=settings)


def hash_jobs(workspace: Any, documents: Any) -> list[HashJob]:
    return [HashJob(root=str(workspace.root), documents=file) for file in documents]


def repeats_jobs(workspace: Any, hashes: Any, buckets: int = 1, memory_limit: str = "1GB") -> list[RepeatsJob]:
    return [
        RepeatsJob(root=str(workspace.root), hashes=hashes, bucket=bucket, buckets=buckets, memory_limit=memory_limit)
        for bucket in range(buckets)
    ]


def dedup_job(workspace: Any, documents: Any, buckets: int = 1, memory_limit: str = "1GB") -> DedupJob:
    """Compare the shards, which came in the order of `documents`, and return the job that lists their duplicates."""
    hashes = [sort_hashes(job) for job in hash_jobs(workspace, documents)]
    repeats = tuple(find_repeats(job) for job in repeats_jobs(workspace, hashes, buckets, memory_limit))
    return DedupJob(root=str(workspace.root), hashes=hashes, repeats=repeats)


def classifier_job(workspace: Any, scorer: Any) -> FitClassifierJob:
    return FitClassifierJob.of(str(workspace.root), scorer)


def statistics_job(workspace: Any, documents: Any, models: Any, settings: Any, processes: int = 1) -> FitStatisticsJob:
    return FitStatisticsJob(
        root=str(workspace.root), documents=documents, models=models, settings=settings, processes=processes
    )


def encoder_job(workspace: Any, documents: Any, settings: Any) -> FitEncoderJob:
    return FitEncoderJob(root=str(workspace.root), documents=documents, settings=settings)


def score_job(
    workspace: Any, documents: Any, models: Any, statistics: Any, settings: Any, processes: int = 1
) -> ScoreJob:
    return ScoreJob(
        root=str(workspace.root),
        documents=documents,
        models=models,
        statistics=statistics,
        settings=settings,
        processes=processes,
    )


def embed_job(workspace: Any, documents: Any, model: Any, settings: Any) -> EmbedJob:
    return EmbedJob(root=str(workspace.root), documents=documents, model=model, settings=settings)


def score_embed_job(
    workspace: Any, documents: Any, models: Any, statistics: Any, quality: Any, embedding: Any
) -> ScoreEmbedJob:
    return ScoreEmbedJob.of(score_job(workspace, documents, models, statistics, quality), embedding)


def select_jobs(workspace: Any, shards: Any, settings: Any) -> list[SelectJob]:
    groups = grouped(shards, settings)
    return [SelectJob(root=str(workspace.root), shards=group, settings=settings) for group in groups]


def ranges_jobs(workspace: Any, shards: Any, settings: Any) -> list[RangesJob]:
    groups = grouped(shards, settings)
    return [RangesJob(root=str(workspace.root), shards=group, settings=settings) for group in groups]


def variant_job(
    workspace: Any, group: Any, settings: Any, selector: str, ranges: Any, targets: Any = None, lambs: Any = ()
) -> VariantJob:
    return VariantJob(
        root=str(workspace.root),
        shards=group,
        settings=settings,
        selector=selector,
        ranges=ranges,
        targets=targets,
        lambs=lambs,
    )


class Making(NamedTuple):
    """What a dataset is made of, and how."""

    workspace: Any
    shards: Any
    sources: Any
    counts: Any
    blocks: Any
    recipe: Any

    @property
    def partitioning(self) -> Partitioning:
        """The partitions, and the jobs on them."""
        by_name = {source.name: source for source in self.sources}
        return Partitioning(str(self.workspace.root), self.shards, by_name, self.recipe.materialize)

    @property
    def job(self) -> MaterializeJob:
        """The last job, as it is known before the others."""
        return MaterializeJob(
            root=str(self.workspace.root),
            inputs=self.partitioning.inputs,
            version=self.partitioning.version,
            counts=self.counts,
            blocks=self.blocks,
            recipe=self.recipe,
        )

    def with_settings(self, **changes: Any) -> Self:
        """Return the same with other settings."""
        given = MaterializeSettings.model_validate(self.recipe.materialize.model_dump() | changes)
        return self._replace(recipe=self.recipe.model_copy(update={"materialize": given}))

    def written(self, *, force: bool = False, threads: int = 1) -> MaterializeJob:
        """Run all jobs but the last, and return this: so many partitions at once, the last ones first."""
        parts = self.partitioning
        survey = partition.survey(parts.survey().model_copy(update={"force": force}))

        def run(task: Any, jobs: Any) -> list[StageFile]:
            forced = [job.model_copy(update={"force": force, "at_once": threads}) for job in jobs]
            if threads == 1:
                return [task(job) for job in reversed(forced)][::-1]
            with ThreadPoolExecutor(threads) as pool:
                return list(pool.map(task, reversed(forced)))[::-1]

        shuffled = run(partition.shuffle, parts.shuffles(survey)) if parts.is_shuffled else []
        made = run(partition.write_partition, parts.partitions(survey, shuffled))
        counted = run(partition.count, parts.counts(survey))
        update = {
            "survey": survey,
            "shuffled": tuple(shuffled),
            "partitions": tuple(made),
            "counted": tuple(counted),
            "force": force,
        }
        return self.job.model_copy(update=update)

    def write(self, *, force: bool = False, threads: int = 1) -> StageFile:
        """Run all jobs, unless the dataset is there."""
        if not force and (found := self.job.current()) is not None:
            return found
        return materialize(self.written(force=force, threads=threads))
