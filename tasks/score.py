"""Score documents: write the score of every scorer, and the quality that combines them."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import Field

from fineweb_mask.models.quality import combine
from fineweb_mask.models.quality.combine import combine_scores
from fineweb_mask.models.quality.registry import Scorer
from fineweb_mask.models.runtime.progress import track_by_size
from fineweb_mask.models.schemas import scores_schema
from fineweb_mask.models.settings.quality import ClassesScorerSettings, QualitySettings, TransformerSettings
from fineweb_mask.tasks.inference.gpu import gpu_slot
from fineweb_mask.tasks.inference.scorers import (
    QualityModel,
    batch_scores,
    columns_read,
    groups_of,
    load_models,
    load_sidecars,
)
from fineweb_mask.tasks.inference.scoring_pool import POOL_ROWS, pooled_models, score_batches
from fineweb_mask.tasks.source.sidecars import Sidecar
from fineweb_mask.tasks.source.texts import with_texts
from fineweb_mask.tasks.storage.parquet import VerifiedFile
from fineweb_mask.tasks.workspace.job import BadShardError, Dependencies, ShardJob, Stage, rows_through, stage_task
from fineweb_mask.tasks.workspace.references import StageFile
from fineweb_mask.tasks.workspace.stage_parquet import ParquetStageWriter, stage_file_writer

BATCH_ROWS = 2_000

Scores = dict[str, NDArray[np.float32]]
"""Every scorer's scores (n,), by its name; of kind `classes` its outputs, (n, labels)."""


class Scored(NamedTuple):
    """What is known of n documents before their scores are combined."""

    scores: Scores
    groups: list[str] | None = None  # n values of the column that scores are standardised by


class ScoreJob(ShardJob):
    """Score one shard's documents; with two `processes` or more, fastText scores in a process pool.

    The pool is kept from shard to shard, until `end_workers`.
    """

    stage: ClassVar[Stage] = Stage(
        "score",
        version=1,
        folders=("scores",),
        run_with=("score",),
        per_shard=True,
        documents=rows_through,
        counts=("ingested", "ingested"),
    )
    documents: StageFile
    models: list[QualityModel]
    statistics: StageFile  # written by `fit_statistics`
    settings: QualitySettings
    sidecars: dict[str, Sidecar] = Field(default_factory=dict)  # of the source file, by the scorer's name
    processes: int = 1

    @property
    def name(self) -> str:
        """The name of the shard."""
        return self.documents.name

    @property
    def uses_gpu(self) -> bool:
        """Whether a GPU makes the job faster."""
        return any(isinstance(model.settings, TransformerSettings) for model in self.models)

    def depends_on(self) -> Dependencies:
        """Return how scores are combined, and the documents, models and statistics that they are made from."""
        weights = {scorer.name: scorer.weight for scorer in self.settings.scorers}
        counted = (
            weights if self.settings.combine == "weighted_sum" else sorted(name for name in weights if weights[name])
        )
        sidecars = {name: sidecar.fingerprint for name, sidecar in self.sidecars.items()}
        raw = sorted(self.settings.raw)
        by = [] if self.settings.by is None else [self.settings.by]
        return Dependencies(
            settings=[self.settings.combine, counted, *by, *([{"raw": raw}] if raw else [])],
            inputs=[
                self.documents.fingerprint,
                [model.identity for model in self.models],
                self.statistics.fingerprint,
                *([sidecars] if sidecars else []),
            ],
        )

    def scored(self, batch: pa.RecordBatch, scores: Scores) -> Scored:
        """Return the scores of a batch of documents with the groups that they are standardised in."""
        return Scored(scores, None if self.settings.by is None else groups_of(batch, self.settings.by))


