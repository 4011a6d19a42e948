"""Shards whose documents are made of nothing but the hashes of their texts, and what duplicates they must have."""

import hashlib
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from fineweb_mask.models.schemas import documents_schema
from fineweb_mask.tasks.dedup.duplicates import DedupJob
from fineweb_mask.tasks.workspace.references import StageFile, StageKey, digest
from fineweb_mask.tasks.workspace.stage_parquet import duplicate_rows
from fineweb_mask.tasks.workspace.workspace import Workspace
from tests.tasks.stage_files import write_table

Texts = Mapping[str, Sequence[int]]
"""The texts of each shard, as numbers."""


def text_hash(text: int) -> bytes:
    return hashlib.blake2b(str(text).encode(), digest_size=16).digest()


def write_documents(workspace: Workspace, texts: Texts) -> list[StageFile]:
    """Write the documents of shards, and return them in the order that is given."""
    files = []
    for name, of_shard in texts.items():
        key = StageKey(stage="ingest", version=1, settings="", inputs=digest([name, list(of_shard)]))
        hashes = pa.array([text_hash(text) for text in of_shard], pa.binary(16))
        rows = pa.array(np.arange(len(of_shard), dtype=np.uint32))
        schema = pa.schema([documents_schema().field(name) for name in ("row", "text", "content_hash")])
        table = pa.table([rows, pa.array(["x" * 99] * len(rows)), hashes], schema=schema)
        files.append(write_table(workspace, "documents", name, table, key))
    return files


def expected(texts: Texts) -> dict[str, list[int]]:
    """Return the rows of each shard whose text a shard before it has."""
    found, seen = {}, set[int]()
    for name, of_shard in texts.items():
        found[name] = [row for row, text in enumerate(of_shard) if text in seen]
        seen |= set(of_shard)
    return found


def listed(job: DedupJob) -> dict[str, list[int]]:
    """Return the duplicates of each shard, as they are read by what comes after."""
    files = job.shard_files()
    assert files is not None
    return {file.name: duplicate_rows(job.workspace, file).tolist() for file in files}
