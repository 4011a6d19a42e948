"""Ingest a source file: write its documents in uniform columns, and count every dropped row by its reason."""

from array import array
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fineweb_mask.models.documents import DocumentFilter
from fineweb_mask.models.pages import version_of_extraction
from fineweb_mask.models.runtime.progress import track_by_size
from fineweb_mask.models.schemas import documents_schema, dropped_schema
from fineweb_mask.models.settings import IngestSettings, SourceSettings
from fineweb_mask.tasks.exclusion import FILES, benchmark_items, known_texts
from fineweb_mask.tasks.processes.texts import text_filter
from fineweb_mask.tasks.source.discovery import LARGEST_DOCUMENT, SourceShard
from fineweb_mask.tasks.source.reader import ShardReader
from fineweb_mask.tasks.workspace.job import Dependencies, Stage, StageJob, stage_task
from fineweb_mask.tasks.workspace.listing import Listing, find_file
from fineweb_mask.tasks.workspace.references import EXCLUDED, StageFile, file_digest
from fineweb_mask.tasks.workspace.stage_parquet import stage_file_writer

IN_KEY = {"min_chars", "languages", "min_language_score"}
"""Settings that the documents of a shard depend on, and that are in the key as they are."""


class IngestJob(StageJob):
    """Ingest one source file."""

    stage: ClassVar[Stage] = Stage(
        "ingest",
        version=6,
        folders=("documents", "dropped"),
        per_shard=True,
        documents=lambda file: int(file.details["rows_in"]),
        counts=("source", "ingested"),
    )
    shard: SourceShard
    source: SourceSettings
    settings: IngestSettings
    known: StageFile | None = None  # the list of what other corpora hold
    benchmarks: StageFile | None = None  # the list of the items of benchmarks
    erased: tuple[int, ...] = ()  # rows of the source file of which nothing is written, ascending

    @property
    def name(self) -> str:
        """The name of the shard."""
        return self.shard.name

    def depends_on(self) -> Dependencies:
        """Return the source's columns, the filters, and the source file's fingerprint."""
        return Dependencies(
            settings=[
                self.source.model_dump(include={"text_column", "id_column", "extra_columns"})
                | {"max_document_bytes": LARGEST_DOCUMENT},
                self.settings.model_dump(include=IN_KEY),
                self.settings.exact_dedup != "off",
                *_filters_in_key(self.settings),
            ],
            inputs=[
                self.shard.relative,
                self.shard.format,
                self.shard.fingerprint,
                *([] if self.known is None else [self.known.fingerprint]),
                *(
                    []
                    if self.benchmarks is None
                    else ["without", self.benchmarks.fingerprint, self.settings.decontaminate_threshold]
                ),
                *([["erased", *self.erased]] if self.erased else []),
                *(["columns", *sorted(self.shard.columns)] if self.shard.columns else []),
                *([["keys", *self.shard.keys]] if self.shard.keys else []),
                *([f"trafilatura {version_of_extraction()}"] if self.shard.format == "warc" else []),
            ],
        )

    def beside(self, folder: str) -> Path:
        """Return the shard's file in a folder of the stage: its documents, or the dropped rows."""
        return self.workspace.shard_path(folder, self.name, self.key)

    def paths(self) -> list[Path]:
        """Return the shard's file, and that of the dropped rows."""
        return [self.beside(folder) for folder in self.stage.folders]

    def current(self, listing: Listing | None = None) -> StageFile | None:
        """Return the shard's file if it and that of the dropped rows, with their texts if asked, are current."""
        file = super().current(listing)
        dropped = find_file(self.workspace, "dropped", self.name, self.key, listing)
        is_whole = dropped is not None and (dropped.details["texts"] or not self.settings.keep_dropped)
        return file if is_whole else None


def _filters_in_key(settings: IngestSettings) -> list[Any]:
    """Return what a document depends on by its filters; without any, nothing."""
    if not settings.filters:
        return []
    models = [file_digest(Path(str(one.options["model"]))) for one in settings.filters if "model" in one.options]
    return [[one.model_dump() for one in settings.filters], version("datatrove"), *models]


def _document_filter(job: IngestJob, rows: int) -> DocumentFilter:
    """Return what decides which of so many rows of a job's file are kept."""
    copies = overlaps = None
    if job.known is not None:
        path = job.workspace.resolve(job.known).parent / FILES["known"]
        copies = known_texts(path, job.known.fingerprint).copies
    if job.benchmarks is not None:
        path = job.workspace.resolve(job.benchmarks).parent / FILES["benchmarks"]
        overlaps = benchmark_items(path, job.benchmarks.fingerprint, job.settings.decontaminate_threshold).overlaps
    filters = text_filter(job.settings.filters, rows) if job.settings.filters else None
    return DocumentFilter(job.settings, job.shard.relative, copies, filters, overlaps)


def _without(
    erased: Sequence[int], batch: pa.RecordBatch, problems: pa.Array, first: int
) -> tuple[pa.RecordBatch, pa.Array]:
    """Return rows of a source file and their problems; those that are erased are empty, which is their problem."""
    is_erased = np.isin(np.arange(first, first + batch.num_rows), erased)
    if not is_erased.any():
        return batch, problems
    kept = batch.take(pa.array(np.arange(batch.num_rows), mask=is_erased))
    return kept, pc.if_else(pa.array(is_erased), EXCLUDED, problems)


@stage_task
def ingest(job: IngestJob) -> None:
    """Read the source file batch by batch, drop what the settings exclude, and write the rest.

    Raises
    ------
    BadShardError
        If the file is damaged or lacks a column.
    """
    reader = ShardReader(job.shard, job.source)
    documents = _document_filter(job, reader.rows)
    ids = array("q")  # hashes
    with (
        stage_file_writer(job.output, documents_schema(reader.extra), job.key) as writer,
        stage_file_writer(job.beside("dropped"), dropped_schema(reader.extra), job.key) as dropped,
    ):
        dropped.details = {"texts": job.settings.keep_dropped}
        batches = track_by_size("documents", reader.batches(), reader.rows, lambda pair: pair[0].num_rows, part=(0, 1))
        for read, found in batches:
            batch, problems = _without(job.erased, read, found, documents.rows_in)
            writer.write(documents.apply(batch, problems))
            ids.extend(map(hash, batch["id"].drop_null().cast(pa.binary()).to_pylist()))
            for gone in documents.take_dropped():
                dropped.write(gone)
        writer.details = {
            **({"not_kept": sorted(reader.not_kept)} if reader.not_kept else {}),
            **({"lost": dict(lost)} if (lost := reader.lost + documents.lost) else {}),
            **({"keys_differ": found} if (found := dict(+reader.keys_differ)) else {}),
            **({"repeated_ids": repeats} if (repeats := len(ids) - len(np.unique(ids))) else {}),
            "rows_in": documents.rows_in,
            "dropped": {reason: count for reason, count in sorted(documents.dropped.items()) if count},
            "tokens_in": documents.tokens_in,
            "tokens": documents.tokens_kept,
            "tokens_estimated": documents.tokens_estimated,
        }
