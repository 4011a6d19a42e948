"""Read what became of every row of a drawn source: the step that dropped it, why, and for which twin."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from fineweb_mask.models.documents import content_hash
from fineweb_mask.models.schemas import DROPPED, KNOWN
from fineweb_mask.tasks.audit.sample import SAMPLED
from fineweb_mask.tasks.storage.parquet import read_table
from fineweb_mask.tasks.workspace.references import ShardFiles, StageFile
from fineweb_mask.tasks.workspace.workspace import Workspace

FILTERS, BENCHMARKS, KNOWN_ELSEWHERE, EXACT, NEAR, URLS = STEPS = (
    *("filters", "benchmarks", "known", "exact", "near"),
    "urls",
)
"""The steps that drop documents, in their order; filters are all rules of ingest on single documents."""
STEP_OF = {"benchmark": BENCHMARKS, "known": KNOWN_ELSEWHERE, "duplicate": EXACT}
"""The step of a reason for which ingest drops a row; all others are of filters."""


class Fates(NamedTuple):
    """What became of n rows."""

    kinds: list[str]  # (n,)
    groups: list[str]  # (n,)
    originals: list[int | None]  # (n,) place of the row that one is a copy of
    steps: list[str | None]  # (n,) that dropped it; None: it is kept
    reasons: list[str | None]  # (n,)
    texts: list[str | None]  # (n,) as the step had it
    twins: dict[int, int | str]  # by place of a dropped row, that of the row kept for it, or a benchmark's item

    @property
    def ranks(self) -> list[int]:
        """How far the rows came, (n,): places of their steps in `STEPS`, after all of them if they are kept."""
        return [len(STEPS) if step is None else STEPS.index(step) for step in self.steps]

    @property
    def sampled(self) -> list[int]:
        """The places of the rows that were not planted."""
        return [place for place, kind in enumerate(self.kinds) if kind == SAMPLED]


def read_fates(workspace: Workspace, shards: Sequence[ShardFiles], cases: Path) -> Fates:
    """Return what became of the rows of a drawn source."""
    table = read_table(cases)
    n = table.num_rows
    names, rows = table["shard"].to_pylist(), table["source_row"].to_pylist()
    first = {name: place for place, (name, row) in enumerate(zip(names, rows, strict=True)) if not row}
    copies = zip(names, table["original"].to_pylist(), strict=True)
    found = Fates(
        table["kind"].to_pylist(),
        table["group"].to_pylist(),
        [None if row is None else first[name] + row for name, row in copies],
        steps=[None] * n,
        reasons=[None] * n,
        texts=[None] * n,
        twins={},
    )
    place_of = {}  # by shard and row of the documents
    for shard in shards:
        for row, place in enumerate(_ingested(workspace, shard, first[shard.name], found)):
            place_of[shard.name, row] = place
    for shard in shards:
        dropped = read_table(workspace.resolve(shard.duplicates)).to_pylist() if shard.duplicates.path else []
        for one in dropped:
            place, twin = place_of[shard.name, one["row"]], (one.get("twin_shard"), one.get("twin_row"))
            step = EXACT if twin[0] is None else URLS if one["similarity"] is None else NEAR
            found.steps[place] = found.reasons[place] = step
            if twin[0] is not None:  # that of another corpus is in no shard
                found.twins[place] = place_of.get(twin, "{} row {}".format(*twin))
    _find_equal(found)
    return found


def _ingested(workspace: Workspace, shard: ShardFiles, first: int, found: Fates) -> list[int]:
    """Note what ingest made of the rows of a shard, the first of which is at a place; return those of the documents."""
    for one in _beside(workspace, shard.documents, "dropped", DROPPED):
        place = first + one["source_row"]
        found.steps[place] = STEP_OF.get(one["reason"], FILTERS)
        found.reasons[place], found.texts[place] = one["reason"], one["text"]
    for one in _beside(workspace, shard.documents, "known", KNOWN):
        found.twins[first + one["source_row"]] = one["twin"]
    documents = read_table(workspace.resolve(shard.documents), columns=["source_row", "text"])
    places: list[int] = [first + row for row in documents["source_row"].to_pylist()]
    for place, text in zip(places, documents["text"].to_pylist(), strict=True):
        found.texts[place] = text
    return places


def _find_equal(found: Fates) -> None:
    """Note the kept row with the same text of every exact duplicate."""
    kept: dict[bytes, int] = {}
    for place, text in enumerate(found.texts):
        if text is not None and found.steps[place] in {None, NEAR, URLS}:
            kept.setdefault(content_hash(text), place)
    for place, text in enumerate(found.texts):
        if found.steps[place] == EXACT and text is not None and (twin := kept.get(content_hash(text))) is not None:
            found.twins[place] = twin


def _beside(workspace: Workspace, documents: StageFile, folder: str, schema: pa.Schema) -> list[dict[str, Any]]:
    """Return the rows of the file that ingest wrote beside a shard's documents; none if it wrote none."""
    path = workspace.root / documents.path.replace("documents/", f"{folder}/", 1)
    found: list[dict[str, Any]] = read_table(path, columns=schema.names).to_pylist() if path.is_file() else []
    return found
