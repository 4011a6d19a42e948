"""Read the texts of documents from the source, where the workspace holds no copy of them: `ingest.copy_text: false`."""

import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pydantic import BaseModel

from fineweb_mask.models.documents import content_hash
from fineweb_mask.models.runtime.stopping import raise_if_stopped
from fineweb_mask.models.schemas import SOURCE_ROW, with_text
from fineweb_mask.models.settings import SourceSettings
from fineweb_mask.tasks.source.discovery import SourceError, SourceShard
from fineweb_mask.tasks.source.reader import ShardReader
from fineweb_mask.tasks.storage.parquet import VerifiedFile
from fineweb_mask.tasks.storage.remote.copies import local_copies
from fineweb_mask.tasks.workspace.job import BadShardError
from fineweb_mask.tasks.workspace.references import StageFile
from fineweb_mask.tasks.workspace.stage_parquet import row_group_ends, take_rows
from fineweb_mask.tasks.workspace.workspace import Workspace

DETAIL = "text_source"
"""The detail of a documents file that says where its texts are; the file holds them if it is missing."""


class TextSource(BaseModel):
    """Where the texts of a shard are."""

    shard: SourceShard
    text_column: str
    fingerprint: Literal["mtime", "content"]

    @classmethod
    def of(cls, file: StageFile) -> "TextSource | None":
        """Return where the texts of a documents file are, or None if they are in it."""
        return cls.model_validate(file.details[DETAIL]) if DETAIL in file.details else None


def check_can_be_read_again(shards: Sequence[SourceShard]) -> None:
    """Check that the texts of single rows can be read from the source files.

    Raises
    ------
    SourceError
        If a file is not Parquet.
    """
    if (other := next((shard for shard in shards if shard.format != "parquet"), None)) is not None:
        raise SourceError(
            f"ingest.copy_text: {other.relative} is not a Parquet file, from which texts can be read again: "
            "set ingest.copy_text to true"
        )


@contextmanager
def with_texts(workspace: Workspace, file: StageFile, rows: NDArray[np.int64] | None = None) -> Iterator[Path]:
    """Yield the local path of a shard's documents with their texts, row group for row group as they are in `file`.

    If the texts are in the source, it is a temporary file on this machine, which is deleted when the block ends.

    Parameters
    ----------
    workspace
        The workspace of the corpus.
    file
        The shard's documents.
    rows
        Which of them are needed, (n,), ascending. A temporary file holds no others.

    Raises
    ------
    BadShardError
        If the source file is missing, or was changed since it was ingested.
    """
    if TextSource.of(file) is None:
        yield workspace.resolve(file)
        return
    path = workspace.cache / "texts" / f".{file.name}.{uuid.uuid4().hex}.partial"
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        write_with_texts(workspace, file, path, rows)
        yield path
    finally:
        path.unlink(missing_ok=True)


@local_copies()
def documents_of(workspace: Workspace, file: StageFile, rows: NDArray[np.int64], columns: Sequence[str]) -> pa.Table:
    """Return ascending `rows`, (n,), of a shard's documents, with the `columns` that the shard has.

    Raises
    ------
    BadShardError
        If texts are asked for, and the source file is missing, or was changed since it was ingested.
    """
    if "text" not in columns or TextSource.of(file) is None:
        return take_rows(workspace.resolve(file), rows, columns)
    with with_texts(workspace, file, rows) as path:
        return take_rows(path, np.arange(len(rows)), columns)


def write_with_texts(workspace: Workspace, file: StageFile, path: Path, rows: NDArray[np.int64] | None = None) -> None:
    """Write the documents of a shard whose texts are in the source, with their texts; see `with_texts`."""
    source = TextSource.of(file)
    assert source is not None  # noqa: S101 - the caller has looked
    settings = SourceSettings(
        path=source.shard.url, text_column=source.text_column, extra_columns=[], fingerprint=source.fingerprint
    )
    reader = ShardReader(source.shard, settings)
    with VerifiedFile(workspace.resolve(file)) as documents:
        wanted = documents.read(columns=[SOURCE_ROW.name])[SOURCE_ROW.name].to_numpy()
        chosen = np.ones(len(wanted), dtype=bool) if rows is None else np.isin(np.arange(len(wanted)), rows)
        schema = with_text(documents.schema_arrow.remove_metadata())
        groups = [chosen[start:end] for start, end in pairwise([0, *row_group_ends(documents)])]
        texts = _in_groups(reader.texts(wanted[chosen]), [int(keep.sum()) for keep in groups])
        with pq.ParquetWriter(path, schema, compression="lz4") as writer:
            for group, (keep, found) in enumerate(zip(groups, texts, strict=True)):
                raise_if_stopped()
                if rows is None or keep.any():
                    table = documents.read_row_group(group).filter(pa.array(keep))
                    _check_same(source, table, found)
                    columns = [found if field.name == "text" else table[field.name] for field in schema]
                    writer.write_table(pa.table(columns, schema=schema), row_group_size=max(len(table), 1))


def _in_groups(batches: Iterator[pa.Array], sizes: Iterable[int]) -> Iterator[pa.ChunkedArray]:
    """Yield texts in groups of these sizes, or smaller ones if there are no more, and read the batches to their end."""
    texts = pa.chunked_array([], pa.string())
    for size in sizes:
        while len(texts) < size and (batch := next(batches, None)) is not None:
            texts = pa.chunked_array([*texts.chunks, batch])
        yield texts.slice(0, size)
        texts = texts.slice(size)
    for _ in batches:  # the reader checks in the end that the file did not change
        pass


def _check_same(source: TextSource, documents: pa.Table, texts: pa.ChunkedArray) -> None:
    """Check that texts are those of the documents, by their lengths and, where no time of change is known, hashes."""
    same = np.array_equal(pc.utf8_length(texts).to_numpy(), documents["n_chars"].to_numpy())
    if same and source.fingerprint == "content":
        same = [content_hash(text) for text in texts.to_pylist()] == documents["content_hash"].to_pylist()
    if not same:
        raise BadShardError(f"{source.shard.relative}: the file was changed since it was ingested; run again")
