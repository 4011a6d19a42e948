"""Embed documents as unit vectors, by the built-in encoder or any sentence-transformers model.

A shard is embedded chunk by chunk: while the model encodes one, the next is read and tokenised and the last is written.
A checkpoint of each chunk is kept until the shard is complete, so that a killed run resumes mid-shard.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel, ConfigDict

from fineweb_mask.models.runtime.progress import track_by_size
from fineweb_mask.models.schemas import embeddings_schema
from fineweb_mask.models.settings import FROM_QUALITY, STATIC, EmbeddingSettings
from fineweb_mask.tasks.inference.gpu import gpu_slot
from fineweb_mask.tasks.inference.model_files import ModelNotFoundError, check_model_folder, model_folder
from fineweb_mask.tasks.inference.prefetch import Prefetched, background_writer
from fineweb_mask.tasks.source.texts import with_texts
from fineweb_mask.tasks.storage.parquet import VerifiedFile
from fineweb_mask.tasks.workspace.job import Dependencies, ShardJob, Stage, rows_through, stage_task
from fineweb_mask.tasks.workspace.references import StageFile
from fineweb_mask.tasks.workspace.stage_parquet import Checkpoints, ParquetStageWriter, stage_file_writer

if TYPE_CHECKING:
    from fineweb_mask.models.embedding.encoder import Encoder
    from fineweb_mask.models.forward.batches import Encoded

KEY_SETTINGS = {"prompt", "max_tokens", "long_documents", "precision", "compute_precision", "on_bad_vector"}
CHUNK_DOCUMENTS = 8_192
"""Documents tokenised and sorted by length together; a killed run resumes after its last chunk."""
BUILT_IN = frozenset({STATIC, FROM_QUALITY})
logger = logging.getLogger(__name__)


class EmbeddingModel(BaseModel):
    """The encoder's folder and a fingerprint of its content."""

    model_config = ConfigDict(frozen=True)

    path: str  # relative to the workspace if it was fitted there
    fingerprint: str


def fitted_model(fitted: StageFile) -> EmbeddingModel:
    """Return the built-in encoder that was fitted in this workspace; `fitted` refers to its folder."""
    return EmbeddingModel(path=fitted.path, fingerprint=fitted.fingerprint)


def check_model(settings: EmbeddingSettings) -> None:
    """Check that the settings name a model's folder, or what may be a model on the hub, before any work starts.

    Raises
    ------
    ModelNotFoundError
        If they name neither, or the folder lacks a file that loading it takes.
    """
    if settings.model in BUILT_IN:
        return
    check_model_folder(settings.model, "embedding.model")
    folder = Path(settings.model)
    for pattern in ("modules.json", "*.safetensors"):
        if folder.is_dir() and not any(folder.rglob(pattern)):  # a name on the hub is looked up when it is fetched
            raise ModelNotFoundError(
                f"embedding.model: the folder {settings.model!r} has no {pattern}: it must be a sentence-transformers "
                "model in safetensors"
            )


def resolve_model(settings: EmbeddingSettings) -> EmbeddingModel:
    """Return the model that the settings name, fetched from the hub if it is not a folder.

    Raises
    ------
    ModelNotFoundError
        If it is neither a folder nor to be had from the hub.
    """
    folder = model_folder(settings.model, "embedding.model")
    return EmbeddingModel(path=str(folder.path), fingerprint=folder.fingerprint)


class EmbedJob(ShardJob):
    """Embed one shard's documents."""

    stage: ClassVar[Stage] = Stage(
        "embed",
        version=2,
        folders=("embeddings",),
        run_with=("embed",),
        per_shard=True,
        documents=rows_through,
        counts=("ingested", "ingested"),
    )
    documents: StageFile
    model: EmbeddingModel
    settings: EmbeddingSettings
    chunk_documents: int = CHUNK_DOCUMENTS

    @property
    def name(self) -> str:
        """The name of the shard."""
        return self.documents.name

    @property
    def uses_gpu(self) -> bool:
        """Whether a GPU makes the job faster."""
        return self.settings.model != STATIC

    def depends_on(self) -> Dependencies:
        """Return the settings that change a vector, the documents and the model."""
        return Dependencies(
            settings=self.settings.digested(include=KEY_SETTINGS),
            inputs=[self.documents.fingerprint, self.model.fingerprint],
        )


