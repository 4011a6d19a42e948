"""Show what was read of the source, what was left out, and what its files disagree on."""

from collections import Counter, defaultdict
from collections.abc import Sequence

from fineweb_mask.tasks.reporting.page import Column, Section, Table
from fineweb_mask.tasks.source.inventory import Inventory, notes_of
from fineweb_mask.tasks.workspace.references import ShardFiles

LISTED_COLUMNS = 50


def what_was_read(source: Inventory | None, shards: Sequence[ShardFiles]) -> Section:
    """Tell of the files of the source, and of what ingest found in them."""
    found = [] if source is None else [*source.lines(), *source.worries()]
    table = Table("Files, columns and keys of the source", [Column("about"), Column("found")], found, wide=True)
    notes = notes_of(file for shard in shards for file in (shard.documents, shard.scores))
    return Section("What was read", [*notes, *_differing(shards)], tables=[table] if found else [])


def _differing(shards: Sequence[ShardFiles]) -> list[str]:
    """Return a sentence on each column that is kept as text, because its type differs between source files."""
    types: dict[str, Counter[str]] = defaultdict(Counter)
    for shard in shards:
        for column, kind in shard.documents.details.get("as_text", {}).items():
            types[column][kind] += 1
    return [
        f"The column {column!r} is kept as text, JSON where it is nested, because its type differs between source "
        f"files: {', '.join(f'{kind} in {number:,}' for kind, number in sorted(kinds.items()))}."
        for column, kinds in sorted(types.items())
    ][:LISTED_COLUMNS]
