"""List a workspace's stage files with their footers, so that a run is planned without opening each file.

Names tell the keys, so a name in the listing is a file that is current. What a run also needs, such as the number of
rows, is in the footers. These are kept in `index.parquet`, which is written at the end of a run. The index is a cache:
footers that it lacks are read from the files, several at a time.
"""

import json
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from fineweb_mask.tasks.storage.atomic import atomic_write
from fineweb_mask.tasks.storage.parquet import read_table
from fineweb_mask.tasks.workspace.references import StageFile, StageKey, shard_and_tag, stage_file_name
from fineweb_mask.tasks.workspace.stage_parquet import read_stage_footer
from fineweb_mask.tasks.workspace.workspace import Workspace

READERS = 32
"""Footers that are read at the same time: at a URL, most of the time is spent waiting."""

INDEX = pa.schema(
    [
        pa.field("path", pa.string(), nullable=False),
        pa.field("bytes", pa.int64(), nullable=False),
        pa.field("rows", pa.int64(), nullable=False),
        pa.field("fingerprint", pa.string(), nullable=False),  # of the key
        pa.field("details", pa.string(), nullable=False),  # JSON
    ]
)


class Footer(NamedTuple):
    """What the index keeps of a file."""

    bytes: int
    rows: int
    fingerprint: str
    details: str


class Listing:
    """The stage files of a workspace as it is now; a file whose name does not tell its key is no stage file."""

    def __init__(self, workspace: Workspace) -> None:
        self._footers = _footers(workspace, _indexed(workspace))  # by path in the workspace
        self._found: dict[str, StageFile] = {}  # so that what is asked for again is the same object

    def find(self, stage_folder: str, shard: str, key: StageKey) -> StageFile | None:
        """Return a reference to a shard's file of this key, or None if it was not there."""
        path = f"{stage_folder}/{stage_file_name(shard, key)}"
        footer = self._footers.get(path)
        if footer is None or footer.fingerprint != key.fingerprint:
            return None
        if path not in self._found:
            details = json.loads(footer.details)
            self._found[path] = StageFile.current(key, shard, path, footer.rows, footer.bytes, details)
        return self._found[path]

    def size_of(self, path: str) -> int | None:
        """Return the size in bytes of a file, by its path in the workspace, or None if it was not there."""
        footer = self._footers.get(path)
        return None if footer is None else footer.bytes


def update_index(workspace: Workspace) -> None:
    """Write the footers of all stage files as they are now, if the index lacks some or has too many."""
    known = _indexed(workspace)
    if (found := _footers(workspace, known)) != known:
        rows = [{"path": path, **footer._asdict()} for path, footer in sorted(found.items())]
        with atomic_write(workspace.index) as partial:
            pq.write_table(pa.Table.from_pylist(rows, INDEX), partial, compression="zstd", write_page_checksum=True)


def _footers(workspace: Workspace, known: dict[str, Footer]) -> dict[str, Footer]:
    """Return the footers of all complete files, those that are known without opening the file."""
    sizes = {path: size for path, size in workspace.sizes("").items() if shard_and_tag(path) is not None}
    found = {path: known[path] for path, size in sizes.items() if path in known and known[path].bytes == size}
    missing = {path: size for path, size in sizes.items() if path not in found}
    with ThreadPoolExecutor(READERS) as pool:
        footers = pool.map(lambda path: read_stage_footer(workspace.root / path), missing)
        for (path, size), footer in zip(missing.items(), footers, strict=True):
            if footer is not None:
                found[path] = Footer(size, footer.rows, footer.key.fingerprint, json.dumps(footer.details))
    return found


def _indexed(workspace: Workspace) -> dict[str, Footer]:
    """Return what the index has: nothing if it is missing or damaged."""
    try:
        table = read_table(workspace.index, schema=INDEX)
    except (OSError, pa.ArrowException):
        return {}
    return {row.pop("path"): Footer(**row) for row in table.to_pylist()}
