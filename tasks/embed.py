"""Embed: one unit vector per document, by the built-in encoder or any sentence-transformers model."""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel, ConfigDict

from models.embedding.encoder import Encoder
from models.embedding.unit import Encoded
from models.schemas import embeddings_schema
from models.settings import EmbeddingSettings
from tasks.hub import model_folder
from tasks.lake import StageFile, StageKey, Workspace, digest, written_parquet
from tasks.stage import BadShardError, ShardJob, build_once, stage_task

VERSION = 1
BATCH_ROWS = 2_000
_encoding = threading.Lock()  # one model, one forward pass at a time; tokenizers are not thread-safe either


class EmbeddingModel(BaseModel):
    """The encoder's folder, known by its content."""

    model_config = ConfigDict(frozen=True)

    path: str  # relative to the workspace if it was fitted there
    fingerprint: str


def fitted_model(fitted: StageFile) -> EmbeddingModel:
    """Return the built-in encoder that was fitted in this workspace; `fitted` refers to its manifest."""
    return EmbeddingModel(path=str(Path(fitted.path).with_suffix("")), fingerprint=fitted.fingerprint)


def given_model(settings: EmbeddingSettings) -> EmbeddingModel:
    """Return the model that the settings name, fetched from the hub if it is not a folder.

    Raises
    ------
    ModelFolderError
        If it is neither a folder nor to be had from the hub.
    """
    folder = model_folder(settings.model, "embedding.model")
    return EmbeddingModel(path=str(folder.path), fingerprint=folder.fingerprint)


class EmbedJob(ShardJob):
    """Embed one shard's documents."""

    folder: ClassVar[str] = "embeddings"
    documents: StageFile
    model: EmbeddingModel
    settings: EmbeddingSettings


def plan(workspace: Workspace, documents: StageFile, model: EmbeddingModel, settings: EmbeddingSettings) -> EmbedJob:
    """Return the job that embeds a shard."""
    key = StageKey(
        stage="embed",
        version=VERSION,
        settings=digest(settings.model_dump(include={"prompt", "max_tokens", "precision", "on_bad_vector"})),
        inputs=digest([documents.fingerprint, model.fingerprint]),
    )
    return EmbedJob(
        workspace=str(workspace.root),
        name=documents.name,
        key=key,
        documents=documents,
        model=model,
        settings=settings,
    )


def embed(job: EmbedJob) -> StageFile:
    """Write the vectors of a shard, row by row beside its documents; a bad vector is null.

    Raises
    ------
    BadShardError
        If a vector is zero or not finite and `on_bad_vector` is `raise`.
    """
    return build_once(job, lambda: _build(job))


def _build(job: EmbedJob) -> None:
    encoder = _load(os.path.join(job.workspace, job.model.path), job.model.fingerprint, job.settings)  # noqa: PTH118
    with (
        pq.ParquetFile(job.lake.resolve(job.documents)) as documents,
        written_vectors(job, encoder.dimensions) as write,
    ):
        for batch in documents.iter_batches(BATCH_ROWS, columns=["row", "text"]):
            with _encoding:
                encoded = encoder.encode(batch["text"].to_pylist())
            write(batch["row"], encoded)


@contextmanager
def written_vectors(job: EmbedJob, dimensions: int) -> Iterator[Callable[[pa.Array, Encoded], None]]:
    """Write a shard's vectors: give a function that takes the next rows with theirs, in order.

    Raises
    ------
    BadShardError
        If a vector is zero or not finite and `on_bad_vector` is `raise`.
    """
    schema = embeddings_schema(dimensions, job.settings.precision)
    bad = 0
    with written_parquet(
        job.output,
        schema,
        job.key,
        use_dictionary=False,
        column_encoding={"embedding.list.element": "BYTE_STREAM_SPLIT"},
    ) as writer:

        def write(rows: pa.Array, encoded: Encoded) -> None:
            nonlocal bad
            if encoded.bad.any() and job.settings.on_bad_vector == "raise":
                row = int(np.flatnonzero(encoded.bad)[0])
                raise BadShardError(
                    f"{job.name}: the vector of row {rows[row]} is zero or not finite; "
                    "set embedding.on_bad_vector to drop to leave such documents out"
                )
            bad += int(encoded.bad.sum())
            writer.write(_as_batch(rows, encoded, schema))

        yield write
        writer.details = {"bad_vectors": bad, "dimensions": dimensions}


def _as_batch(rows: pa.Array, encoded: Encoded, schema: pa.Schema) -> pa.RecordBatch:
    kind = schema.field("embedding").type
    values = pa.array(encoded.vectors.astype(kind.value_type.to_pandas_dtype()).reshape(-1))
    vectors = pa.FixedSizeListArray.from_arrays(values, type=kind, mask=pa.array(encoded.bad))
    return pa.record_batch([rows, vectors], schema=schema)


@lru_cache(maxsize=1)
def _load_once(path: str, _fingerprint: str, settings: EmbeddingSettings) -> Encoder:
    return Encoder(path, settings)


def _load(path: str, fingerprint: str, settings: EmbeddingSettings) -> Encoder:
    with _encoding:
        return _load_once(path, fingerprint, settings)


embed_task = stage_task(embed)
