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

TEXTS, NUMBERS = ("path", "stage", "fingerprint", "details"), ("rows", "bytes")
INDEX = pa.schema([*((name, pa.string()) for name in TEXTS), *((name, pa.int64()) for name in NUMBERS)])


class Footer(NamedTuple):
    """What the index keeps of a file, by its path in the workspace."""

    stage: str
    fingerprint: str  # of the key
    details: str  # JSON
    rows: int
    bytes: int


class Listing:
    """The stage files of a workspace as it is now; a file whose name does not tell its key is no stage file."""

    def __init__(self, workspace: Workspace) -> None:
        self._footers = _footers(workspace, _indexed(workspace))

    def find(self, stage_folder: str, shard: str, key: StageKey) -> StageFile | None:
        """Return a reference to a shard's file of this key, or None if it was not there."""
        path = f"{stage_folder}/{stage_file_name(shard, key)}"
        footer = self._footers.get(path)
        if footer is None or footer.fingerprint != key.fingerprint:
            return None
        return StageFile(
            stage=footer.stage,
            name=shard,
            path=path,
            rows=footer.rows,
            bytes=footer.bytes,
            fingerprint=footer.fingerprint,
            details=json.loads(footer.details),
            cached=True,
        )

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

    def read(path: str) -> Footer | None:
        footer = read_stage_footer(workspace.root / path)
        if footer is None:
            return None
        rows, key, details = footer
        return Footer(key.stage, key.fingerprint, json.dumps(details), rows, sizes[path])

    missing = [path for path in sizes if path not in found]
    with ThreadPoolExecutor(READERS) as pool:
        footers = zip(missing, pool.map(read, missing), strict=True)
        return found | {path: footer for path, footer in footers if footer is not None}


def _indexed(workspace: Workspace) -> dict[str, Footer]:
    """Return what the index has: nothing if it is missing or damaged."""
    try:
        table = read_table(workspace.index, INDEX.names)
    except (OSError, KeyError):
        return {}
    paths, *columns = (table[name].to_pylist() for name in ("path", *Footer._fields))
    return dict(zip(paths, map(Footer, *columns), strict=True))
