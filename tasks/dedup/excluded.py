"""List the documents that are not wanted any more, which lists name by URL, domain, id or the hash of their text.

The rows that are named join the shard's list of duplicates, from which nothing is selected; scores and vectors stay,
and no model runs again. Lists are known by what they name, and what is made of them by its rows: only the blocks of
shards that hold such a document are selected again. Copies that were dropped as its duplicates stay dropped.

With `ingest.erase` the rows in the source file are remembered, and ingest writes the shard again without them.
"""

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fineweb_mask.models.errors import SettingsError
from fineweb_mask.models.schemas import DUPLICATES, SOURCE_ROW
from fineweb_mask.tasks.source.opening import broken_files, open_unpacked
from fineweb_mask.tasks.storage.atomic import atomic_write
from fineweb_mask.tasks.storage.parquet import VerifiedFile, read_table
from fineweb_mask.tasks.storage.remote.copies import read_text
from fineweb_mask.tasks.workspace.job import Dependencies, Stage, StageJob, stage_task
from fineweb_mask.tasks.workspace.references import EXCLUDED, StageFile, digest
from fineweb_mask.tasks.workspace.stage_parquet import read_duplicates, stage_file_writer, take_rows
from fineweb_mask.tasks.workspace.workspace import Workspace

ADDRESS = r"^(?i:[a-z][a-z0-9+.-]*://)?(?i:www\.)?(?P<host>[^/?#\s]*)(?P<rest>[^#]*?)/?(?:#.*)?$"
"""The host of a URL, and what follows it, without a fragment and a slash at the end."""
HASH = r"^[0-9a-f]{32}$"
"""A hash of a text as the view `documents` has it: hex(content_hash), in lower case."""
ROWS = 65_536
"""Documents that are looked at together."""


class Names(NamedTuple):
    """What a list names."""

    addresses: pa.Array  # URLs
    domains: pa.Array  # `*.example.org`, without the star
    ids: pa.Array
    hashes: pa.Array  # (n,) 16 bytes each


class ExcludeJob(StageJob):
    """List the documents of one shard from which nothing is selected: its duplicates, and those that are named."""

    stage: ClassVar[Stage] = Stage("exclude", version=2, label="dedup", folders=("excluded",))
    documents: StageFile
    duplicates: StageFile
    lists: tuple[tuple[str, str], ...]  # where they are, and digests of what they name

    @property
    def name(self) -> str:
        """The name of the shard."""
        return self.documents.name

    def depends_on(self) -> Dependencies:
        """Return the documents, their duplicates, and what is named."""
        inputs = [self.documents.fingerprint, self.duplicates.path, [known for _, known in self.lists]]
        return Dependencies(settings=None, inputs=inputs)


@stage_task
def exclude(job: ExcludeJob) -> None:
    """Write the rows of a shard's duplicates and of what is named, none if nothing is that is no duplicate."""
    rows, named = list[int](), dict.fromkeys((key for _, key in job.lists), 0)
    duplicates = read_duplicates(job.workspace, job.duplicates)
    with VerifiedFile(job.workspace.resolve(job.documents)) as file:
        for batch in file.iter_batches(ROWS, columns=["row", "id", "url", "content_hash"]):
            found = np.zeros(batch.num_rows, dtype=bool)
            for path, known in job.lists:
                is_named = named_in(batch, names_of(path, known)).to_numpy(zero_copy_only=False)
                named[known] += int(is_named.sum())
                found |= is_named
            rows += batch["row"].filter(pa.array(found)).to_pylist()
    further = sorted(set(rows).difference(duplicates["row"].to_pylist()))
    entries = [{"shard": job.name, "row": row, "reason": EXCLUDED} for row in further]
    table = pa.Table.from_pylist(entries, schema=DUPLICATES)
    if further:
        table = pa.concat_tables([duplicates, table]).sort_by("row")
    with stage_file_writer(job.output, DUPLICATES, job.key) as writer:
        writer.details = {EXCLUDED: len(further), "named": named, "rows": digest([job.name, table["row"].to_pylist()])}
        for batch in table.combine_chunks().to_batches():
            writer.write(batch)


def listed(file: StageFile, duplicates: StageFile) -> StageFile:
    """Return the list of a shard, known by its rows; that of its duplicates if nothing else is named."""
    if not file.details[EXCLUDED]:
        return duplicates
    details = duplicates.details | {EXCLUDED: file.details[EXCLUDED]}
    return file.model_copy(update={"fingerprint": file.details["rows"], "details": details})


