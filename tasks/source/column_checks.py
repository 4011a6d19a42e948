"""The columns that the settings name, looked for in the source before any work is done on them."""

from collections.abc import Collection, Iterator, Sequence

import pyarrow as pa

from fineweb_mask.models.errors import SettingsError
from fineweb_mask.models.schemas import MEASURED, documents_schema
from fineweb_mask.models.settings import FLAT, PipelineSettings, SourceSettings
from fineweb_mask.models.settings.output import TEXT_IS_NO_GROUP
from fineweb_mask.models.settings.quality import ColumnScorerSettings
from fineweb_mask.tasks.source.discovery import SourceShard
from fineweb_mask.tasks.source.reader import ShardReader
from fineweb_mask.tasks.workspace.job import BadShardError


class ColumnError(SettingsError):
    """A setting names a column that documents will not have."""


def document_columns(
    shards: Sequence[SourceShard], source: SourceSettings, wanted: Collection[str]
) -> dict[str, pa.DataType] | None:
    """Return the columns that documents will have: those of all, and those of source files until all wanted are found.

    Files that cannot be read are passed over: ingest says what is wrong with them. None: no file had to be, and could
    be, read.
    """
    columns = {field.name: field.type for field in documents_schema()}
    is_known = columns.keys() >= set(wanted)
    for shard in shards:
        if columns.keys() >= set(wanted):
            break
        try:
            reader = ShardReader(shard, source)
        except BadShardError:
            continue
        is_known = True
        columns |= {field.name: field.type for field in reader.extra}
    return columns if is_known else None


def check_columns(settings: PipelineSettings, shards: Sequence[SourceShard]) -> None:
    """Check that documents will have the columns that the recipe names, before any work.

    Raises
    ------
    ColumnError
        If no source file that can be read has one, or the report is to be broken down by the text itself.
    """
    if "text" in settings.report.by:
        raise ColumnError(f"report.by: {TEXT_IS_NO_GROUP}")
    named = list(_named(settings))
    columns = document_columns(shards, settings.source, {column for _, column, _ in named})
    if columns is None:
        return
    for key, column, instead in named:
        if column not in columns:
            others = [*instead, *(name for name in columns if name not in {"row", "text", *MEASURED.names})]
            remedy = "" if settings.source.extra_columns == "all" else "; source.extra_columns adds some of the source"
            raise ColumnError(
                f"{key}: no document will have a column {column!r}, it may be one of {', '.join(others)}{remedy}"
            )


def _named(settings: PipelineSettings) -> Iterator[tuple[str, str, list[str]]]:
    """Return every setting that names a column of documents, the column, and what else the setting may be."""
    for index, scorer in enumerate(settings.quality.scorers):
        if isinstance(scorer, ColumnScorerSettings):
            yield f"quality.scorers.{index}.column", scorer.column, []
    if settings.materialize.layout != FLAT:
        yield "materialize.layout", settings.materialize.layout, [FLAT]
    for index, column in enumerate(settings.report.by):
        yield f"report.by.{index}", column, []