@stage_task
def embed(job: EmbedJob) -> None:
    """Write the vectors of a shard, row by row with its documents; one that is zero or not finite is null."""
    from fineweb_mask.tasks.inference.encoder_pool import encoder_pool

    pool = encoder_pool(str(job.workspace.local(job.model.path)), job.model.fingerprint, job.settings)
    started = perf_counter()
    with (
        with_texts(job.workspace, job.documents) as path,
        gpu_slot(pool.device),
        VerifiedFile(path) as documents,
        vector_writer(job, pool.tokeniser.dimensions) as writer,
        background_writer() as later,
    ):
        vectors = Checkpoints(writer, job.output)
        chunks = Prefetched(_chunks(documents, vectors, pool.tokeniser, job.chunk_documents))
        for chunk in track_by_size("documents", chunks, job.documents.rows, lambda chunk: len(chunk.rows), part=(0, 1)):
            if chunk.kept is not None:
                later(partial(vectors.restore, chunk.kept))
                continue
            with pool.encoder() as encoder:
                wait = encoder.encode_tokens(chunk.tokens)
            later(partial(_write, vectors, chunk.rows, wait))
    vectors.discard()
    seconds = perf_counter() - started
    waited = 100 * chunks.waited / seconds
    logger.info("%s: %d documents in %.1f s, waiting for tokens %.1f%%", job.name, job.documents.rows, seconds, waited)


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Consecutive documents of a shard, ready for the model or embedded by an earlier run."""

    rows: pa.Array
    tokens: Any  # what the encoder's `tokenise` returns; None where kept
    kept: pa.RecordBatch | None


def _chunks(
    documents: pq.ParquetFile, vectors: "Checkpoints[Encoded]", encoder: "Encoder[Any]", size: int
) -> Iterator[_Chunk]:
    for batch in documents.iter_batches(size, columns=["row", "text"]):
        kept = vectors.find(batch["row"])
        tokens = encoder.tokenise(batch["text"].to_pylist()) if kept is None else None
        yield _Chunk(batch["row"], tokens, kept)


def _write(vectors: "Checkpoints[Encoded]", rows: pa.Array, wait: "Callable[[], Encoded]") -> None:
    vectors.write(rows, wait())


class VectorWriter:
    """Writes a shard's vectors in the order of its rows; made by `vector_writer`."""

    def __init__(self, schema: pa.Schema, writer: ParquetStageWriter) -> None:
        self.schema = schema
        self.bad = 0
        self._writer = writer

    def batch(self, rows: pa.Array, values: "Encoded") -> pa.RecordBatch:
        """Return the next rows with their vectors."""
        from fineweb_mask.models.embedding.arrow import vector_batch

        return vector_batch(rows, values, self.schema)

    def write(self, batch: pa.RecordBatch) -> None:
        """Write rows that `batch` returned."""
        self.bad += batch["embedding"].null_count
        self._writer.write(batch)


@contextmanager
def vector_writer(job: EmbedJob, dimensions: int) -> Iterator[VectorWriter]:
    """Yield the writer of a shard's vectors."""
    schema = embeddings_schema(dimensions, job.settings.precision)
    with stage_file_writer(
        job.output,
        schema,
        job.key,
        use_dictionary=False,
        column_encoding={"embedding.list.element": "BYTE_STREAM_SPLIT"},
    ) as writer:
        vectors = VectorWriter(schema, writer)
        yield vectors
        writer.details = {"bad_vectors": vectors.bad, "dimensions": dimensions}