def find_lists(paths: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Return lists, and digests of what they name.

    Raises
    ------
    SettingsError
        If one cannot be read, or is empty.
    """
    found = []
    for path in paths:
        if not (names := _read(path)):
            raise SettingsError(
                f"ingest.exclude: {path} names nothing: write a URL, *.domain, id or hash on each line, or leave it out"
            )
        found.append((path, digest(names)))
    return tuple(found)


def _read(path: str) -> list[str]:
    explained = f"ingest.exclude: {path} cannot be read"
    with (
        broken_files(lambda error: SettingsError(f"{explained}: {error}: check its path")),
        open_unpacked(path) as file,
    ):
        lines = file.read().decode("utf-8-sig").splitlines()
    return sorted({line.strip() for line in lines} - {""})


@lru_cache(maxsize=16)
def names_of(path: str, known: str) -> Names:
    """Return what a list names, read once by this process.

    Raises
    ------
    SettingsError
        If it names something else than at the start.
    """
    lines = _read(path)
    if digest(lines) != known:
        raise SettingsError(f"ingest.exclude: {path} changed after the run started: run again")
    names = pa.array(lines, pa.string())
    is_domain, is_hash = pc.starts_with(names, "*."), pc.match_substring_regex(names, HASH)
    domains = pc.utf8_lower(pc.utf8_slice_codeunits(names.filter(is_domain), 2))
    plain = names.filter(pc.invert(is_domain))
    hashes = pa.array(map(bytes.fromhex, names.filter(is_hash).to_pylist()), pa.binary(16))
    return Names(_addresses(plain)[0], domains, plain, hashes)


def named_in(documents: pa.RecordBatch, names: Names) -> pa.Array:
    """Return which documents are named, (n,) booleans; a URL counts without scheme, `www.`, port and fragment.

    >>> names = Names(pa.array(["a.org/b"]), pa.array(["c.org"]), pa.array(["7"]), pa.array([], pa.binary(16)))
    >>> urls = ["https://www.A.org:443/b/#c", "http://x.c.org/", "http://xc.org/", "http://a.org/B"]
    >>> batch = pa.record_batch({"url": urls, "id": ["1", "2", "7", "4"], "content_hash": pa.nulls(4, pa.binary(16))})
    >>> named_in(batch, names).to_pylist()
    [True, True, True, False]
    """
    addresses, hosts = _addresses(documents["url"])
    found = pc.or_(pc.is_in(addresses, names.addresses), pc.is_in(documents["id"], names.ids))
    found = pc.or_(found, pc.is_in(documents["content_hash"], names.hashes))
    while len(names.domains) and pc.any(pc.not_equal(hosts, "")).as_py():  # the domains that a host is in
        found = pc.or_(found, pc.is_in(hosts, names.domains))
        hosts = pc.replace_substring_regex(hosts, r"^[^.]*\.?", "")
    return found


def _addresses(urls: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Return what is compared of URLs, and their hosts."""
    parts = pc.extract_regex(urls, ADDRESS)
    host = pc.replace_substring_regex(pc.utf8_lower(pc.struct_field(parts, "host")), r":\d*$", "")
    return pc.binary_join_element_wise(host, pc.struct_field(parts, "rest"), ""), host


def erased(workspace: Workspace) -> dict[str, tuple[str, list[int]]]:
    """Return the fingerprint of the source file, and the rows in it that are erased, by shard."""
    try:
        return dict(json.loads(read_text(workspace.erased)))
    except FileNotFoundError:
        return {}


def remember_erased(workspace: Workspace, shards: Mapping[str, tuple[str, list[int]]]) -> None:
    """Remember what is erased of shards, so that no later run reads it again."""
    with workspace.alone(), atomic_write(workspace.erased) as partial:
        partial.write_text(json.dumps(erased(workspace) | dict(shards)) + "\n")


def source_rows(workspace: Workspace, file: StageFile, documents: StageFile) -> list[int]:
    """Return the rows of the source file that a list of a shard names, ascending."""
    rows = read_table(workspace.resolve(file))["row"].to_numpy().astype(np.int64)
    found: Any = take_rows(workspace.resolve(documents), rows, [SOURCE_ROW.name])[SOURCE_ROW.name].to_pylist()
    return sorted(found)
