"""Score and embed in one pass: the forward pass of a scorer of kind `edu` gives a document's score and its vector.

It writes the same two files as the stages `score` and `embed`, under the same keys: a lost file is rebuilt alone, and a
corpus that was scored before is not scored again.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Self

import pyarrow as pa
import pyarrow.parquet as pq

from fineweb_mask.models.runtime.progress import track_by_size
from fineweb_mask.models.settings import EmbeddingSettings
from fineweb_mask.models.settings.quality import EduScorerSettings
from fineweb_mask.tasks.embed import EmbeddingModel, EmbedJob, vector_writer
from fineweb_mask.tasks.inference.gpu import gpu_slot
from fineweb_mask.tasks.inference.prefetch import Prefetched, background_writer
from fineweb_mask.tasks.inference.scorers import batch_scores, columns_read, load_models, load_sidecars
from fineweb_mask.tasks.score import Scored, ScoreJob, score, score_writer
from fineweb_mask.tasks.source.texts import with_texts
from fineweb_mask.tasks.storage.parquet import VerifiedFile
from fineweb_mask.tasks.workspace.job import Dependencies, Stage, StageJob, rows_through, stage_task
from fineweb_mask.tasks.workspace.listing import Listing
from fineweb_mask.tasks.workspace.references import StageFile
from fineweb_mask.tasks.workspace.stage_parquet import Checkpoints

if TYPE_CHECKING:
    from fineweb_mask.models.forward.batches import Encoded
    from fineweb_mask.models.forward.tokens import TokenIds
    from fineweb_mask.models.quality.transformer import EduScorer

BATCH_ROWS = 2_000


class ScoreEmbedJob(StageJob):
    """Score and embed one shard's documents; `of` makes one."""

    stage: ClassVar[Stage] = Stage(
        "score_embed",
        version=1,
        folders=("scores", "embeddings"),
        run_with=("score", "embed"),
        per_shard=True,
        documents=rows_through,
        counts=("ingested", "ingested"),
    )
    score: ScoreJob
    embed: EmbedJob

    @classmethod
    def of(cls, score: ScoreJob, embedding: EmbeddingSettings) -> Self:
        """Return the job that scores and embeds a shard; one of the models of `score` is of kind `edu`."""
        [edu] = [model for model in score.models if isinstance(model.settings, EduScorerSettings)]
        encoder = EmbeddingModel(path=edu.path, fingerprint=edu.identity)
        embed = EmbedJob(root=score.root, documents=score.documents, model=encoder, settings=embedding)
        return cls(root=score.root, score=score, embed=embed)

    @property
    def name(self) -> str:
        """The name of the shard."""
        return self.score.name

    @property
    def uses_gpu(self) -> bool:
        """Whether a GPU makes the job faster: it does."""
        return True

    def depends_on(self) -> Dependencies:
        """Return what the two stages depend on."""
        score, embed = self.score.key, self.embed.key
        return Dependencies(settings=[score.settings, embed.settings], inputs=[score.fingerprint, embed.fingerprint])

    def paths(self) -> list[Path]:
        """Return the files of the scores and of the vectors."""
        return [*self.score.paths(), *self.embed.paths()]

    def files(self, listing: Listing | None = None) -> tuple[StageFile, StageFile] | None:
        """Return the shard's scores and embeddings, or None if one of them is not current."""
        scores, vectors = self.score.current(listing), self.embed.current(listing)
        return None if scores is None or vectors is None else (scores, vectors)

    def current(self, listing: Listing | None = None) -> StageFile | None:
        """Return one reference to both files if they are current, else None."""
        if (files := self.files(listing)) is None:
            return None
        scores, vectors = files
        key = self.key
        return vectors.model_copy(
            update={"stage": key.stage, "bytes": scores.bytes + vectors.bytes, "fingerprint": key.fingerprint}
        )


@stage_task
def score_embed(job: ScoreEmbedJob) -> None:
    """Write the scores and the vectors of a shard, unless they are current, row by row with its documents.

    Raises
    ------
    BadShardError
        As the stages `score` and `embed` do.
    """
    from fineweb_mask.models.quality.transformer import EduScorer

    if not job.force and job.embed.current() is not None:
        score(job.score)
        return
    scorers = load_models(job.workspace, job.score.models)
    scorers |= load_sidecars(job.score.documents, job.score.models, job.score.sidecars)
    [name] = [model.settings.name for model in job.score.models if isinstance(model.settings, EduScorerSettings)]
    edu = scorers.pop(name)
    assert isinstance(edu, EduScorer)  # noqa: S101 - the kind of these settings
    with ExitStack() as opened:
        path = opened.enter_context(with_texts(job.workspace, job.score.documents))
        opened.enter_context(gpu_slot(edu.device))
        documents = opened.enter_context(VerifiedFile(path))
        writer = opened.enter_context(vector_writer(job.embed, edu.dimensions))
        vectors = Checkpoints(writer, job.embed.output)
        scores = None
        columns = ["row", edu.column]
        if job.force or job.score.current() is None:
            writer_of_scores = opened.enter_context(score_writer(job.score, documents.schema_arrow, scorers))
            scores = Checkpoints(writer_of_scores, job.score.output)
            columns = columns_read([edu, *scorers.values()], documents.schema_arrow, job.name, by=job.score.settings.by)
        later = opened.enter_context(background_writer())
        chunks = Prefetched(_chunks(documents, columns, edu, vectors, scores))
        total = job.score.documents.rows
        for chunk in track_by_size("documents", chunks, total, lambda chunk: chunk.batch.num_rows, part=(0, 1)):
            rows = chunk.batch["row"]
            found = None if chunk.tokens is None else edu.score_and_embed_tokens(chunk.tokens)
            if found is None:
                later(partial(vectors.restore, chunk.kept_vectors))
            else:
                later(partial(vectors.write, rows, found.encoded))
            if scores is None:
                continue
            if found is None:
                later(partial(scores.restore, chunk.kept_scores))
            else:
                others = batch_scores(scorers, chunk.batch, job.name)
                later(partial(scores.write, rows, job.score.scored(chunk.batch, {name: found.scores, **others})))
    vectors.discard()
    if scores is not None:
        scores.discard()


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Consecutive documents of a shard, ready for the model or done by an earlier run."""

    batch: pa.RecordBatch
    tokens: "TokenIds | None"  # None where both parts were kept
    kept_vectors: pa.RecordBatch | None
    kept_scores: pa.RecordBatch | None


def _chunks(
    documents: pq.ParquetFile,
    columns: list[str],
    edu: "EduScorer",
    vectors: "Checkpoints[Encoded]",
    scores: Checkpoints[Scored] | None,
) -> Iterator[_Chunk]:
    for batch in documents.iter_batches(BATCH_ROWS, columns=columns):
        kept_vectors = vectors.find(batch["row"])
        kept_scores = None if scores is None else scores.find(batch["row"])
        done = kept_vectors is not None and (scores is None or kept_scores is not None)
        tokens = None if done else edu.tokenise(batch[edu.column].to_pylist())
        yield _Chunk(batch, tokens, kept_vectors, kept_scores)
