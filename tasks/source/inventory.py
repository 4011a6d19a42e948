"""Say what a source holds: the files that are read and those that are left out, their columns, and keys in paths."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Self

from pydantic import BaseModel

from fineweb_mask.models.columns import is_text
from fineweb_mask.models.names import alike, find
from fineweb_mask.models.schemas import FINEWEB
from fineweb_mask.models.settings import SourceSettings
from fineweb_mask.tasks.source.columns import INDEX, keys_read, type_of_keys
from fineweb_mask.tasks.source.discovery import NO_DOCUMENTS, Source, ending_of
from fineweb_mask.tasks.source.sample import looked_at
from fineweb_mask.tasks.workspace.references import StageFile

if TYPE_CHECKING:
    import pyarrow as pa

NAMED, TOLD, MOST_CHARACTERS = 3, 15, 80
"""Files that are named of those of a kind, and kinds, columns or keys that a line names; and characters of a type."""


class Some(BaseModel):
    """A number of files, or of values, and the first of them."""

    number: int
    first: list[str]

    @classmethod
    def of(cls, names: Sequence[object]) -> Self:
        """Count some; names that are not UTF-8 are escaped."""
        first = [str(name).encode(errors="backslashreplace").decode() for name in names[:NAMED]]
        return cls(number=len(names), first=first)

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
    spelled: dict[str, dict[str, Some]]  # files by other spellings of the names of columns
    indexes: Some  # columns that pandas made of an index, and that are not kept
    as_text: list[str]  # columns that are kept as text, though a file has others

    def lines(self) -> Iterator[tuple[str, str]]:
        """Yield what is read: what a line is about, and the line."""
        number, size = sum(self.files.values()), f"{self.bytes / 2**20:,.1f} MiB"
        of_kinds = ", ".join(f"{files:,} {ending}" for ending, files in self.files.items())
        yield "reads", f"{number:,} file{'s' * (number != 1)}, {size}: {of_kinds}"
        if self.columns:
            yield "columns", _listed(f"{name} ({self._types(name, types)})" for name, types in self.columns.items())
        if self.keys:
            yield "in paths", _listed(f"{name}={values.named}" for name, values in self.keys.items())
        if self.left_out.keys() and self.left_out.keys() <= NO_DOCUMENTS:
            yield "left out", self._left_out

    def worries(self) -> Iterator[tuple[str, str]]:
        """Yield what a person may not expect, in lines as those of what is read."""
        if self.left_out.keys() - NO_DOCUMENTS:
            yield "left out", f"{self._left_out}: convert or unpack them; with source.format set, any name is read"
        if self.empty.number:
            yield "empty", f"{self.empty.number:,} files, or links that lead nowhere ({self.empty.named})"
        several = {name: types for name, types in self.columns.items() if len(types) > 1}
        if several:
            yield "types", _listed(f"{name} is {self._by_type(name, types)}" for name, types in several.items())
        counts = {name: sum(some.number for some in types.values()) for name, types in self.columns.items()}
        if few := [f"{name} in {files:,}" for name, files in counts.items() if files < self.looked_at]:
            yield "not in all", f"of {self.looked_at:,} files: {_listed(few)}"
        if self.spelled:
            yield "spelling", _listed(f"{name} is {_in_files(others)}" for name, others in self.spelled.items())
        if self.indexes.number:
            yield "no column", f"{self.indexes.named} of pandas: name it in source.extra_columns to keep it"
        without: dict[str, list[str]] = defaultdict(list)
        for name, some in self.without_key.items():
            without[some.named].append(name)
        for files, names in list(without.items())[:NAMED]:
            yield "no key", f"{_listed(names)} in the path of {files}"
        if self.not_kept:
            yield "key lost", f"{_listed(self.not_kept)}: the pipeline has columns of these names; rename the folders"

    def _types(self, name: str, types: dict[str, Some]) -> str:
        return ", ".join([*types, *(["kept as text"] if len(types) == 1 and name in self.as_text else [])])

    @property
    def _left_out(self) -> str:
        return _listed(f"{what}: {some.number:,} ({some.named})" for what, some in self.left_out.items())

    def _by_type(self, name: str, types: dict[str, Some]) -> str:
        found = _in_files(types)
        return f"{found}, and kept as text" if name in self.as_text else found


def _in_files(parts: Mapping[str, Some]) -> str:
    return ", ".join(f"{part} in {some.number:,} ({some.first[0]})" for part, some in parts.items())


def _listed(parts: Iterable[str]) -> str:
    """Return the first of some parts of a line, and how many others there are."""
    found = list(parts)
    more = f" and {len(found) - TOLD:,} others" if len(found) > TOLD else ""
    return ("; " if any("," in part for part in found) else ", ").join(found[:TOLD]) + more


def take_inventory(source: Source, settings: SourceSettings) -> Inventory:
    """Say what the files of a source are, of which some are looked at, and what is kept of them, if that is settled."""
    shards = source.shards
    columns: dict[str, dict[pa.DataType, list[str]]] = defaultdict(lambda: defaultdict(list))
    spelled: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    known, names = dict[str, list[str]](), {name: name for name in FINEWEB.names}  # by file; first spellings
    for shard, found in looked_at(shards):
        if shard.format == "warc":
            continue
        fields = {field.name: field.type for field in found.schema}
        for key, value in keys_read(shard, settings).items():
            if find(key, fields) is None:
                fields[key] = type_of_keys([] if value is None else [value])
        known[shard.relative] = list(fields)
        for own, kind in fields.items():
            name = names.setdefault(alike(own), own)
            columns[name][kind].append(shard.relative)
            if name != own:
                spelled[name][own].append(shard.relative)
    texts = {name for name, kind in shards[0].columns or () if kind == "string"}
    indexes = [name for name in columns if INDEX.fullmatch(name) and settings.extra_columns == "all"]
    keys: dict[str, set[str]] = defaultdict(set)
    for shard in shards:
        for name, value in shard.keys:
            keys[names.setdefault(alike(name), name)].add("null" if value is None else value)
    not_kept = sorted({name for shard in shards for name, _ in shard.keys if name not in keys_read(shard, settings)})
    without = {
        name: [one.relative for one in shards if find(name, [*dict(one.keys), *known.get(one.relative, ())]) is None]
        for name in keys.keys() - set(not_kept)
    }
    return Inventory(
        files=dict(Counter(ending_of(shard.relative).lower() or shard.format for shard in shards).most_common()),
        bytes=sum(shard.bytes for shard in shards),
        empty=Some.of([shard.relative for shard in shards if not shard.bytes]),
        left_out={what: Some.of(paths) for what, paths in sorted(source.left_out.items())},
        keys={name: Some.of(sorted(values)) for name, values in keys.items()},
        without_key={name: Some.of(files) for name, files in sorted(without.items()) if files},
        not_kept=not_kept,
        columns={
            name: {str(kind)[:MOST_CHARACTERS]: Some.of(files) for kind, files in types.items()}
            for name, types in columns.items()
        },
        looked_at=len(known),
        spelled={name: {other: Some.of(files) for other, files in of.items()} for name, of in spelled.items()},
        indexes=Some.of(indexes),
        as_text=[name for name, types in columns.items() if name in texts and not all(map(is_text, types))],
    )


def notes_of(documents: Iterable[StageFile]) -> list[str]:
    """Return what ingest found in the values of files, and how annotations beside them were joined by the scorers."""
    differ: dict[str, Counter[str]] = defaultdict(Counter)
    others: dict[str, list[str]] = defaultdict(list)
    repeats, lost, placed, charsets = (Counter[str]() for _ in range(4))
    for file in documents:
        charsets.update(file.details.get("charsets", {}))
        lost.update(file.details.get("lost", {}))
        placed.update(name for name, by in file.details.get("sidecars", {}).items() if by == "place")
        repeats[file.name] += file.details.get("repeated_ids", 0)
        for name in file.details.get("not_kept", ()):
            others[name].append(file.name)
        for name, rows in file.details.get("keys_differ", {}).items():
            differ[name][file.name] += rows
    found = [
        f"the column {name!r} has another value than the path in {rows.total():,} rows of {Some.of(list(rows)).named}: "
        "the column's is taken"
        for name, rows in differ.items()
    ]
    if others:
        files = Some.of(list(dict.fromkeys(chain.from_iterable(others.values())))).named
        found.append(
            f"columns of {files} are not kept, since no file that was looked at has them: {_listed(others)}; name them "
            "in source.extra_columns"
        )
    found += [f"{n:,} values of {name!r} are left empty: of another type, or none that fit" for name, n in lost.items()]
    found += [f"the annotations {name!r} of {n:,} files are joined by place, not by id" for name, n in placed.items()]
    if charsets:
        found.append(
            f"{charsets.total():,} pages by charset: {_listed(f'{c} {n:,}' for c, n in charsets.most_common())}"
        )
    if repeats := +repeats:
        files = Some.of(list(repeats)).named
        found.append(f"{repeats.total():,} rows have an id that an earlier row of their file has, in {files}")
    return found
