"""Put selections into figures and tables, in the same terms for all: of a sweep, of a comparison."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fineweb_mask.models.selection.measures import relative_gap
from fineweb_mask.models.settings import PipelineSelectionSettings
from fineweb_mask.models.settings.selection import METRICS
from fineweb_mask.tasks.reporting.page import Column, Table
from fineweb_mask.tasks.workspace.records.counts import mean_of

FIGURES = {
    "selected": Column("selected", "count"),
    "mean_quality": Column("mean quality", "number"),
    **{name: Column(name, "number") for name in METRICS},
    "near_duplicates": Column("near-dup.", "share"),
    "teaching": Column("learned", "share"),
    "effective_topics": Column("topics", "number"),
    "tokens": Column("tokens", "count"),
    "objective": Column("J", "number"),
    "gap": Column("gap", "gap"),
    "seconds": Column("seconds", "seconds"),
}
"""The columns that tables of selections are made of."""


def over_blocks(blocks: Sequence[Mapping[str, Any]], counted: str = "documents") -> dict[str, Any]:
    """Return one selection's figures over all its blocks; the bound is None if a block has none.

    Averages over what is selected are weighted by its documents or tokens, all others by those of each block.
    """
    every, chosen = ("tokens", "tokens_selected") if counted == "tokens" else ("documents", "selected")

    def measured(name: str, weight: str) -> float:
        return mean_of([block["measures"][name] for block in blocks], blocks, weight)

    bounds = [block["upper_bound"] for block in blocks]
    objective = mean_of([block["objective"] for block in blocks], blocks, every)
    random_objective = mean_of([block["random_objective"] for block in blocks], blocks, every)
    bound = None if None in bounds else mean_of(bounds, blocks, every)
    return {
        "selected": sum(block["selected"] for block in blocks),
        "mean_quality": measured("mean_quality", chosen),
        **{name: measured(name, every) for name in METRICS},
        "diversity": mean_of([block["terms"]["diversity"] for block in blocks], blocks, every),
        "near_duplicates": measured("near_duplicates", "selected"),
        "tokens": sum(block["tokens_selected"] for block in blocks),
        "objective": objective,
        "random_objective": random_objective,
        "upper_bound": bound,
        "gap": relative_gap(objective, bound, random_objective),
    }


def lamb_name(lamb: float) -> str:
    """Return what the selection at a weight of quality is called: `lamb 0.5`."""
    return f"lamb {lamb:g}"


def figure_names(settings: PipelineSelectionSettings, selections: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the columns of a table of selections: of their documents and tokens, what the budget leaves unequal."""
    every = list(selections)
    amount = "tokens" if len({one["selected"] for one in every}) == 1 else "selected"
    taught = ["teaching"] if any(one["teaching"] is not None for one in every) else []
    return ["mean_quality", *settings.shown_metrics, "near_duplicates", *taught, "objective", "gap", amount, "seconds"]


def figures_table(
    title: str, label: Column, rows: Iterable[tuple[object, Mapping[str, Any]]], names: Iterable[str], note: str = ""
) -> Table:
    """Return a table of these figures of several selections, each of which has a label."""
    names = list(names)
    columns = [label, *(FIGURES[name] for name in names)]
    return Table(title, columns, [[of, *(one[name] for name in names)] for of, one in rows], note=note, wide=True)


def diversity_axis(settings: PipelineSelectionSettings) -> tuple[str, str]:
    """Return which figure of a selection a chart shows as its diversity, and the axis' label."""
    if len(settings.metric_weights) == 1:
        [name] = settings.metric_weights
        return name, METRICS[name].label
    return "diversity", "diversity: " + " + ".join(f"{w:g} {name}" for name, w in settings.metric_weights.items())


def described_settings(settings: PipelineSelectionSettings) -> str:
    """Return what all selections have in common, in a line."""
    weights = settings.metric_weights
    metrics = next(iter(weights)) if len(weights) == 1 else " + ".join(f"{w:g} {name}" for name, w in weights.items())
    near = "Near-duplicates may be selected."
    if settings.near_duplicates is not None:
        near = f"Of near-duplicates, from cosine {settings.near_duplicates:g}, only the best may be selected."
    budget = f"{settings.budget:,}" if settings.budget is not None else f"{settings.select_ratio:.4g}"
    return (
        f"Budget: {budget} of the {settings.budget_by} in each block, which means are over. "
        f"Diversity: {metrics}. {near} Normalised by: {settings.normalize}. Seed: {settings.seed}."
    )
