"""Score and embed in one pass: the forward pass of a scorer of kind `edu` gives a document's score and its vector.

It writes the same two files as the stages `score` and `embed`, under the same keys: a lost file is rebuilt alone, and a
corpus that was scored before is not scored again.
"""

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Self

import pyarrow as pa

from fineweb_mask.models.settings import EmbeddingSettings
from fineweb_mask.models.settings.quality import EduScorerSettings
from fineweb_mask.tasks.embed import EmbedJob, vector_writer, write_encoded
from fineweb_mask.tasks.inference.gpu import gpu_slot
from fineweb_mask.tasks.inference.model_files import ModelFolder
from fineweb_mask.tasks.inference.scorers import batch_scores, columns_read, load_models, load_sidecars
from fineweb_mask.tasks.score import ScoreJob, combined, score, scores_schema_of
from fineweb_mask.tasks.storage.parquet import VerifiedFile
from fineweb_mask.tasks.workspace.job import Dependencies, Stage, StageJob, rows_through, stage_task
from fineweb_mask.tasks.workspace.listing import Listing
from fineweb_mask.tasks.workspace.references import StageFile
from fineweb_mask.tasks.workspace.stage_parquet import duplicate_rows, kept_batches, stage_file_writer

if TYPE_CHECKING:
    from fineweb_mask.models.forward.tokens import TokenIds

BATCH_ROWS = 2_000


class ScoreEmbedJob(StageJob):
    """Score and embed one shard's documents; `of` makes one."""

    stage: ClassVar[Stage] = Stage(
        "score_embed",
        version=2,
        folders=("scores", "embeddings"),
        per_shard=True,
        documents=rows_through,
        counts=("eligible", "eligible"),
    )
    uses_gpu: ClassVar[bool] = True
    score: ScoreJob
    embed: EmbedJob

    @classmethod
    def of(cls, score: ScoreJob, embedding: EmbeddingSettings) -> Self:
        """Return the job that scores and embeds a shard; one of the models of `score` is of kind `edu`."""
        [edu] = [model for model in score.models if isinstance(model.settings, EduScorerSettings)]
        encoder = ModelFolder(path=edu.path, fingerprint=edu.identity)
        shard = {"documents": score.documents, "duplicates": score.duplicates}
        embed = EmbedJob(root=score.root, model=encoder, settings=embedding, **shard)
        return cls(root=score.root, score=score, embed=embed)

    @property
    def name(self) -> str:
        """The name of the shard."""
        return self.score.name

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
    """Write the scores and the vectors of a shard, unless they are current, of its documents without duplicates.

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
    annotated, details = load_sidecars(job.workspace, job.score.documents, job.score.models, job.score.sidecars)
    scorers |= annotated
    [name] = [model.settings.name for model in job.score.models if isinstance(model.settings, EduScorerSettings)]
    edu = scorers.pop(name)
    assert isinstance(edu, EduScorer)  # noqa: S101 - the kind of these settings
    path = job.workspace.resolve(job.score.documents)
    with ExitStack() as opened:
        opened.enter_context(gpu_slot(edu.device))
        documents = opened.enter_context(VerifiedFile(path))
        write_vectors = opened.enter_context(vector_writer(job.embed, edu.dimensions))
        schema, columns = scores_schema_of(job.score, documents.schema_arrow), ["row", *edu.columns]
        if is_scoring := job.force or job.score.current() is None:
            writer = opened.enter_context(stage_file_writer(job.score.output, schema, job.score.key))
            writer.details = details
            if job.score.documents.rows:
                wanted = [edu, *scorers.values()]
                columns = columns_read(wanted, documents.schema_arrow, job.name, by=job.score.settings.by)

        def encode(batch: pa.RecordBatch, tokens: "TokenIds") -> Callable[[], None]:
            found = edu.score_and_embed(tokens)
            scores = {name: found.scores, **batch_scores(scorers, batch, job.name)} if is_scoring else {}

            def write() -> None:
                write_vectors(batch["row"], found.encoded)
                if is_scoring:
                    writer.write(combined(job.score, schema, batch, scores))

            return write

        dropped = duplicate_rows(job.workspace, job.score.duplicates)
        batches = kept_batches(documents, BATCH_ROWS, columns, dropped)
        write_encoded(batches, job.score.documents.rows - len(dropped), edu.tokenise, encode)
