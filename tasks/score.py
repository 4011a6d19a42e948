"""Score documents: write the score of every scorer, and the quality that combines them.

Where a scorer of kind `edu` is the encoder, too, its forward passes give scores and vectors. The vectors are the file
of the stage `embed`, under its key: of both files, a lost one is made again alone.
"""

from collections.abc import Callable
from contextlib import ExitStack
from operator import attrgetter
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import Field

from fineweb_mask.models.quality.combine import combine_scores
from fineweb_mask.models.schemas import scores_schema
from fineweb_mask.models.settings.quality import QualitySettings, TransformerSettings
from fineweb_mask.tasks.embed import EmbedJob, vector_writer
from fineweb_mask.tasks.inference.eligible import EligibleJob
from fineweb_mask.tasks.inference.gpu import gpu_slot
from fineweb_mask.tasks.inference.scorers import (
    QualityModel,
    batch_scores,
    columns_read,
    groups_of,
    load_models,
    load_sidecars,
)
from fineweb_mask.tasks.source.sidecars import Sidecar
from fineweb_mask.tasks.storage.parquet import VerifiedFile
from fineweb_mask.tasks.workspace.job import BadShardError, Dependencies, Stage, stage_task
from fineweb_mask.tasks.workspace.references import StageFile
from fineweb_mask.tasks.workspace.stage_parquet import stage_file_writer

BATCH_ROWS = 2_000

Scores = dict[str, NDArray[np.float32]]
"""Every scorer's scores (n,), by its name."""


class ScoreJob(EligibleJob):
    """Score one shard's documents, duplicates aside; with two `processes` or more, fastText scores in so many.

    They are kept from shard to shard, until `end_workers`.
    """

    stage: ClassVar[Stage] = Stage(
        "score",
        version=3,
        folders=("scores",),
        per_shard=True,
        documents=attrgetter("rows"),
        counts=("eligible", "eligible"),
    )
    models: list[QualityModel]
    statistics: StageFile  # written by `fit_statistics`
    settings: QualitySettings
    sidecars: dict[str, Sidecar] = Field(default_factory=dict)  # of the source file, by the scorer's name
    processes: int = 1
    vectors: EmbedJob | None = None  # written, too, unless they are current: a scorer is their encoder

    @property
    def uses_gpu(self) -> bool:
        """Whether a GPU makes the job faster."""
        return any(isinstance(model.settings, TransformerSettings) for model in self.models)

    def depends_on(self) -> Dependencies:
        """Return how scores are combined, and what they are made from: documents, duplicates, models and statistics."""
        weights = {scorer.name: scorer.weight for scorer in self.settings.scorers}
        counted = (
            weights if self.settings.combine == "weighted_sum" else sorted(name for name in weights if weights[name])
        )
        sidecars = {name: [one.fingerprint, one.id_names] for name, one in self.sidecars.items()}
        by = [] if self.settings.by is None else [self.settings.by]
        return Dependencies(
            settings=[self.settings.combine, counted, *by],
            inputs=[
                self.documents.fingerprint,
                self.duplicates.fingerprint,
                [model.identity for model in self.models],
                self.statistics.fingerprint,
                *([sidecars] if sidecars else []),
            ],
        )


@stage_task
def score(job: ScoreJob) -> None:
    """Write the scores of a shard's documents, duplicates aside, and the vectors that the same forward passes make.

    Raises
    ------
    BadShardError
        If a scorer has the name of a column of the source.
    """
    scorers = load_models(job.workspace, job.models, job.processes)
    annotated, details = load_sidecars(job.workspace, job.documents, job.models, job.sidecars)
    scorers |= annotated
    devices = (getattr(scorer, "device", "cpu") for scorer in scorers.values())
    gpu = next((device for device in devices if device != "cpu"), "cpu")
    with ExitStack() as opened:
        opened.enter_context(gpu_slot(gpu))
        documents = opened.enter_context(VerifiedFile(job.workspace.resolve(job.documents)))
        schema, columns = scores_schema_of(job, documents.schema_arrow), ["row"]
        if job.documents.rows:
            columns = columns_read(scorers.values(), documents.schema_arrow, job.name, by=job.settings.by)
        writer = opened.enter_context(stage_file_writer(job.output, schema, job.key))
        writer.details = details

        encoder: Any = None
        if job.vectors is not None and job.vectors.model.scorer is not None and job.vectors.current() is None:
            encoder = scorers.pop(job.vectors.model.scorer.name)
            write_vectors = opened.enter_context(vector_writer(job.vectors, encoder.dimensions))

        def tokenise(batch: pa.RecordBatch) -> Any:  # noqa: ANN401 - what the encoder takes
            return None if encoder is None else encoder.tokenise(batch["text"].to_pylist())

        def scored(batch: pa.RecordBatch, tokens: Any) -> Callable[[], None]:  # noqa: ANN401
            scores = batch_scores(scorers, batch, job.name)
            if encoder is None:
                found = combined(job, schema, batch, scores)
                return lambda: writer.write(found)
            scores[encoder.settings.name], wait = encoder.score_and_encode(tokens)
            found = combined(job, schema, batch, scores)

            def write() -> None:
                writer.write(found)
                write_vectors(batch["row"], wait())

            return write

        job.write_batches(documents, BATCH_ROWS, columns, tokenise, scored)


def combined(job: ScoreJob, schema: pa.Schema, batch: pa.RecordBatch, scores: Scores) -> pa.RecordBatch:
    """Return a batch of documents with every scorer's scores and the quality that combines them.

    Raises
    ------
    BadShardError
        If a quality is not finite.
    """
    settings = job.settings
    weights = {scorer.name: scorer.weight for scorer in settings.scorers}
    statistics = job.statistics.details
    groups = None if settings.by is None else groups_of(batch, settings.by)
    by_group = statistics.get("by_group")
    quality = combine_scores(
        scores, weights, statistics["statistics"], settings.combine, groups, by_group, batch.num_rows
    )
    if not np.isfinite(quality).all():
        row = int(np.flatnonzero(~np.isfinite(quality))[0])
        raise BadShardError(
            f"{job.name}: quality of row {batch['row'][row]} is not finite: check the scorers' columns and weights"
        )
    return pa.record_batch([batch["row"], *(scores[name] for name in weights), quality], schema=schema)


def scores_schema_of(job: ScoreJob, documents: pa.Schema) -> pa.Schema:
    """Return the columns of the scores of a shard, whose documents have the columns `documents`.

    Raises
    ------
    BadShardError
        If a scorer has the name of a column of the documents.
    """
    names = [scorer.name for scorer in job.settings.scorers]
    if taken := set(names).intersection(name.lower() for name in documents.names):
        raise BadShardError(
            f"{job.name}: the scorer {sorted(taken)[0]!r} has the name of a source column: "
            "rename it in quality.scorers, or leave the column out of source.extra_columns"
        )
    return scores_schema(names)
