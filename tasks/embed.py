"""Embed documents as unit vectors, by the built-in encoder or any sentence-transformers model.

A shard is embedded chunk by chunk: while the model encodes one, the next is read and tokenised and the last is written.
A checkpoint of each chunk is kept until the shard is complete, so that a killed run resumes mid-shard.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, ClassVar

import pyarrow as pa

from fineweb_mask.models.runtime.progress import track_by_size
from fineweb_mask.models.schemas import embeddings_schema
from fineweb_mask.models.settings import FROM_QUALITY, STATIC, EmbeddingSettings
from fineweb_mask.tasks.inference.gpu import gpu_slot
from fineweb_mask.tasks.inference.model_files import ModelFolder, ModelNotFoundError, check_model_folder
from fineweb_mask.tasks.inference.prefetch import Prefetched, background_writer
from fineweb_mask.tasks.source.texts import with_texts
from fineweb_mask.tasks.storage.parquet import VerifiedFile
from fineweb_mask.tasks.workspace.job import Dependencies, ShardJob, Stage, rows_through, stage_task
from fineweb_mask.tasks.workspace.references import StageFile
from fineweb_mask.tasks.workspace.stage_parquet import Checkpoints, stage_file_writer

KEY_SETTINGS = {"prompt", "max_tokens", "long_documents", "precision", "compute_precision", "on_bad_vector"}
CHUNK_DOCUMENTS = 8_192
"""Documents tokenised and sorted by length together; a killed run resumes after its last chunk."""
BUILT_IN = frozenset({STATIC, FROM_QUALITY})
WRITTEN: dict[str, Any] = {
    "use_dictionary": False,
    "column_encoding": {"embedding.list.element": "BYTE_STREAM_SPLIT"},
}
"""How a file of vectors is written."""
logger = logging.getLogger(__name__)

Rows = Callable[[], pa.RecordBatch]


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


class EmbedJob(ShardJob):
    """Embed one shard's documents."""

    stage: ClassVar[Stage] = Stage(
        "embed",
        version=2,
        folders=("embeddings",),
        per_shard=True,
        documents=rows_through,
        counts=("ingested", "ingested"),
    )
    documents: StageFile
    model: ModelFolder
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
    from fineweb_mask.models.embedding.arrow import vector_batch
    from fineweb_mask.tasks.inference.encoder_pool import encoder_pool

    pool = encoder_pool(str(job.workspace.local(job.model.path)), job.model.fingerprint, job.settings)
    started = perf_counter()
    with (
        with_texts(job.workspace, job.documents) as path,
        gpu_slot(pool.device),
        VerifiedFile(path) as documents,
        vector_checkpoints(job, pool.tokeniser.dimensions) as vectors,
    ):

        def encode(batch: pa.RecordBatch, tokens: Any) -> list[Rows]:  # noqa: ANN401 - what `tokenise` returned
            rows = batch["row"]  # the texts are not held until the vectors are there
            with pool.encoder() as encoder:
                wait = encoder.encode_tokens(tokens)
            return [lambda: vector_batch(rows, wait(), vectors.schema)]

        batches = documents.iter_batches(job.chunk_documents, columns=["row", "text"])
        waited = write_encoded(batches, job.documents.rows, [vectors], pool.tokeniser.tokenise, encode)
    seconds = perf_counter() - started
    share = 100 * waited / seconds
    logger.info("%s: %d documents in %.1f s, waiting for tokens %.1f%%", job.name, job.documents.rows, seconds, share)


def write_encoded(
    batches: Iterable[pa.RecordBatch],
    total: int,
    outputs: Sequence[Checkpoints],
    tokenise: Callable[[list[str]], Any],
    encode: Callable[[pa.RecordBatch, Any], Sequence[Rows]],
) -> float:
    """Write what a model makes of `total` documents, but for the batches that an earlier run has finished.

    While a batch is encoded, the next is read and tokenised, and the last is written. `encode` takes a batch and its
    tokens, and returns for each output a function that waits for its rows. Returns the seconds for which the encoder
    waited for tokens.
    """

    def chunks() -> Iterator[tuple[pa.RecordBatch, Any, list[pa.RecordBatch | None]]]:
        for batch in batches:
            kept = [output.find(batch["row"]) for output in outputs]
            is_done = all(rows is not None for rows in kept)
            yield batch, None if is_done else tokenise(batch["text"].to_pylist()), kept

    ahead = Prefetched(chunks())
    tracked = track_by_size("documents", ahead, total, lambda chunk: chunk[0].num_rows, part=(0, 1))
    with background_writer() as later:
        for batch, tokens, kept in tracked:
            if tokens is None:
                for output, rows in zip(outputs, kept, strict=True):
                    later(partial(output.restore, rows))
            else:
                for output, made in zip(outputs, encode(batch, tokens), strict=True):
                    later(partial(_write, output, made))
    return ahead.waited


def _write(output: Checkpoints, made: Rows) -> None:
    output.write(made())


@contextmanager
def vector_checkpoints(job: EmbedJob, dimensions: int) -> Iterator[Checkpoints]:
    """Yield what writes a shard's vectors, in the order of its rows, with a checkpoint of each batch."""
    schema, bad = embeddings_schema(dimensions, job.settings.precision), 0
    with stage_file_writer(job.output, schema, job.key, **WRITTEN) as writer:

        def write(batch: pa.RecordBatch) -> None:
            nonlocal bad
            bad += batch["embedding"].null_count
            writer.write(batch)

        vectors = Checkpoints(schema, write, job.output)
        yield vectors
        writer.details = {"bad_vectors": bad, "dimensions": dimensions}
    vectors.discard()
