"""Exact duplicates across shards: which rows of each shard hold a text that an earlier shard already has.

Ingest drops repeats within a shard and records each text's hash; here DuckDB compares the hashes of all shards, and
spills to disk where they do not fit in memory. The rows stay in the documents, so that shards can be scored and
embedded without waiting for each other, and are left out when the subset is selected. Which copy stays depends on the
shards' names only, not on the order of work.
"""

import duckdb
import numpy as np
import pyarrow as pa

from fineweb_mask.models.schemas import DUPLICATES
from fineweb_mask.tasks.workspace.job import StageJob, build_once, stage_task
from fineweb_mask.tasks.workspace.stage_parquet import current_parquet, stage_file_writer
from fineweb_mask.tasks.workspace.workspace import StageFile, StageKey, Workspace, digest

VERSION = 1


class DedupJob(StageJob):
    """Find the duplicates across all shards."""

    documents: list[StageFile]
    across_shards: bool
    memory_limit: str

    def shard_files(self) -> list[StageFile] | None:
        """Return the list of duplicates of every shard, in the documents' order, or None if one is not current."""
        files = []
        for shard in self.documents:
            path = self.workspace.shard_path("duplicates", shard.name)
            if (file := current_parquet(self.workspace, path, shard.name, self.key)) is None:
                return None
            files.append(file)
        return files

    def current(self) -> StageFile | None:
        """Return a reference to the duplicates of all shards together if they are current, else None."""
        if (files := self.shard_files()) is None:
            return None
        return StageFile(
            stage=self.key.stage,
            name=self.name,
            path="duplicates",
            rows=sum(file.rows for file in files),
            bytes=sum(file.bytes for file in files),
            fingerprint=digest([file.fingerprint for file in files]),
            cached=True,
        )


def plan(workspace: Workspace, documents: list[StageFile], scope: str, memory_limit: str) -> DedupJob:
    """Return the job that compares all shards; `scope` is `ingest.exact_dedup`."""
    ordered = sorted(documents, key=lambda file: file.name)
    key = StageKey(
        stage="dedup",
        version=VERSION,
        settings=digest(scope == "corpus"),
        inputs=digest([[file.name, file.fingerprint] for file in ordered]),
    )
    return DedupJob(
        root=str(workspace.root),
        name="corpus",
        key=key,
        documents=ordered,
        across_shards=scope == "corpus",
        memory_limit=memory_limit,
    )


def dedup(job: DedupJob) -> StageFile:
    """Write, for every shard, the rows that repeat a text of an earlier shard."""
    return build_once(job, lambda: _build(job))


def _build(job: DedupJob) -> None:
    found = _duplicates(job) if job.across_shards and len(job.documents) > 1 else {}
    for index, shard in enumerate(job.documents):
        rows = found.get(index, np.empty(0, dtype=np.uint32))
        path = job.workspace.shard_path("duplicates", shard.name)
        with stage_file_writer(path, DUPLICATES, job.key) as writer:
            writer.write(pa.record_batch([pa.array(rows)], schema=DUPLICATES))
            writer.details = {"content": digest([shard.name, rows.tolist()])}


def _duplicates(job: DedupJob) -> dict[int, np.ndarray]:
    """Return, by the shard's place in the order, the rows (uint32, ascending) that repeat an earlier shard's text."""
    spill = job.workspace.cache / "dedup-spill"
    spill.mkdir(parents=True, exist_ok=True)
    with duckdb.connect(config={"memory_limit": job.memory_limit, "temp_directory": str(spill)}) as connection:
        connection.execute("CREATE TABLE hashes (shard UINTEGER, row UINTEGER, content_hash BLOB)")
        for index, shard in enumerate(job.documents):
            connection.execute(
                "INSERT INTO hashes SELECT $shard, row, content_hash FROM read_parquet($path)",
                {"shard": index, "path": str(job.workspace.resolve(shard))},
            )
        repeats = connection.execute(
            """
            SELECT shard, row
            FROM hashes JOIN (SELECT content_hash, min(shard) AS first FROM hashes GROUP BY content_hash)
            USING (content_hash)
            WHERE shard > first
            ORDER BY shard, row
            """
        ).fetchnumpy()
    shards, rows = np.asarray(repeats["shard"]), np.asarray(repeats["row"], dtype=np.uint32)
    return {int(shard): rows[shards == shard] for shard in np.unique(shards)}


dedup_task = stage_task(dedup)
