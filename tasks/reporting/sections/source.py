"""Show what was read of the source, and what was left out."""

from collections.abc import Sequence

from fineweb_mask.tasks.reporting.page import Column, Section, Table
from fineweb_mask.tasks.source.inventory import Inventory, notes_of
from fineweb_mask.tasks.workspace.references import ShardFiles


def what_was_read(source: Inventory | None, shards: Sequence[ShardFiles]) -> Section:
    """Tell of the files of the source, and of what ingest found in them."""
    found = [] if source is None else [*source.lines, *source.worries]
    table = Table("Files, columns and keys of the source", [Column("about"), Column("found")], found, wide=True)
    notes = notes_of(file for shard in shards for file in (shard.documents, shard.scores))
    return Section("What was read", notes, tables=[table] if found else [])
