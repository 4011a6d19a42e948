"""Ingest: one source file in, one file of clean, uniform documents out, every dropped row counted by its reason."""

from typing import ClassVar

from fineweb_mask.models.documents import DocumentFilter
from fineweb_mask.models.runtime.progress import track_by_size
from fineweb_mask.models.schemas import documents_schema
from fineweb_mask.models.settings import IngestSettings, SourceSettings
from fineweb_mask.tasks.source.discovery import SourceShard
from fineweb_mask.tasks.source.reader import ShardReader
from fineweb_mask.tasks.workspace.job import ShardJob, build_once, stage_task
from fineweb_mask.tasks.workspace.stage_parquet import stage_file_writer
from fineweb_mask.tasks.workspace.workspace import StageFile, StageKey, Workspace, digest

VERSION = 1


class IngestJob(ShardJob):
    """Ingest one source file."""

    folder: ClassVar[str] = "documents"
    shard: SourceShard
    source: SourceSettings
    settings: IngestSettings


def plan(workspace: Workspace, shard: SourceShard, source: SourceSettings, settings: IngestSettings) -> IngestJob:
    """Return the job that ingests a source file."""
    reads = [
        source.model_dump(include={"text_column", "id_column", "extra_columns"}),
        settings.model_dump(exclude={"on_bad_shard", "exact_dedup"}),
        settings.exact_dedup != "off",
    ]
    key = StageKey(
        stage="ingest",
        version=VERSION,
        settings=digest(reads),
        inputs=digest([shard.relative, shard.format, shard.fingerprint]),
    )
    return IngestJob(root=str(workspace.root), name=shard.name, key=key, shard=shard, source=source, settings=settings)


def ingest(job: IngestJob) -> StageFile:
    """Read the source file batch by batch, drop what the settings do not let in, write the rest.

    Raises
    ------
    BadShardError
        If the file is damaged or lacks a column.
    """
    return build_once(job, lambda: _build(job))


def _build(job: IngestJob) -> None:
    reader = ShardReader(job.shard, job.source)
    documents = DocumentFilter(job.settings, job.shard.relative)
    with stage_file_writer(job.output, documents_schema(reader.extra), job.key) as writer:
        batches = track_by_size("documents", reader.batches(), reader.rows, lambda pair: pair[0].num_rows, part=(0, 1))
        for batch, problems in batches:
            writer.write(documents.apply(batch, problems))
        writer.details = {
            "rows_in": documents.rows_in,
            "dropped": {reason: count for reason, count in sorted(documents.dropped.items()) if count},
            "tokens_in": documents.tokens_in,
            "tokens": documents.tokens_kept,
            "tokens_estimated": documents.tokens_estimated,
        }


ingest_task = stage_task(ingest)
