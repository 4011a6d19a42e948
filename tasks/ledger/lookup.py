"""Find documents by URL, id or text: among those that ingest kept, and those it wrote aside.

Columns are read shard by shard, and of a workspace at a URL only these, not the texts.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fineweb_mask.models.runtime.stopping import raise_if_stopped
from fineweb_mask.models.schemas import MEASURED
from fineweb_mask.tasks.reporting.samples import DocumentRef
from fineweb_mask.tasks.workspace.references import ShardFiles, StageFile
from fineweb_mask.tasks.workspace.stage_parquet import open_parquet, take_rows
from fineweb_mask.tasks.workspace.workspace import Workspace

NAMES = ("id", "url")
HASH = MEASURED.field("content_hash").name
AT_ONCE = 8
"""Shards that are read at the same time."""


class Gone(NamedTuple):
    """A row that ingest dropped and wrote aside."""

    shard: int
    source_row: int
    id: str
    url: str | None
    reason: str
    twin: str | None  # of a known text, or one that holds an item of a benchmark
    text: str | None


def find_documents(
    workspace: Workspace, shards: Sequence[ShardFiles], wanted: Iterable[str]
) -> dict[str, list[DocumentRef]]:
    """Return the documents of each id or URL, in the order of the shards."""
    return _find(workspace, shards, pa.array(sorted(set(wanted)), pa.string()), NAMES)


def find_texts(
    workspace: Workspace, shards: Sequence[ShardFiles], hashes: Iterable[bytes]
) -> dict[bytes, list[DocumentRef]]:
    """Return the documents whose text has each hash, in the order of the shards."""
    return _find(workspace, shards, pa.array(sorted(set(hashes)), MEASURED.field(HASH).type), (HASH,))


def _find(workspace: Workspace, shards: Sequence[ShardFiles], wanted: pa.Array, names: Sequence[str]) -> dict[Any, Any]:
    found = defaultdict(list)
    paths = [workspace.root / shard.documents.path for shard in shards]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for index, rows in enumerate(pool.map(partial(_matches, wanted=wanted, names=names), paths)):
            raise_if_stopped()
            for row, value in rows:
                found[value].append(DocumentRef(index, row))
    return dict(found)


def _matches(path: Path, wanted: pa.Array, names: Sequence[str]) -> list[tuple[int, Any]]:
    """Return the rows of a file with a wanted value in one of its columns, by their numbers, and the value."""
    found = dict[tuple[int, Any], None]()
    with open_parquet(path) as file:
        number, *others = file.schema_arrow.names
        for batch in file.iter_batches(columns=[number, *(name for name in names if name in others)]):
            for column in batch.columns[1:]:
                at = pc.indices_nonzero(pc.is_in(column, value_set=wanted))
                numbers, values = (part.take(at).to_pylist() for part in (batch[number], column))
                found |= dict.fromkeys(zip(numbers, values, strict=True))
    return sorted(found)


def find_dropped(
    workspace: Workspace, shards: Sequence[ShardFiles], wanted: Iterable[str]
) -> Iterator[tuple[str, Gone]]:
    """Yield the rows of each id or URL that ingest dropped, as far as it wrote down which (`ingest.keep_dropped`)."""
    values, present = pa.array(sorted(set(wanted)), pa.string()), workspace.sizes("dropped")
    for index, shard in enumerate(shards):
        path = beside(shard.documents, "dropped")
        if path in present and (found := _matches(workspace.root / path, values, NAMES)):
            rows = np.unique([number for number, _ in found])
            listed = {row["source_row"]: row for row in take_rows(workspace.root / path, rows).to_pylist()}
            for number, value in found:
                row = listed[number]
                is_known = row["reason"] in {"known", "benchmark"}
                twin = _twin(workspace, shard.documents, row["source_row"]) if is_known else None
                yield value, Gone(index, twin=twin, **row)


def beside(documents: StageFile, folder: str) -> str:
    """Return the path of what ingest wrote into another folder for a shard."""
    return documents.path.replace("documents/", f"{folder}/", 1)


def _twin(workspace: Workspace, documents: StageFile, source_row: int) -> str | None:
    with open_parquet(workspace.root / beside(documents, "known")) as file:
        rows = file.read(columns=["source_row", "twin"]).to_pylist()
    return next((row["twin"] for row in rows if row["source_row"] == source_row), None)
