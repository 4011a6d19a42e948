"""Find the documents of a workspace that a person asks to remove: by a list of names, with all copies of their texts.

Only ids, URLs and hashes are read, of every file of documents that is there, those of earlier settings as well.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from fineweb_mask.models.documents import content_hash
from fineweb_mask.models.errors import SettingsError
from fineweb_mask.models.ledger.removal import DIGEST_BYTES, Digests, Kind, Unwanted, digest_of, in_order, is_in
from fineweb_mask.models.runtime.progress import track_by_size
from fineweb_mask.models.settings import SourceSettings
from fineweb_mask.tasks.source.discovery import FORMATS, SourceError, discover
from fineweb_mask.tasks.source.reader import ShardReader
from fineweb_mask.tasks.storage.parquet import read_table
from fineweb_mask.tasks.storage.remote.copies import local_copies
from fineweb_mask.tasks.workspace.job import BadShardError
from fineweb_mask.tasks.workspace.references import NEAR, ShardFiles
from fineweb_mask.tasks.workspace.stage_parquet import open_parquet, take_rows
from fineweb_mask.tasks.workspace.workspace import Workspace

Seen = TypeVar("Seen")

BATCH_ROWS = 20_000
AT_ONCE = 8
"""Files that are searched at the same time: at a URL, most of the time is spent waiting."""
DOMAIN = re.compile(r"([\w-]+\.)+[\w-]+")
LONGEST = 100_000  # characters of a line
LONGEST_SHOWN = 200

Rows = Mapping[str, NDArray[np.int64]]
"""Rows, (n,), by the path of the file in the workspace that they are in; a file without any is missing."""


class Found(NamedTuple):
    """Documents that were found."""

    rows: Rows  # of `documents`
    dropped: Sequence[str]  # paths of files of `dropped` with such rows
    by: Mapping[Kind, Digests]  # what was found


def names_in(path: Path, kind: Kind) -> Iterator[str]:
    """Yield the URLs, ids or domains in a file, one on each line, or its texts; it is not held in memory.

    The texts are those of a file of documents, or the whole of any other file.

    Raises
    ------
    SettingsError
        If the file cannot be read, or a line is no domain.
    """
    try:
        if kind == "text" and path.name.lower().endswith(tuple(FORMATS)):
            source = SourceSettings(path=str(path), extra_columns=[])
            for shard in discover(source):
                for batch, _ in ShardReader(shard, source).batches():
                    yield from filter(None, batch["text"].to_pylist())
            return
        with path.open(encoding="utf-8-sig") as lines:
            if kind == "text":
                yield lines.read()
                return
            for number, line in enumerate(iter(lambda: lines.readline(LONGEST), ""), start=1):
                name = line.strip()
                if name:
                    yield name if kind != "domain" else _domain(name, number, path)
    except UnicodeDecodeError as error:
        raise SettingsError(
            f"--{kind}s: {path} is no text in UTF-8: give a file with one {kind} on each line"
        ) from error
    except (BadShardError, SourceError) as error:
        raise SettingsError(f"--{kind}s: {error}") from error
    except OSError as error:
        raise SettingsError(f"--{kind}s: {path} cannot be read: {error.strerror}: give a file that can be") from error


def _domain(name: str, number: int, path: Path) -> str:
    domain = name.lower().removeprefix("*.").strip(".")
    if DOMAIN.fullmatch(domain) is None:
        raise SettingsError(
            f"--domains: line {number} of {path} is {name[:80]!r}: it must be a domain such as example.org, which "
            "stands for all hosts in it"
        )
    return domain


def asked_for(path: Path, kind: Kind) -> Digests:
    """Return the digests of what is in a file, in ascending order.

    Raises
    ------
    SettingsError
        If it cannot be read, or is empty.
    """
    digests = in_order(digest_of(kind, name) for name in names_in(path, kind) if name.strip())
    if not len(digests):
        raise SettingsError(f"--{kind}s: {path} is empty: give a file with one {kind} on each line")
    return digests


def search(workspace: Workspace, unwanted: Unwanted, paths: Sequence[str] | None = None) -> Found:
    """Return the documents that are recognised, of all files of documents that are there, or of some."""
    documents = sorted(workspace.sizes("documents")) if paths is None else list(paths)
    rows, by = dict[str, NDArray[np.int64]](), dict[Kind, list[Digests]]()
    for path, (found, names) in _each(documents, lambda path: _in_documents(workspace, path, unwanted)):
        if len(found):
            rows[path] = found
        for kind, digests in names.items():
            by.setdefault(kind, []).append(digests)
    dropped = sorted(workspace.sizes("dropped")) if paths is None else []
    touched = [path for path, found in _each(dropped, lambda path: _in_dropped(workspace, path, unwanted)) if found]
    return Found(rows, touched, {kind: np.unique(np.concatenate(parts)) for kind, parts in by.items()})


def _each(paths: Sequence[str], look: Callable[[str], Seen]) -> Iterator[tuple[str, Seen]]:
    with ThreadPoolExecutor(AT_ONCE) as pool:
        pairs = zip(paths, pool.map(local_copies()(look), paths), strict=True)
        yield from track_by_size("files searched", pairs, len(paths), lambda _: 1)


def _in_documents(
    workspace: Workspace, path: str, unwanted: Unwanted
) -> tuple[NDArray[np.int64], Mapping[Kind, Digests]]:
    rows, by, start = list[NDArray[np.int64]](), dict[Kind, Digests](), 0
    with open_parquet(workspace.root / path) as file:
        for batch in file.iter_batches(BATCH_ROWS, columns=["id", "url", "content_hash"]):
            columns = (batch[name].to_pylist() for name in ("id", "url", "content_hash"))
            is_found, names = unwanted.found(*columns)
            rows.append(np.flatnonzero(is_found) + start)
            by = {kind: np.union1d(by[kind], own) if kind in by else own for kind, own in names.items()}
            start += batch.num_rows
    return np.concatenate([np.empty(0, dtype=np.int64), *rows]), by


def _in_dropped(workspace: Workspace, path: str, unwanted: Unwanted) -> bool:
    with open_parquet(workspace.root / path) as file:
        for batch in file.iter_batches(BATCH_ROWS // 20, columns=["id", "url", "text"]):
            hashes = [content_hash(text or "") for text in batch["text"].to_pylist()]
            if unwanted(batch["id"].to_pylist(), batch["url"].to_pylist(), hashes).any():
                return True
    return False


def hashes_of(workspace: Workspace, rows: Rows) -> Digests:
    """Return the hashes of the texts of documents, in ascending order."""
    found = list[bytes]()
    for path, own in rows.items():
        with local_copies():
            found += take_rows(workspace.local(path), own, ["content_hash"])["content_hash"].to_pylist()
    return in_order(found)


def ids_of(workspace: Workspace, rows: Rows, most: int) -> list[str]:
    """Return the ids of documents, at most so many."""
    found = list[str]()
    for path, own in rows.items():
        if len(found) < most:
            with local_copies():
                found += take_rows(workspace.local(path), own[: most - len(found)], ["id"])["id"].to_pylist()
    return found


def twins_of(workspace: Workspace, shards: Sequence[ShardFiles], rows: Rows) -> Rows:
    """Return the near-duplicates of documents, as far as ingest lists them, that are not among these themselves."""
    gone = {(shard.name, row) for shard in shards for row in rows.get(shard.documents.path, np.empty(0)).tolist()}
    paths = {shard.name: shard.documents.path for shard in shards}
    twins = set[tuple[str, int]]()
    for shard in shards:
        if not shard.duplicates.details.get(NEAR):
            continue
        with local_copies():
            table = read_table(workspace.resolve(shard.duplicates))
        table = table.filter(pc.is_valid(table["similarity"]))
        for row, twin_shard, twin_row in zip(
            *(table[name].to_pylist() for name in table.column_names[:3]), strict=True
        ):
            own, twin = (shard.name, row), (twin_shard, twin_row)
            twins |= ({twin} if own in gone else set()) | ({own} if twin in gone else set())
    found: dict[str, list[int]] = {}
    for name, row in sorted(twins - gone):
        if name in paths:  # else it is of another corpus
            found.setdefault(paths[name], []).append(row)
    return {path: np.array(own, dtype=np.int64) for path, own in found.items()}


def selected_of(workspace: Workspace, shards: Sequence[ShardFiles], rows: Rows) -> int:
    """Return how many documents are selected."""
    found = 0
    for shard in shards:
        if shard.documents.path in rows and shard.masks.path:
            with local_copies():
                selected = read_table(workspace.resolve(shard.masks), columns=["selected"])["selected"].to_numpy()
            found += int(selected[rows[shard.documents.path]].sum())
    return found


def not_found(path: Path, kind: Kind, found: Digests, most: int) -> tuple[int, list[str]]:
    """Return how many names of a file there is no document of, and the first of them."""
    count, first = 0, list[str]()
    names = (name for name in names_in(path, kind) if name.strip())
    while some := list(islice(names, BATCH_ROWS)):
        digests = np.frombuffer(b"".join(digest_of(kind, name) for name in some), f"S{DIGEST_BYTES}")
        missing = np.flatnonzero(~is_in(digests, found)).tolist()
        count += len(missing)
        first += [" ".join(some[place].split())[:LONGEST_SHOWN] for place in missing[: most - len(first)]]
    return count, first
