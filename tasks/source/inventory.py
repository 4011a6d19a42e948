"""Say what a source holds: the files that are read and those that are left out, their columns, and keys in paths."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Self

import pyarrow as pa
from pydantic import BaseModel

from fineweb_mask.models.settings import SourceSettings
from fineweb_mask.tasks.source.columns import FIRST_FILES, schema_of
from fineweb_mask.tasks.source.discovery import LARGEST_DOCUMENT, Source, SourceShard, ending_of
from fineweb_mask.tasks.source.jsonl import jsonl_records, jsonl_schema
from fineweb_mask.tasks.source.reader import broken_files, keys_read, with_keys
from fineweb_mask.tasks.workspace.references import StageFile

FILES, ROWS = 4, 100
"""Files of JSON that are looked into, evenly spaced, and rows of each."""
NAMED, NAMED_COLUMNS, TOLD = 3, 20, 5
"""Files or values that a line names, columns, and most lines on one kind of difference."""


class Some(BaseModel):
    """A number of files, or of values, and the first of them."""

    number: int
    first: list[str]

    @classmethod
    def of(cls, names: Sequence[object]) -> Self:
        """Count some."""
        return cls(number=len(names), first=[str(name) for name in names[:NAMED]])

    @property
    def named(self) -> str:
        """The first ones, and how many others there are."""
        more = self.number - len(self.first)
        return ", ".join(self.first) + (f" and {more:,} others" if more else "")


class Inventory(BaseModel):
    """What is read of a source, and what is not."""

    files: dict[str, int]  # that are read, by the endings of their names
    bytes: int
    empty: Some
    left_out: dict[str, Some]  # files, by what they are
    keys: dict[str, Some]  # values, by the names of the keys in paths
    without_key: dict[str, Some]  # files, by the names of keys that others have
    not_kept: list[str]  # names of keys that are no columns
    columns: dict[str, dict[str, Some]]  # files by the types of each column
    looked_at: int  # files whose columns are known
    as_text: list[str]  # columns that are kept as text, for their types have nothing in common

    def lines(self) -> Iterator[tuple[str, str]]:
        """Yield what is read: what a line is about, and the line."""
        number = sum(self.files.values())
        of_kinds = ", ".join(f"{files:,} {ending}" for ending, files in self.files.items())
        yield "reads", f"{number:,} file{'s' * (number != 1)}, {self.bytes / 2**20:,.1f} MiB: {of_kinds}"
        names = [f"{name} ({', '.join(types)})" for name, types in self.columns.items()]
        if names:
            more = f" and {len(names) - NAMED_COLUMNS:,} others" if len(names) > NAMED_COLUMNS else ""
            yield "columns", ", ".join(names[:NAMED_COLUMNS]) + more
        if self.keys:
            yield "in paths", "; ".join(f"{name}: {values.named}" for name, values in self.keys.items())
        if self.left_out.keys() == {"hidden"}:
            yield "left out", self._left_out

    def worries(self) -> Iterator[tuple[str, str]]:
        """Yield what a person may not expect, in lines as those of what is read."""
        if self.left_out.keys() - {"hidden"}:
            yield "left out", f"{self._left_out}: convert or unpack them, or name them with source.format set"
        if self.empty.number:
            yield "empty", f"{self.empty.number:,} of 0 bytes ({self.empty.named})"
        differing = [
            f"{name!r} is {_by_type(types)}{', and kept as text' if name in self.as_text else ''}"
            for name, types in self.columns.items()
            if len(types) > 1
        ]
        missing = [
            f"{name!r} is in {files:,} of {self.looked_at:,} files"
            for name, types in self.columns.items()
            if (files := sum(some.number for some in types.values())) < self.looked_at
        ]
        without = [f"{name!r} is not in the paths of {some.named}" for name, some in self.without_key.items()]
        taken = [f"{name!r} is not kept: the pipeline has a column of this name" for name in self.not_kept]
        for label, found in (("types", differing), ("columns", missing), ("in paths", without), ("in paths", taken)):
            yield from ((label, line) for line in found[:TOLD])
            if len(found) > TOLD:
                yield label, f"and {len(found) - TOLD:,} more, which run.json has"

    @property
    def _left_out(self) -> str:
        return ", ".join(f"{some.number:,} {what} ({some.named})" for what, some in self.left_out.items())


def _by_type(types: dict[str, Some]) -> str:
    return ", ".join(f"{kind} in {some.number:,} ({some.first[0]})" for kind, some in types.items())


def take_inventory(source: Source, settings: SourceSettings) -> Inventory:
    """Look at the files of a source: the footers of Parquet, and a few rows of some files of JSON."""
    shards = source.shards
    known = list(_looked_at(shards, settings))
    columns: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    alike: dict[pa.Schema, list[str]] = defaultdict(list)
    for shard, schema in known:
        alike[with_keys(schema.remove_metadata(), shard, settings)].append(shard.relative)
    for schema, files in alike.items():
        for field in schema:
            columns[field.name][str(field.type)] += files
    keys: dict[str, set[str]] = defaultdict(set)
    for shard in shards:
        for name, value in shard.keys:
            keys[name].add("null" if value is None else str(value))
    own = {shard.relative: {name.lower() for name in schema.names} for shard, schema in known}
    without = {
        name: [one.relative for one in shards if name not in dict(one.keys) and name not in own.get(one.relative, ())]
        for name in keys
    }
    return Inventory(
        files=dict(Counter(ending_of(shard.relative).lower() or shard.format for shard in shards).most_common()),
        bytes=sum(shard.bytes for shard in shards),
        empty=Some.of([shard.relative for shard in shards if not shard.bytes]),
        left_out={what: Some.of(paths) for what, paths in sorted(source.left_out.items())},
        keys={name: Some.of(sorted(values)) for name, values in keys.items()},
        without_key={name: Some.of(files) for name, files in without.items() if files},
        not_kept=sorted({name for shard in shards for name, _ in shard.keys if name not in keys_read(shard, settings)}),
        columns={name: {kind: Some.of(files) for kind, files in types.items()} for name, types in columns.items()},
        looked_at=len(known),
        as_text=sorted({name for shard in shards for name in shard.as_text}),
    )


def _looked_at(shards: Sequence[SourceShard], settings: SourceSettings) -> Iterator[tuple[SourceShard, pa.Schema]]:
    """Yield files with their columns, those aside that cannot be read, or have no rows."""
    parquet = [shard for shard in shards if shard.format == "parquet"]
    for shard in parquet if settings.extra_columns else parquet[:FIRST_FILES]:  # all footers were read, to settle types
        if (schema := schema_of(shard)) is not None:
            yield shard, schema
    lines = [shard for shard in shards if shard.format == "jsonl" and shard.bytes]
    for shard in lines[:: max(1, -(-len(lines) // FILES))]:
        with broken_files():
            records = jsonl_records(shard.url, shard.relative, LARGEST_DOCUMENT)
            schema, _ = jsonl_schema(islice(records, ROWS))
            if schema.names:
                yield shard, schema


def notes_of(documents: Iterable[StageFile]) -> list[str]:
    """Return what ingest found in the values of files: columns that differ from keys in paths, ids that repeat."""
    differ: dict[str, Counter[str]] = defaultdict(Counter)
    repeats: Counter[str] = Counter()
    for file in documents:
        repeats[file.name] += file.details.get("repeated_ids", 0)
        for name, rows in file.details.get("keys_differ", {}).items():
            differ[name][file.name] += rows
    found = [
        f"the column {name!r} has another value than the path in {rows.total():,} rows of {Some.of(list(rows)).named}: "
        "the column's is taken"
        for name, rows in differ.items()
    ]
    if repeats := +repeats:
        files = Some.of(list(repeats)).named
        found.append(f"{repeats.total():,} rows have an id that an earlier row of their file has, in {files}")
    return found
