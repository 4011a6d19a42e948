"""Make jobs from what a test has at hand."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, Self

from fineweb_mask.models.settings import IngestSettings, MaterializeSettings
from fineweb_mask.tasks.comparison.variants import RangesJob, Variant, VariantJob
from fineweb_mask.tasks.dataset.partition import PartitionJob, partition_jobs, write_partition
from fineweb_mask.tasks.dedup.duplicates import DedupJob, no_duplicates
from fineweb_mask.tasks.dedup.sketch import SketchJob
from fineweb_mask.tasks.dedup.sketch import sketch as sketch_task
from fineweb_mask.tasks.embed import EmbedJob
from fineweb_mask.tasks.fit import FitClassifierJob, FitEncoderJob, FitStatisticsJob
from fineweb_mask.tasks.ingest import IngestJob
from fineweb_mask.tasks.materialize import MaterializeJob, materialize
from fineweb_mask.tasks.score import ScoreJob
from fineweb_mask.tasks.select import SelectJob
from fineweb_mask.tasks.selection.blocks import grouped
from fineweb_mask.tasks.witness.job import WitnessJob
from fineweb_mask.tasks.workspace.references import StageFile


class OnGpuJob(IngestJob):
    """Ingest a shard in a process that holds a GPU, though it uses none."""

    @property
    def uses_gpu(self) -> bool:
        """Whether a GPU makes the job faster."""
        return True


def ingest_job(workspace: Any, shard: Any, source: Any, settings: Any) -> IngestJob:
    return IngestJob(root=workspace.address, shard=shard, source=source, settings=settings)


def dedup_job(workspace: Any, documents: Any, sketch: Any = None, memory_limit: str = "1GB", **ingest: Any) -> DedupJob:
    """Return the job that lists the duplicates of shards that came in the order of `documents`, which it sketches."""
    root, sketched = workspace.address, documents if sketch else ()
    signatures = [sketch_task(SketchJob(root=root, documents=one, sketch=sketch)) for one in sketched]
    settings = IngestSettings(**{"near_dedup": 0.7 if sketch else None} | ingest)
    compared = {"documents": documents, "signatures": signatures}
    return DedupJob(root=root, settings=settings, memory_limit=memory_limit, **compared)


def classifier_job(workspace: Any, scorer: Any) -> FitClassifierJob:
    return FitClassifierJob.of(workspace.address, scorer)


def sample_of(workspace: Any, documents: Any, duplicates: Any = None) -> dict[str, Any]:
    """Return the fields of a job that fits on these documents."""
    none = [no_duplicates(file.name) for file in documents]
    return {"root": workspace.address, "documents": documents, "duplicates": duplicates or none}


def statistics_job(
    workspace: Any, documents: Any, models: Any, settings: Any, processes: int = 1, duplicates: Any = None
) -> FitStatisticsJob:
    sample = sample_of(workspace, documents, duplicates)
    return FitStatisticsJob(models=models, settings=settings, processes=processes, **sample)


def encoder_job(workspace: Any, documents: Any, settings: Any, duplicates: Any = None) -> FitEncoderJob:
    return FitEncoderJob(settings=settings, **sample_of(workspace, documents, duplicates))


def score_job(
    workspace: Any,
    documents: Any,
    models: Any,
    statistics: Any,
    settings: Any,
    processes: int = 1,
    duplicates: Any = None,
    vectors: Any = None,
) -> ScoreJob:
    return ScoreJob(
        root=workspace.address,
        documents=documents,
        duplicates=duplicates or no_duplicates(documents.name),
        models=models,
        statistics=statistics,
        settings=settings,
        processes=processes,
        vectors=vectors,
    )


def embed_job(workspace: Any, documents: Any, model: Any, settings: Any, duplicates: Any = None) -> EmbedJob:
    shard = {"documents": documents, "duplicates": duplicates or no_duplicates(documents.name)}
    return EmbedJob(root=workspace.address, model=model, settings=settings, **shard)


def select_jobs(workspace: Any, shards: Any, settings: Any) -> list[SelectJob]:
    groups = grouped(shards, settings.block_size)
    return [SelectJob(root=workspace.address, shards=group, settings=settings) for group in groups]


def ranges_jobs(workspace: Any, shards: Any, settings: Any) -> list[RangesJob]:
    groups, scaled = grouped(shards, settings.block_size), settings.model_copy(update={"solver": "mean_field"})
    return [RangesJob(root=workspace.address, shards=group, settings=scaled) for group in groups]


def variant_job(
    workspace: Any, group: Any, settings: Any, selector: str, ranges: Any, targets: Any = None, files: Any = ()
) -> VariantJob:
    own = settings.model_copy(update={"solver": "random" if files else selector})
    variant = Variant(name=selector, settings=own, files=files)
    common = {"root": workspace.address, "shards": group, "ranges": ranges, "targets": targets}
    return VariantJob(settings=own, variant=variant, **common)


class Making(NamedTuple):
    """What a dataset is made of, and how."""

    workspace: Any
    shards: Any
    sources: Any
    counts: Any
    blocks: Any
    recipe: Any

    def partition_jobs(self) -> list[PartitionJob]:
        """Return the jobs on the partitions."""
        by_name = {source.name: source for source in self.sources}
        return partition_jobs(self.workspace.address, self.shards, by_name, self.recipe.materialize)

    @property
    def job(self) -> MaterializeJob:
        """The last job, as it is known before the others."""
        return MaterializeJob(
            root=self.workspace.address,
            shards=self.shards,
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
        jobs = [job.model_copy(update={"force": force}) for job in self.partition_jobs()]
        if threads == 1:  # so that an error leaves the rest
            made = [write_partition(job) for job in reversed(jobs)][::-1]
        else:
            with ThreadPoolExecutor(threads) as pool:
                made = list(pool.map(write_partition, reversed(jobs)))[::-1]
        return self.job.model_copy(update={"partitions": tuple(made), "force": force})

    def write(self, *, force: bool = False, threads: int = 1) -> StageFile:
        """Run all jobs, unless the dataset is there."""
        if not force and (found := self.job.current()) is not None:
            return found
        return materialize(self.written(force=force, threads=threads))


def witness_job(workspace: Any, shards: list[Any], selections: dict[str, Any], **fields: Any) -> WitnessJob:
    """Return the job that measures what selections teach, given the masks of every shard."""
    return WitnessJob(root=str(workspace.root), shards=shards, selections=selections, **({"threshold": 0.9} | fields))