@stage_task
def score(job: ScoreJob) -> None:
    """Write the scores of a shard, row by row with its documents.

    Raises
    ------
    BadShardError
        If a scorer has the name of a column of the source.
    """
    pooled = pooled_models(job.models, job.processes)
    scorers = load_models(job.workspace, [model for model in job.models if model not in pooled])
    scorers |= load_sidecars(job.documents, job.models, job.sidecars)
    read_text = bool(pooled) or any(scorer.column == "text" for scorer in scorers.values())
    devices = (getattr(scorer, "device", "cpu") for scorer in scorers.values())
    gpu = next((device for device in devices if device != "cpu"), "cpu")
    with (
        with_texts(job.workspace, job.documents)
        if read_text
        else nullcontext(job.workspace.resolve(job.documents)) as path,
        gpu_slot(gpu),
        VerifiedFile(path) as documents,
        score_writer(job, documents.schema_arrow, scorers) as writer,
    ):
        columns = columns_read(
            scorers.values(), documents.schema_arrow, job.name, with_text=bool(pooled), by=job.settings.by
        )
        batches = documents.iter_batches(BATCH_ROWS if scorers else POOL_ROWS, columns=columns)
        done = score_batches(job.workspace, pooled, job.processes, batches)
        total = job.documents.rows
        for batch, scores in track_by_size("documents", done, total, lambda pair: pair[0].num_rows, part=(0, 1)):
            others = batch_scores(scorers, batch, job.name)
            writer.write(writer.batch(batch["row"], job.scored(batch, scores | others)))


class ScoreWriter:
    """Write a shard's scores in the order of its rows; made by `score_writer`."""

    def __init__(
        self, job: ScoreJob, schema: pa.Schema, writer: ParquetStageWriter, scorers: Mapping[str, Scorer]
    ) -> None:
        self.schema = schema
        self._scorers = scorers
        self._job = job
        self._raw = set(job.settings.raw)
        self._weights = {scorer.name: scorer.weight for scorer in job.settings.scorers}
        self._writer = writer

    def batch(self, rows: pa.Array, values: Scored) -> pa.RecordBatch:
        """Return the next rows with every scorer's scores (n,) and their combined quality.

        Raises
        ------
        BadShardError
            If a quality is not finite.
        """
        statistics = combine.with_raw(self._job.statistics.details, self._raw)
        quality = combine_scores(
            values.scores,
            self._weights,
            statistics["statistics"],
            self._job.settings.combine,
            values.groups,
            statistics.get("by_group"),
        )
        if not np.isfinite(quality).all():
            row = int(np.flatnonzero(~np.isfinite(quality))[0])
            raise BadShardError(
                f"{self._job.name}: quality of row {rows[row]} is not finite: check the scorers' columns and weights"
            )
        columns = [column for name in self._weights for column in self._columns(name, values.scores[name])]
        return pa.record_batch([rows, *columns, quality], schema=self.schema)

    def _columns(self, name: str, scores: NDArray[np.float32]) -> list[Any]:
        """Return the column of a scorer's scores; of a classifier, its labels and its outputs."""
        if scores.ndim == 1:
            return [scores]
        outputs = pa.FixedSizeListArray.from_arrays(scores.ravel(), scores.shape[1]).cast(pa.list_(pa.float32()))
        return [self._scorers[name].label(scores), outputs]  # type: ignore[attr-defined]

    def write(self, batch: pa.RecordBatch) -> None:
        """Write rows that `batch` returned."""
        self._writer.write(batch)


@contextmanager
def score_writer(job: ScoreJob, documents: pa.Schema, scorers: Mapping[str, Scorer]) -> Iterator[ScoreWriter]:
    """Yield the writer of a shard's scores; `scorers` has at least the classifiers, which name their outputs.

    Raises
    ------
    BadShardError
        If a scorer has the name of a column of the documents.
    """
    names = [scorer.name for scorer in job.settings.scorers]
    classes = {
        scorer.name: scorer.logits for scorer in job.settings.scorers if isinstance(scorer, ClassesScorerSettings)
    }
    if taken := {*names, *classes.values()}.intersection(name.lower() for name in documents.names):
        raise BadShardError(
            f"{job.name}: the scorer {sorted(taken)[0]!r} has the name of a source column: "
            "rename it in quality.scorers, or leave the column out of source.extra_columns"
        )
    schema = scores_schema(names, classes)
    with stage_file_writer(job.output, schema, job.key) as writer:
        yield ScoreWriter(job, schema, writer, scorers)
