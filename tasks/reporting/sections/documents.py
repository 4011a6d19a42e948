"""Show how many near-duplicates every threshold would drop, and the least similar of them side by side."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fineweb_mask.tasks.reporting.page import Card, Column, Section, Side, Table
from fineweb_mask.tasks.workspace.references import ShardFiles
from fineweb_mask.tasks.workspace.stage_parquet import documents_of
from fineweb_mask.tasks.workspace.workspace import Workspace

LONGEST_TEXT = 400  # characters of a document


def near_duplicates(workspace: Workspace, shards: Sequence[ShardFiles], found: Mapping[str, Any]) -> list[Section]:
    """Show how many near-duplicates each threshold would drop, and the least similar pair; nothing without any."""
    places = {shard.name: shard for shard in shards}

    def card(one: Mapping[str, Any], side: str) -> Card:
        name, row = one[side]
        note = f"from {one['threshold']:g}: similarity {one['similarity']:.3f}"
        if name not in places:
            return Card(f"{name}, row {row:,}", note, "A text of ingest.against, or of a source file that is left out.")
        [read] = documents_of(workspace, places[name].documents, np.array([row]), ["id", "url", "text"]).to_pylist()
        return Card(read.get("url") or read["id"], note, _beginning(read["text"]))

    if not (tried := found.get("tried")):
        return []
    own, pairs = found["threshold"], [one for one in tried if one["documents"]]
    columns = [Column("ingest.near_threshold", "number"), Column("near-duplicates", "count"), Column("least", "number")]
    rows = [[one["threshold"], one["documents"], one.get("similarity")] for one in tried]
    text = (
        f"How many documents are near-duplicates from each similarity on, and the least similar pair of them: "
        f"{own:g} is this run's. All are of the pairs that this run compared, whose signatures are made for {own:g}. "
        "Above it, another run would find about the same; below it, more: of the pairs that are less similar, these "
        "signatures bring only a part together."
    )
    return [
        Section(
            "Thresholds of near-duplicates",
            [text],
            tables=[Table("Near-duplicates by threshold", columns, rows)],
            sides=[
                Side(f"{title} of the least similar pair", [card(one, side) for one in pairs])
                for title, side in (("Dropped", "dropped"), ("Kept", "kept"))
            ],
        )
    ]


def _beginning(text: str) -> str:
    """Return the beginning of a text in one line."""
    line = " ".join(text[: 2 * LONGEST_TEXT].split())
    return line if len(line) <= LONGEST_TEXT and len(text) <= 2 * LONGEST_TEXT else f"{line[:LONGEST_TEXT]} …"
