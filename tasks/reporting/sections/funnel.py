"""Show where the documents of the source went: how many each stage dropped, and why."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from fineweb_mask.tasks.reporting import charts
from fineweb_mask.tasks.reporting.charts import Bar
from fineweb_mask.tasks.reporting.page import Figure, Section, Tile
from fineweb_mask.tasks.reporting.sections.optimum import widest_gap
from fineweb_mask.tasks.workspace.records.counts import Counts
from fineweb_mask.tasks.workspace.references import ShardFiles

STAGE_OF = {"duplicate": "dedup", "near_duplicate": "dedup", "same_url": "dedup", "bad_vector": "embed"}
"""The stage that drops documents for a reason, unless it is ingest."""


def tiles(counts: Counts, blocks: Sequence[dict[str, Any]]) -> list[Tile]:
    """Return the key figures."""
    estimated = f" ({counts.estimated})" if counts.estimated else ""
    share = counts.selected / max(counts.documents_eligible, 1)
    tiles = [
        Tile(f"{counts.documents_in:,}", "documents in the source"),
        Tile(f"{counts.documents_eligible:,}", "eligible for selection"),
        Tile(f"{counts.selected:,}", f"selected, {share:.1%} of the eligible"),
        Tile(f"{counts.tokens_selected:,}", f"tokens selected{estimated}"),
    ]
    if (gap := widest_gap(blocks)) is not None:
        tiles.append(Tile(f"{100 * gap:.3g}%", "at most missing on the way from random to the best possible"))
    return tiles


def funnel(counts: Counts, shards: Sequence[ShardFiles]) -> Section:
    """Count every document of the source by the stage and the reason for which it was dropped."""
    drops, whole = list(_drops(counts, shards)), max(counts.documents_in, 1)

    def bar(label: str, number: int, *, grey: bool = False) -> Bar:
        return Bar(label, number, f"{number:,} ({number / whole:.1%})", grey=grey)

    rows = [
        bar("in the source", counts.documents_in),
        *(bar(reason, number, grey=True) for stage, reason, number in drops if stage == "ingest"),
        bar("ingested", counts.documents_ingested),
        *(bar(reason, number, grey=True) for stage, reason, number in drops if stage != "ingest"),
        bar("eligible for selection", counts.documents_eligible),
        bar("not selected", counts.not_selected, grey=True),
        bar("selected", counts.selected),
    ]
    note = f"n = {counts.documents_in:,} documents in the source"
    figure = Figure(
        "funnel",
        charts.bars("From the source to the selection", "documents", rows, note=note),
        alt=f"Documents: {', '.join(f'{row.label} {row.value:,.0f}' for row in rows)}.",
        caption="Blue: documents remaining after each stage. Grey: documents dropped or not selected. Shares: of the "
        "documents in the source." + _not_embedded(drops),
    )
    return Section("Where documents went", figures=[figure])


def _not_embedded(drops: Sequence[tuple[str, str, int]]) -> str:
    repeated = sum(number for stage, _, number in drops if stage == "dedup")
    return f" {repeated:,} duplicates were neither scored nor embedded." if repeated else ""


def _drops(counts: Counts, shards: Sequence[ShardFiles]) -> Iterator[tuple[str, str, int]]:
    """Yield stage, reason and number of dropped documents, in the order of the stages."""
    by_ingest: Counter[str] = Counter()
    for shard in shards:
        by_ingest.update(shard.documents.details.get("dropped", {}))
    later = []
    for reason, number in counts.dropped.items():
        text = reason.replace("_", " ")
        if by_ingest[reason]:
            yield "ingest", text, by_ingest[reason]
        if number > by_ingest[reason]:
            later.append((STAGE_OF.get(reason, "select"), text, number - by_ingest[reason]))
    yield from sorted(later)
