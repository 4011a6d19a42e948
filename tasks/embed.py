"""Embed documents as unit vectors, by the built-in encoder or any sentence-transformers model.

A shard is embedded chunk by chunk: while the model encodes one, the next is read and tokenised and the last is written.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa

from fineweb_mask.models.schemas import embeddings_schema
from fineweb_mask.models.settings import FROM_QUALITY, STATIC, EmbeddingSettings
from fineweb_mask.tasks.inference.eligible import EligibleJob
from fineweb_mask.tasks.inference.gpu import gpu_slot
from fineweb_mask.tasks.inference.model_files import ModelFolder, loaded_encoder, model_folder
from fineweb_mask.tasks.storage.parquet import VerifiedFile
from fineweb_mask.tasks.workspace.job import Dependencies, Stage, stage_task
from fineweb_mask.tasks.workspace.stage_parquet import stage_file_writer

if TYPE_CHECKING:
    from fineweb_mask.models.forward.encoder import Encoded

CHUNK_DOCUMENTS = 8_192
"""Documents tokenised and sorted by length together."""
WRITTEN: dict[str, Any] = {"use_dictionary": False}
"""How a file of vectors is written; DuckDB cannot decode float16 by byte stream split, which takes 7% less."""


def resolve_encoder(settings: EmbeddingSettings) -> ModelFolder | None:
    """Return the model that the settings name, downloading it if necessary; None if it is made in the run.

    Raises
    ------
    ModelNotFoundError
        If they name neither a model's folder nor one on the hub.
    """
    if settings.model in {STATIC, FROM_QUALITY}:
        return None
    parts = ("modules.json", "*.safetensors")
    return model_folder(settings.model, "embedding.model", parts, "a sentence-transformers model")


class EmbedJob(EligibleJob):
    """Embed one shard's documents, duplicates aside."""

    stage: ClassVar[Stage] = Stage(
        "embed",
        version=6,
        folders=("embeddings",),
        per_shard=True,
        documents=attrgetter("rows"),
        counts=("eligible", "eligible"),
    )
    model: ModelFolder
    settings: EmbeddingSettings
    chunk_documents: int = CHUNK_DOCUMENTS

    @property
    def uses_gpu(self) -> bool:
        """Whether a GPU makes the job faster."""
        return self.settings.model != STATIC

    def depends_on(self) -> Dependencies:
        """Return the settings that change a vector, the documents without duplicates, and the model."""
        return Dependencies(
            settings=[self.settings.prompt, self.settings.max_tokens],
            inputs=[self.documents.fingerprint, self.duplicates.fingerprint, self.model.fingerprint],
        )


@stage_task
def embed(job: EmbedJob) -> None:
    """Write the vectors of a shard's documents, duplicates aside; one that is zero or not finite is null."""
    encoder = loaded_encoder(job.workspace, job.model, job.settings)
    with (
        gpu_slot(encoder.device),
        VerifiedFile(job.workspace.resolve(job.documents)) as documents,
        vector_writer(job, encoder.dimensions) as write,
    ):

        def tokenise(batch: pa.RecordBatch) -> Any:  # noqa: ANN401 - what the encoder takes
            return encoder.tokenise(batch["text"].to_pylist())

        def encode(batch: pa.RecordBatch, tokens: Any) -> Callable[[], None]:  # noqa: ANN401
            rows = batch["row"]  # the texts are not held until the vectors are there
            wait = encoder.encode_tokens(tokens)
            return lambda: write(rows, wait())

        job.write_batches(documents, job.chunk_documents, ["row", "text"], tokenise, encode)


@contextmanager
def vector_writer(job: EmbedJob, dimensions: int) -> Iterator[Callable[[pa.Array, "Encoded"], None]]:
    """Yield the function that writes the vectors of the next rows of a shard; a bad vector is null."""
    schema, bad = embeddings_schema(dimensions), 0
    with stage_file_writer(job.output, schema, job.key, **WRITTEN) as writer:

        def write(rows: pa.Array, encoded: "Encoded") -> None:
            nonlocal bad
            values, mask = pa.array(encoded.vectors.astype(np.float16).reshape(-1)), pa.array(encoded.bad)
            vectors = pa.FixedSizeListArray.from_arrays(values, type=schema.field("embedding").type, mask=mask)
            bad += vectors.null_count
            writer.write(pa.record_batch([rows, vectors], schema=schema))

        yield write
        writer.details = {"bad_vectors": bad, "dimensions": dimensions}
