"""Measure what selections teach a language model of n-grams, as a stage whose figures pages and summaries show."""

from typing import Any, ClassVar

from pydantic import Field

from fineweb_mask.models.errors import DataError
from fineweb_mask.models.witness.witness import witness
from fineweb_mask.tasks.source.discovery import SourceShard
from fineweb_mask.tasks.witness.documents import read_corpus
from fineweb_mask.tasks.workspace.job import Dependencies, ProductJob, Stage, stage_task
from fineweb_mask.tasks.workspace.manifest import write_manifest
from fineweb_mask.tasks.workspace.references import ShardFiles, StageFile

REPORT = "report"
MOST_TOKENS = 300_000
"""Of an arm that are read: more make a comparison finer, and slower."""


class WitnessJob(ProductJob):
    """Train a model of n-grams on every selection and its controls, and judge them on held-out documents."""

    stage: ClassVar[Stage] = Stage("witness", version=5, label="report", folders=("fitted/witness",))
    page: str = REPORT  # that shows the figures
    shards: list[ShardFiles]
    selections: dict[str, list[StageFile]]  # by name, the masks of every shard
    targets: dict[str, list[SourceShard]] = Field(default_factory=dict)
    threshold: float  # the least cosine of near-duplicates
    most_tokens: int = MOST_TOKENS

    @property
    def name(self) -> str:
        """The name of the page."""
        return self.page

    @property
    def folder_name(self) -> str:
        """The folder of the figures, without the tag of the key."""
        return super().folder_name if self.page == REPORT else f"{self.page}/witness"

    def depends_on(self) -> Dependencies:
        """Return how arms are made, and the fingerprints of the corpus, of the selections and of the targets."""
        files = [(shard.documents, shard.scores, shard.embeddings, shard.duplicates) for shard in self.shards]
        settings = [self.threshold, self.most_tokens]
        return Dependencies(settings=settings, inputs=[files, self.selections, self.targets])


@stage_task
def measure_teaching(job: WitnessJob) -> None:
    """Measure; `details` hold the figures, or `skipped` with the reason why there are none."""
    limits: dict[str, Any] = {"threshold": job.threshold, "most_tokens": job.most_tokens}
    try:
        corpus = read_corpus(job.workspace, job.shards, job.selections, job.targets, **limits)
        found = witness(
            corpus.pool,
            corpus.selections,
            corpus.held_out,
            vocabulary=corpus.vocabulary,
            quality=corpus.quality,
            most_tokens=job.most_tokens,
        )
        details = {"rows": len(corpus.pool.ends), "excluded": corpus.excluded, **found}
    except DataError as error:
        if job.targets:
            raise
        details = {"rows": 0, "skipped": str(error)}
    write_manifest(job.manifest_path, job.key, [], details)
