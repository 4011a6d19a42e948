"""Find stage files by their names, and read what each says of itself, without opening all when a run is planned.

A file's name tells its key. What a run also needs, such as the number of rows and the details, is in its footer, with
the whole key. The footers of all files are kept in `index.parquet`, which is written at the end of a run. The index is
a cache: footers that it lacks are read from the files, several at a time.

Guarantees: a file is found only if the key in its footer equals the key of the file that would be built now. A file
with damaged pages is found until it is read; the read then fails, and the run builds the file again.
"""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from fineweb_mask.tasks.storage.atomic import atomic_write
from fineweb_mask.tasks.storage.parquet import read_metadata, read_table
from fineweb_mask.tasks.storage.remote.copies import size_of
from fineweb_mask.tasks.storage.remote.errors import RemoteError
from fineweb_mask.tasks.workspace.references import STAGE_FILE, StageFile, StageKey, path_of
from fineweb_mask.tasks.workspace.stage_parquet import FOOTER_KEY
from fineweb_mask.tasks.workspace.workspace import Workspace

READERS = 32
"""Footers that are read at the same time: at a URL, most of the time is spent waiting."""

INDEX = pa.schema([("path", pa.string()), ("text", pa.string()), ("rows", pa.int64()), ("bytes", pa.int64())])


class Footer(NamedTuple):
    """What a stage's file says of itself, as it is kept in the index."""

    text: str  # JSON: the parts of the key, and `details`
    rows: int
    bytes: int  # of the file

    @property
    def details(self) -> dict[str, Any]:
        """What the stage wrote beside the key."""
        found: dict[str, Any] = json.loads(self.text)["details"]
        return found


def read_footer(path: Path, size: int | None = None) -> Footer | None:
    """Return the footer of a file, of `size` bytes if that is known; None if there is none, or none of a stage.

    Raises
    ------
    RemoteError
        If the file is at a URL that cannot be read.
    """
    try:
        metadata = read_metadata(path)
        text = (metadata.metadata or {})[FOOTER_KEY].decode()
        size = size_of(path) if size is None else size
        return None if size is None else Footer(text, metadata.num_rows, size)
    except FileNotFoundError:
        return None
    except RemoteError:
        raise
    except (OSError, ValueError, LookupError):
        return None


class Listing(dict[str, Footer]):
    """The footers of a workspace's stage files as they are now, by their paths in it.

    A file whose name does not tell its key is no stage file.
    """

    def __init__(self, workspace: Workspace) -> None:
        sizes = {path: size for path, size in workspace.sizes("").items() if STAGE_FILE.fullmatch(path)}
        self.indexed = _indexed(workspace)
        found = {path: self.indexed.get(path) for path in sizes}
        missing = [path for path, one in found.items() if one is None or one.bytes != sizes[path]]
        with ThreadPoolExecutor(READERS) as pool:
            read = pool.map(lambda path: read_footer(workspace.root / path, sizes[path]), missing)
            found.update(zip(missing, read, strict=True))
        super().__init__({path: footer for path, footer in found.items() if footer is not None})


def find_file(
    workspace: Workspace, stage_folder: str, shard: str, key: StageKey, listing: Listing | None = None
) -> StageFile | None:
    """Return a reference to a shard's file of this key, or None; looked for in a listing, or else opened."""
    path = path_of(stage_folder, shard, key)
    footer = read_footer(workspace.root / path) if listing is None else listing.get(path)
    if footer is None:
        return None
    try:
        written = json.loads(footer.text)
        details = written.pop("details")
        if StageKey(**written) != key:
            return None
    except (ValueError, LookupError, TypeError):
        return None
    return StageFile(
        stage=key.stage,
        name=shard,
        path=path,
        rows=footer.rows,
        bytes=footer.bytes,
        fingerprint=key.fingerprint,
        details=details,
        cached=True,
    )


def update_index(workspace: Workspace) -> None:
    """Write the footers of all stage files as they are now, if the index lacks some or has too many."""
    found = Listing(workspace)
    if found != found.indexed:
        rows = [{"path": path, **footer._asdict()} for path, footer in sorted(found.items())]
        with atomic_write(workspace.index) as partial:
            pq.write_table(pa.Table.from_pylist(rows, INDEX), partial, compression="zstd", write_page_checksum=True)


def _indexed(workspace: Workspace) -> dict[str, Footer]:
    """Return what the index has: nothing if it is missing or damaged."""
    try:
        table = read_table(workspace.index, INDEX.names)
    except (OSError, KeyError):
        return {}
    paths, *columns = (column.to_pylist() for column in table.columns)
    return dict(zip(paths, map(Footer, *columns), strict=True))
