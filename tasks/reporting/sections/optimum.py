"""Show how close the selection is to the best possible, and how far the groups fill their budgets."""

from collections.abc import Mapping, Sequence
from typing import Any

from fineweb_mask.tasks.reporting.page import Column, Section, Table
from fineweb_mask.tasks.workspace.records.counts import add_groups, mean_of

LISTED_BLOCKS = 200
LISTED_GROUPS = 200


def widest_gap(blocks: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the largest gap of all blocks; None if no block has a bound."""
    return max((block["gap"] for block in blocks if block["gap"] is not None), default=None)


def claim(blocks: Sequence[Mapping[str, Any]]) -> str:
    """Return what the certificates of all blocks prove together, in a sentence."""
    gap = widest_gap(blocks)
    if gap is None:
        return "This solver gives no bound on the best possible selection."
    where = ", in any block" if len(blocks) > 1 else ""
    missing = f"at most {100 * gap:.3g}% is missing{where}"
    return f"Of the way from a random selection to the best possible, {missing}."


def certificate(blocks: Sequence[dict[str, Any]]) -> Section:
    """Show how close the selection of every block is to the best possible."""
    names = ("objective", "random_objective", "upper_bound", "gap")
    rows = [[block["name"], *_taken(block), *(block[name] for name in names)] for block in blocks[:LISTED_BLOCKS]]
    solved = [block for block in blocks if block["objective"] is not None]
    if len(blocks) > 1:
        totals = {name: sum(block[name] for block in blocks) for name in ("documents", "selected")}
        means = [weighted_mean(solved, name) for name in names]
        rows.insert(0, [f"all {len(blocks):,} blocks, mean", *_taken(totals), *means])
    note = "The gap is the distance to the upper bound, as a share of the distance from a random selection to it."
    if len(blocks) > LISTED_BLOCKS:
        note += f" The first {LISTED_BLOCKS} of {len(blocks):,} blocks are shown; metrics.json has all of them."
    columns = [Column("block"), Column("documents", "count"), Column("selected", "count"), Column("share", "share")]
    columns += [Column(name, "precise") for name in ("objective", "random selection", "upper bound")]
    table = Table("Blocks", [*columns, Column("gap", "gap")], rows, note=note, wide=True)
    return Section("Distance from the optimum", [claim(blocks)], tables=[table] if rows else [])


def groups(blocks: Sequence[dict[str, Any]], column: str, budget_by: str) -> Section:
    """Show how much each group was to have of the budget, and how much its documents take."""
    found, spent = add_groups(blocks), "tokens_selected" if budget_by == "tokens" else "selected"
    rows = [
        [
            group["group"] or "unknown",
            group["documents"],
            group["selected"],
            round(group["budget"]),
            group[spent] / group["budget"] if group["budget"] else None,
        ]
        for group in found[:LISTED_GROUPS]
    ]
    note = "Filled: what the selected documents take of the budget. What one group has too few for goes to the others."
    if len(found) > LISTED_GROUPS:
        note += f" The largest {LISTED_GROUPS} of {len(found):,} groups are shown; metrics.json has all of them."
    columns = [Column(name, "count") for name in ("documents", "selected", f"budget ({budget_by})")]
    table = Table("Groups", [Column(column), *columns, Column("filled", "share")], rows, note=note, wide=True)
    return Section("Budgets by group", tables=[table])


def _taken(block: Mapping[str, Any]) -> list[float]:
    """Return a block's documents, how many of them are selected, and their share."""
    documents, selected = int(block["documents"]), int(block["selected"])
    return [documents, selected, selected / max(documents, 1)]


def weighted_mean(blocks: Sequence[dict[str, Any]], name: str) -> float | None:
    """Return the mean of a figure over the blocks, weighted by their documents; None if a block lacks the figure."""
    values = [block[name] for block in blocks]
    return None if None in values else mean_of(values, blocks)
