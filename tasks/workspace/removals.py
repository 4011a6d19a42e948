"""Keep the list of what was removed from a workspace on request, by which ingest keeps it out of every later run.

The list is one file, `removed.parquet`, which is replaced as a whole: digests of URLs, ids, domains and texts, never
what they are of. Its footer says of which shards documents were removed, for the keys of these, and what of a removal
is still to be done.
"""

import hashlib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from fineweb_mask.models.errors import WorkspaceError
from fineweb_mask.models.ledger.removal import DIGEST_BYTES, KINDS, Digests, Kind, Unwanted, is_in
from fineweb_mask.tasks.storage.parquet import DamagedFileError, read_table
from fineweb_mask.tasks.storage.remote.copies import ensure_local, local_copies, size_of
from fineweb_mask.tasks.workspace.references import content_key, digest
from fineweb_mask.tasks.workspace.stage_parquet import StageFooter, read_stage_footer, stage_file_writer
from fineweb_mask.tasks.workspace.workspace import Workspace

NAME = "removed.parquet"
ENTRIES = pa.schema(
    [
        pa.field("kind", pa.string(), nullable=False),
        pa.field("digest", pa.binary(DIGEST_BYTES), nullable=False),
        pa.field("found", pa.bool_(), nullable=False),  # whether the workspace held a document of it
        pa.field("time", pa.string(), nullable=False),  # when it was asked for, or found
    ]
)
NOTHING: Mapping[str, Any] = MappingProxyType({"shards": {}, "pending": None})


class Removals(NamedTuple):
    """The list of a workspace."""

    entries: pa.Table  # `ENTRIES`, by kind, in the order of the digests
    shards: Mapping[str, str]  # digest of what was removed of each shard, for the key of its documents
    pending: Mapping[str, Any] | None  # what is still to be done

    @classmethod
    def read(cls, workspace: Workspace) -> Self:
        """Return the list; an empty one if nothing was ever removed.

        Raises
        ------
        WorkspaceError
            If it is damaged.
        """
        path, footer = workspace.root / NAME, _footer(workspace.root / NAME)
        entries = ENTRIES.empty_table() if footer is None else _entries(path)
        details = NOTHING if footer is None else footer.details
        return cls(entries, details["shards"], details["pending"])

    def write(self, workspace: Workspace) -> None:
        """Replace the list of a workspace."""
        details = {"shards": dict(self.shards), "pending": None if self.pending is None else dict(self.pending)}
        content = hashlib.sha256(self.entries["found"].combine_chunks().to_numpy(zero_copy_only=False).tobytes())
        for kind in KINDS:
            content.update(self.digests(kind).tobytes())
        with stage_file_writer(
            workspace.root / NAME, ENTRIES, content_key(digest([content.hexdigest(), details]))
        ) as writer:
            for batch in self.entries.to_batches():
                writer.write(batch)
            writer.details = details

    def digests(self, kind: Kind) -> Digests:
        """Return the digests of a kind, in ascending order."""
        return _as_digests(self.entries.filter(pc.equal(self.entries["kind"], kind)))

    def with_found(self, kind: Kind, asked: Digests, found: Mapping[Kind, Digests], time: str) -> Self:
        """Return the list with what was asked for of a kind, and with what of any kind documents were found."""
        tables = []
        for one in KINDS:
            known = self.entries.filter(pc.equal(self.entries["kind"], one))
            hits = found.get(one, _as_digests(known)[:0])
            new = np.union1d(hits, asked if one == kind else hits)
            own = _as_digests(known)
            both = np.union1d(own, new)
            places = np.searchsorted(both, own)
            was_found, times = np.zeros(len(both), dtype=bool), np.full(len(both), time, dtype=object)
            was_found[places] = known["found"].to_numpy()
            times[places] = known["time"].to_numpy()
            is_new = is_in(both, hits) & ~was_found
            times[is_new] = time
            kinds = pa.repeat(pa.scalar(one), len(both))
            tables.append(
                pa.table([kinds, _as_arrow(both), was_found | is_new, pa.array(times, pa.string())], schema=ENTRIES)
            )
        return self._replace(entries=pa.concat_tables(tables))

    def was_found(self, kind: Kind, asked: Digests) -> NDArray[np.bool_]:
        """Return of which digests of a kind, (n,), a document was found."""
        own = self.entries.filter(pc.and_(pc.equal(self.entries["kind"], kind), self.entries["found"]))
        return is_in(asked, _as_digests(own))

    @property
    def unwanted(self) -> Unwanted:
        """What documents are recognised by."""
        return Unwanted({kind: self.digests(kind) for kind in KINDS})


def removed_of_shards(workspace: Workspace) -> Mapping[str, str]:
    """Return the digest of what was removed of each shard, if some was; of the list, only the footer is read."""
    footer = _footer(workspace.root / NAME)
    found: Mapping[str, str] = (NOTHING if footer is None else footer.details)["shards"]
    return found


def is_pending(workspace: Workspace) -> bool:
    """Return whether a removal is not finished; of the list, only the footer is read."""
    footer = _footer(workspace.root / NAME)
    return footer is not None and footer.details["pending"] is not None


def unwanted_of(workspace: Workspace) -> Unwanted | None:
    """Return what the removed documents of a workspace are recognised by, read once; None if there are none."""
    footer = _footer(workspace.root / NAME)
    return None if footer is None else _unwanted(workspace.root / NAME, footer.key.fingerprint)


@lru_cache(maxsize=1)
def _unwanted(path: Path, fingerprint: str) -> Unwanted:  # noqa: ARG001 - another list has another
    return Removals(_entries(path), {}, None).unwanted


def _footer(path: Path) -> StageFooter | None:
    """Return what the footer of a list says; None if there is no list."""
    footer = read_stage_footer(path)
    if footer is None and size_of(path) is not None:
        raise _damaged(path)
    return footer


def _entries(path: Path) -> pa.Table:
    with local_copies():
        try:
            return read_table(ensure_local(path), schema=ENTRIES)
        except DamagedFileError as error:
            raise _damaged(path) from error


def _damaged(path: Path) -> WorkspaceError:
    """Return the error for a list without which removed documents would come back: no run may go on, or replace it."""
    return WorkspaceError(
        f"{path} is damaged, the list of what was removed from the workspace: put back a copy of it, or delete it and "
        "remove the same again before anything is run"
    )


def _as_digests(entries: pa.Table) -> Digests:
    own = entries["digest"].combine_chunks()
    return np.frombuffer(own.buffers()[1] or b"", f"S{DIGEST_BYTES}")[own.offset :][: len(own)]


def _as_arrow(digests: Digests) -> pa.Array:
    return pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(DIGEST_BYTES), len(digests), [None, pa.py_buffer(digests.tobytes())]
    )
