"""Embed documents as unit vectors, by the built-in encoder or any sentence-transformers model.

A shard is embedded chunk by chunk: while the model encodes one, the next is read and tokenised and the last is written.
"""

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa

from fineweb_mask.models.runtime.progress import track_by_size
from fineweb_mask.models.schemas import embeddings_schema
from fineweb_mask.models.settings import FROM_QUALITY, STATIC, EmbeddingSettings
from fineweb_mask.tasks.inference.gpu import gpu_slot
from fineweb_mask.tasks.inference.model_files import ModelFolder, ModelNotFoundError, check_model_folder
from fineweb_mask.tasks.inference.prefetch import Prefetched, background_writer
from fineweb_mask.tasks.storage.parquet import VerifiedFile
from fineweb_mask.tasks.workspace.job import Dependencies, ShardJob, Stage, rows_through, stage_task
from fineweb_mask.tasks.workspace.references import StageFile
from fineweb_mask.tasks.workspace.stage_parquet import duplicate_rows, kept_batches, stage_file_writer

if TYPE_CHECKING:
    from fineweb_mask.models.forward.batches import Encoded

KEY_SETTINGS = {"prompt", "max_tokens", "precision"}
CHUNK_DOCUMENTS = 8_192
"""Documents tokenised and sorted by length together."""
BUILT_IN = frozenset({STATIC, FROM_QUALITY})
WRITTEN: dict[str, Any] = {
    "use_dictionary": False,
    "column_encoding": {"embedding.list.element": "BYTE_STREAM_SPLIT"},
}
"""How a file of vectors is written."""
logger = logging.getLogger(__name__)


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
    """Embed one shard's documents, duplicates aside."""

    stage: ClassVar[Stage] = Stage(
        "embed",
        version=4,
        folders=("embeddings",),
        per_shard=True,
        documents=rows_through,
        counts=("eligible", "eligible"),
    )
    documents: StageFile
    duplicates: StageFile  # documents that have no vector, for nothing is selected from them
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
        """Return the settings that change a vector, the documents without duplicates, and the model."""
        return Dependencies(
            settings=self.settings.model_dump(include=KEY_SETTINGS),
            inputs=[self.documents.fingerprint, self.duplicates.fingerprint, self.model.fingerprint],
        )


@stage_task
def embed(job: EmbedJob) -> None:
    """Write the vectors of a shard's documents, duplicates aside; one that is zero or not finite is null."""
    from fineweb_mask.tasks.inference.encoder_pool import encoder_pool

    pool = encoder_pool(str(job.workspace.local(job.model.path)), job.model.fingerprint, job.settings)
    started, path = perf_counter(), job.workspace.resolve(job.documents)
    dropped = duplicate_rows(job.workspace, job.duplicates)
    total = job.documents.rows - len(dropped)
    with (
        gpu_slot(pool.first.device),
        VerifiedFile(path) as documents,
        vector_writer(job, pool.first.dimensions) as write,
    ):

        def encode(batch: pa.RecordBatch, tokens: Any) -> Callable[[], None]:  # noqa: ANN401 - what `tokenise` returned
            rows = batch["row"]  # the texts are not held until the vectors are there
            with pool.encoder() as encoder:
                wait = encoder.encode_tokens(tokens)
            return lambda: write(rows, wait())

        batches = kept_batches(documents, job.chunk_documents, ["row", "text"], dropped)
        waited = write_encoded(batches, total, pool.first.tokenise, encode)
    seconds = perf_counter() - started
    share = 100 * waited / seconds
    logger.info("%s: %d documents in %.1f s, waiting for tokens %.1f%%", job.name, total, seconds, share)


def write_encoded(
    batches: Iterable[pa.RecordBatch],
    total: int,
    tokenise: Callable[[list[str]], Any],
    encode: Callable[[pa.RecordBatch, Any], Callable[[], None]],
) -> float:
    """Write what a model makes of `total` documents.

    While a batch is encoded, the next is read and tokenised, and the last is written. `encode` takes a batch and its
    tokens, and returns the function that waits for what the model makes of them and writes it. Returns the seconds for
    which the encoder waited for tokens.
    """
    ahead = Prefetched((batch, tokenise(batch["text"].to_pylist())) for batch in batches)
    tracked = track_by_size("documents", ahead, total, lambda chunk: chunk[0].num_rows, part=(0, 1))
    with background_writer() as later:
        for batch, tokens in tracked:
            later(encode(batch, tokens))
    return ahead.waited


@contextmanager
def vector_writer(job: EmbedJob, dimensions: int) -> Iterator[Callable[[pa.Array, "Encoded"], None]]:
    """Yield the function that writes the vectors of the next rows of a shard; a bad vector is null."""
    schema, bad = embeddings_schema(dimensions, job.settings.precision), 0
    kind = schema.field("embedding").type
    with stage_file_writer(job.output, schema, job.key, **WRITTEN) as writer:

        def write(rows: pa.Array, encoded: "Encoded") -> None:
            nonlocal bad
            values = encoded.vectors.astype(kind.value_type.to_pandas_dtype(), copy=False)
            mask = pa.array(encoded.bad)
            vectors = pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), type=kind, mask=mask)
            bad += vectors.null_count
            writer.write(pa.record_batch([rows, vectors], schema=schema))

        yield write
        writer.details = {"bad_vectors": bad, "dimensions": dimensions}
