"""Score: one quality per document, next to the score of every scorer that it is made of."""

from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from models.quality.combine import combine_scores
from models.quality.settings import QualitySettings
from models.schemas import scores_schema
from tasks.lake import StageFile, StageKey, Workspace, digest, written_parquet
from tasks.quality_models import QualityModel, load_models
from tasks.stage import BadShardError, ShardJob, build_once, stage_task

VERSION = 1
BATCH_ROWS = 2_000


class ScoreJob(ShardJob):
    """Score one shard's documents."""

    folder: ClassVar[str] = "scores"
    documents: StageFile
    models: list[QualityModel]
    statistics: dict[str, tuple[float, float]]
    settings: QualitySettings


def plan(
    workspace: Workspace,
    documents: StageFile,
    models: list[QualityModel],
    statistics: StageFile,
    settings: QualitySettings,
) -> ScoreJob:
    """Return the job that scores a shard; `statistics` refers to what `fit_statistics_of_scores` kept."""
    key = StageKey(
        stage="score",
        version=VERSION,
        settings=digest([settings.combine, {scorer.name: scorer.weight for scorer in settings.scorers}]),
        inputs=digest([documents.fingerprint, [model.identity for model in models], statistics.fingerprint]),
    )
    return ScoreJob(
        workspace=str(workspace.root),
        name=documents.name,
        key=key,
        documents=documents,
        models=models,
        statistics=statistics.details["statistics"],
        settings=settings,
    )


def score(job: ScoreJob) -> StageFile:
    """Write the scores of a shard, row by row beside its documents.

    Raises
    ------
    BadShardError
        If a scorer has the name of a column that the source brought along.
    """
    return build_once(job, lambda: _build(job))


def _build(job: ScoreJob) -> None:
    scorers = load_models(job.lake, job.models)
    weights = {scorer.name: scorer.weight for scorer in job.settings.scorers}
    schema = scores_schema(list(scorers))
    with (
        pq.ParquetFile(job.lake.resolve(job.documents)) as documents,
        written_parquet(job.output, schema, job.key) as writer,
    ):
        if taken := set(scorers).intersection(name.lower() for name in documents.schema_arrow.names):
            raise BadShardError(
                f"{job.name}: the scorer {sorted(taken)[0]!r} has the name of a source column: "
                "rename it in quality.scorers, or leave the column out of source.extra_columns"
            )
        for batch in documents.iter_batches(BATCH_ROWS, columns=["row", "text"]):
            texts = batch["text"].to_pylist()
            scores = {name: scorer.score(texts) for name, scorer in scorers.items()}
            quality = combine_scores(scores, weights, job.statistics, job.settings.combine)
            if not np.isfinite(quality).all():
                row = int(np.flatnonzero(~np.isfinite(quality))[0])
                raise BadShardError(f"{job.name}: quality of row {batch['row'][row]} is not finite")
            writer.write(pa.record_batch([batch["row"], *scores.values(), quality], schema=schema))


score_task = stage_task(score)
