"""Say what a source holds: the files that are read and those that are left out, their columns, and keys in paths."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import chain

from pydantic import BaseModel

from fineweb_mask.models.names import alike, find
from fineweb_mask.models.schemas import FINEWEB
from fineweb_mask.models.settings import SourceSettings
from fineweb_mask.tasks.source.columns import keys_read, looked_at, type_of_keys
from fineweb_mask.tasks.source.discovery import NO_DOCUMENTS, Source, ending_of
from fineweb_mask.tasks.workspace.references import StageFile

NAMED, TOLD, MOST_CHARACTERS = 3, 15, 80
"""Files that are named of those of a kind, and kinds, columns or keys that a line names; and characters of a type."""


class Inventory(BaseModel):
    """What is read of a source, and what a person may not expect: what a line is about, and the line."""

    lines: list[tuple[str, str]]
    worries: list[tuple[str, str]]


def take_inventory(source: Source, settings: SourceSettings) -> Inventory:
    """Say what the files of a source are, of which some are looked at, and what is kept of them, if that is settled."""
    shards, files = (
        source.shards,
        [(shard, known) for shard, known in looked_at(source.shards) if shard.format != "warc"],
    )
    names = {name: name for name in FINEWEB.names}  # first spellings
    types = defaultdict[str, dict[str, list[str]]](lambda: defaultdict(list))  # files, by column and type
    spelled = defaultdict[str, dict[str, list[str]]](lambda: defaultdict(list))  # files, by column and other spelling
    values = defaultdict[str, set[str]](set)  # by key
    for shard, known in files:
        fields = {field.name: field.type for field in known.schema}
        for key, value in keys_read(shard, settings).items():
            if find(key, fields) is None:
                fields[key] = type_of_keys([] if value is None else [value])
        for own, kind in fields.items():
            name = names.setdefault(alike(own), own)
            types[name][str(kind)[:MOST_CHARACTERS]].append(shard.relative)
            if name != own:
                spelled[name][own].append(shard.relative)
    for name, value in (key for shard in shards for key in shard.keys):
        values[names.setdefault(alike(name), name)].add("null" if value is None else value)
    size, endings = sum(shard.bytes for shard in shards), Counter(ending_of(one.relative).lower() for one in shards)
    kinds = ", ".join(f"{number:,} {ending or settings.format}" for ending, number in endings.most_common())
    plural = "s" * (len(shards) != 1)
    left_out = _listed(f"{what}: {len(paths):,} ({_some(paths)})" for what, paths in source.left_out.items())
    is_usual = source.left_out.keys() <= NO_DOCUMENTS
    empty = [shard.relative for shard in shards if not shard.bytes]
    as_text = {name for name, kind in shards[0].columns or () if kind == "string"}
    several = [
        f"{name} is {_in_files(found)}{', and kept as text' * (name in as_text)}"
        for name, found in types.items()
        if len(found) > 1
    ]
    counts = {name: sum(map(len, found.values())) for name, found in types.items()}
    lost = sorted({name for shard in shards for name, _ in shard.keys if name not in keys_read(shard, settings)})
    remedy = "convert or unpack them; with source.format set, any name is read"
    lines = {
        "reads": f"{len(shards):,} file{plural}, {size / 2**20:,.1f} MiB: {kinds}",
        "columns": _listed(f"{name} ({', '.join(found)})" for name, found in types.items()),
        "in paths": _listed(f"{name}={_some(sorted(found))}" for name, found in values.items()),
        "left out": left_out if is_usual else "",
    }
    worries = {
        "left out": "" if is_usual else f"{left_out}: {remedy}",
        "empty": f"{len(empty):,} files, or links that lead nowhere ({_some(empty)})" if empty else "",
        "types": _listed(several),
        "not in all": _listed(
            f"{name} in {n:,} of {len(files):,} files" for name, n in counts.items() if n < len(files)
        ),
        "spelling": _listed(f"{name} is {_in_files(others)}" for name, others in spelled.items()),
        "key lost": f"{_listed(lost)}: the pipeline has columns of these names; rename the folders" if lost else "",
    }
    return Inventory(
        lines=[(about, line) for about, line in lines.items() if line],
        worries=[(about, line) for about, line in worries.items() if line],
    )


def _some(names: Sequence[object]) -> str:
    """Return the first of some names, and how many others there are; those that are not UTF-8 are escaped."""
    first = ", ".join(str(name).encode(errors="backslashreplace").decode() for name in names[:NAMED])
    return first + (f" and {len(names) - NAMED:,} others" if len(names) > NAMED else "")


def _in_files(parts: dict[str, list[str]]) -> str:
    return ", ".join(f"{part} in {len(files):,} ({files[0]})" for part, files in parts.items())


def _listed(parts: Iterable[str]) -> str:
    """Return the first of some parts of a line, and how many others there are."""
    found = list(parts)
    more = f" and {len(found) - TOLD:,} others" if len(found) > TOLD else ""
    return ("; " if any("," in part for part in found) else ", ").join(found[:TOLD]) + more


def notes_of(documents: Iterable[StageFile]) -> list[str]:
    """Return what ingest found in the values of files, and how annotations beside them were joined by the scorers."""
    differ: dict[str, Counter[str]] = defaultdict(Counter)
    others: dict[str, list[str]] = defaultdict(list)
    repeats, lost, placed = (Counter[str]() for _ in range(3))
    for file in documents:
        lost.update(file.details.get("lost", {}))
        placed.update(name for name, by in file.details.get("sidecars", {}).items() if by == "place")
        repeats[file.name] += file.details.get("repeated_ids", 0)
        for name in file.details.get("not_kept", ()):
            others[name].append(file.name)
        for name, rows in file.details.get("keys_differ", {}).items():
            differ[name][file.name] += rows
    found = [
        f"the column {name!r} has another value than the path in {rows.total():,} rows of {_some(list(rows))}: "
        "the column's is taken"
        for name, rows in differ.items()
    ]
    if others:
        files = _some(list(dict.fromkeys(chain.from_iterable(others.values()))))
        found.append(
            f"columns of {files} are not kept, since no file that was looked at has them: {_listed(others)}; name them "
            "in source.extra_columns"
        )
    found += [f"{n:,} values of {name!r} are left empty: of another type, or none that fit" for name, n in lost.items()]
    found += [f"the annotations {name!r} of {n:,} files are joined by place, not by id" for name, n in placed.items()]
    if repeats := +repeats:
        files = _some(list(repeats))
        found.append(f"{repeats.total():,} rows have an id that an earlier row of their file has, in {files}")
    return found
