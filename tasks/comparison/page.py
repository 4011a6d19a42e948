"""Write the page of a comparison: what several selections hold under the same budget.

Of the selections at several weights of quality, it shows the frontier of quality and diversity with its knee.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import ArrayLike, NDArray
from pydantic import Field

from fineweb_mask.models.analysis.vectors import effective_number
from fineweb_mask.models.errors import DataError, SettingsError
from fineweb_mask.models.names import find
from fineweb_mask.models.selection.measures import intersections, jaccard, relative_gap
from fineweb_mask.models.settings import PipelineSelectionSettings
from fineweb_mask.models.settings.selection import METRICS, NEAR_DUPLICATE
from fineweb_mask.tasks.comparison.variants import Variant
from fineweb_mask.tasks.reporting import charts
from fineweb_mask.tasks.reporting.charts import Series
from fineweb_mask.tasks.reporting.page import Column, Figure, Page, PageJob, Section, Table, Tile
from fineweb_mask.tasks.source.columns import document_columns
from fineweb_mask.tasks.source.discovery import SourceShard
from fineweb_mask.tasks.storage.parquet import read_schema, read_table
from fineweb_mask.tasks.witness.job import TITLE, teaching_column, teaching_section
from fineweb_mask.tasks.workspace.job import Dependencies, Stage, stage_task
from fineweb_mask.tasks.workspace.records.counts import mean_of
from fineweb_mask.tasks.workspace.references import StageFile

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
"""The columns that the table of selections is made of."""
DEFINITIONS = (
    "The solvers maximise J = lamb * quality + (1 - lamb) * diversity, where near-duplicates are left out before; the "
    "other selectors do not know J, and have the same budget. J and gap of a variant are by its own settings.",
    "Quality is standardised over the corpus. Diversity metrics are raw values: larger is more diverse. They are "
    "measured for every selection, whether or not it maximised them. No selection has a J above the upper bound. The "
    "gap is the distance from J to that bound, as a share of the distance from a random selection to it.",
    f"A near-duplicate is a selected document that has a cosine of {NEAR_DUPLICATE} or more with another selected one. "
    "The overlap of two selections is the number of documents in both, divided by the number in either (Jaccard): 1 "
    "for the same selection, 0 for no document in common.",
)
STRAIGHT = 1e-3  # share of the frontier's range: a curve closer to its chord has no knee
KNEE_DEFINITION = (
    "The recommended value of lamb is the knee of the curve: the selection farthest from the straight line between the "
    "two ends, after quality and diversity are both scaled to the range from 0 to 1. It is a starting point, not the "
    "best value for every use."
)


def check_label_column(column: str, shards: Sequence[SourceShard]) -> str:
    """Check that documents will have a column of topics, before any work, and return its name as it is there.

    Raises
    ------
    SettingsError
        If no source file that can be read has it, or it holds lists or the like.
    """
    columns = [name for name, kind in (document_columns(shards) or {}).items() if not pa.types.is_nested(kind)]
    if (own := find(column, columns)) is None:
        raise SettingsError(
            f"label column {column!r} must be among the documents' columns: {', '.join(sorted(columns))}"
        )
    return own


class ComparisonJob(PageJob):
    """Write the page of a comparison."""

    stage: ClassVar[Stage] = Stage("compare", version=5, folders=("compare",))
    settings: PipelineSelectionSettings  # of the recipe
    variants: list[Variant]
    documents: list[StageFile]
    masks: dict[str, list[StageFile]]  # by variant, in the order of the documents
    groups: dict[str, list[StageFile]]  # by variant
    seconds: dict[str, float]  # by variant, where they are known
    label_column: str | None = None
    left_out: dict[str, str] = Field(default_factory=dict)  # why, by selector
    lambs: dict[str, float] = Field(default_factory=dict)  # by variant of the frontier, in ascending order
    teaching: StageFile  # what `measure_teaching` found of the selections

    def depends_on(self) -> Dependencies:
        """Return what the page says of the settings, and the fingerprints of the selections."""
        names = [[one.name, one.objective] for one in self.variants]
        own = self.settings.model_dump(exclude={"device"})
        files = [[file.fingerprint for file in files] for files in (self.documents, *self.groups.values())]
        return Dependencies(
            settings=[own, names, self.label_column, self.left_out, self.lambs],
            inputs=[self.teaching.fingerprint, *files],
        )


@stage_task
def write_comparison_page(job: ComparisonJob) -> None:
    """Write `index.html`, `metrics.json` and the plot; the reference's details hold the figures of the selections."""
    compared, both, topics = _overlap_and_topics(job)
    blocks = {name: [block for file in files for block in file.details["blocks"]] for name, files in job.groups.items()}
    selections, of_all = _selections(job, blocks, topics), next(iter(blocks.values()))
    axis, _ = _diversity_axis(job.settings)
    frontier = [selections[name] for name in job.lambs]
    best = knee([one["mean_quality"] for one in frontier], [one[axis] for one in frontier])
    details = {
        "documents": sum(block["documents"] for block in of_all),
        "tokens": sum(block["tokens"] for block in of_all),
        "selections": selections,
        "recommended_lamb": None if best is None else list(job.lambs.values())[best],
    }
    metrics = details | {
        "blocks": len(of_all),
        "selection": job.settings.model_dump(mode="json", exclude={"device", "solver"}),
        "teaching": job.teaching.details,
        "jaccard": {"selections": compared, "values": jaccard(both).tolist()},
        "topics": topics,
    }
    job.write(_page(job, metrics), details)


def _selections(
    job: ComparisonJob, blocks: Mapping[str, list[dict[str, Any]]], topics: Mapping[str, Counter[str]]
) -> dict[str, dict[str, Any]]:
    """Return the figures of every selection by its variant."""
    found, taught = {}, teaching_column(job.teaching.details)
    for variant in job.variants:
        name, own = variant.name, blocks[variant.name]
        if not any(block["selected"] for block in own):
            raise DataError(f"variant {name}: its ids must be of documents that can be selected, none is")
        same = [blocks[one.name] for one in job.variants if one.objective == variant.objective and not variant.files]
        counts = [of[name] for of in topics.values() if name in of]
        found[name] = {
            **over_blocks(_with_shared_bounds(own, same), job.settings.budget_by),
            "teaching": taught.get(name),
            "effective_topics": effective_number(np.array(counts)) if counts else None,
            "seconds": job.seconds.get(name) or None,
        }
    return found


def knee(x: ArrayLike, y: ArrayLike) -> int | None:
    """Find the point of a trade-off curve farthest above the chord between its ends.

    Both axes are scaled to 0..1 between the ends, so units do not matter.
    Source: Satopaa et al., Finding a "Kneedle" in a Haystack (2011), without smoothing.

    Parameters
    ----------
    x, y
        (n,) the two goods at each point; larger is better. The ends of the trade-off come first and last.

    Returns
    -------
    int or None
        The index of the point. None if there is nothing between the ends, the ends do not trade one good for the
        other, or no point is above the chord.

    Examples
    --------
    >>> knee([0, 0.8, 1], [1, 0.7, 0])
    1
    """
    a, b = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    if len(a) < 3 or a[-1] <= a[0] or b[-1] >= b[0]:
        return None
    above = (a - a[0]) / (a[-1] - a[0]) + (b - b[-1]) / (b[0] - b[-1]) - 1
    best = int(above.argmax())
    return best if above[best] > STRAIGHT else None


def over_blocks(blocks: Sequence[Mapping[str, Any]], counted: str = "documents") -> dict[str, Any]:
    """Return one selection's figures over all its blocks; the bound is None if a block has none.

    Averages over what is selected are weighted by its documents or tokens, all others by those of each block. A block
    of which nothing is selected counts in none.
    """
    blocks = [block for block in blocks if block["selected"]]
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


def _with_shared_bounds(blocks: list[dict[str, Any]], others: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Return the blocks with the lowest bound of others by the same objective: it holds for all of that budget."""
    shared = []
    for place, block in enumerate(blocks):
        bounds = [one[place]["upper_bound"] for one in others]
        bound = min((bound for bound in bounds if bound is not None), default=None)
        if bound is not None and block["upper_bound"] is None and block["objective"] > bound:
            bound = None  # it selected less than the budget, about which the bound says nothing
        gap = relative_gap(block["objective"], bound, block["random_objective"])
        shared.append(block | {"upper_bound": bound, "gap": gap})
    return shared


def _overlap_and_topics(job: ComparisonJob) -> tuple[list[str], NDArray[np.int64], dict[str, Counter[str]]]:
    """Return selections, those of the frontier aside, and count what every two of them share.

    And by topic what each selection took.
    """
    names = [name for name in job.masks if name not in job.lambs] or list(job.masks)
    both = np.zeros((len(names), len(names)), dtype=np.int64)
    topics: dict[str, Counter[str]] = defaultdict(lambda: Counter(dict.fromkeys(names, 0)))
    for place, documents in enumerate(job.documents):
        files = [job.workspace.resolve(job.masks[name][place]) for name in names]
        masks = np.array([read_table(file, columns=["selected"])["selected"].to_numpy() for file in files])
        both += intersections(masks)
        path = job.workspace.resolve(documents)
        column = job.label_column
        if column is not None and column in read_schema(path).names:
            labels = read_table(path, columns=[column])[column].cast(pa.string())
            for name, mask in zip(names, masks, strict=True):
                for entry in pc.value_counts(labels.filter(pa.array(mask)).drop_null()).to_pylist():
                    topics[entry["values"]][name] += entry["counts"]
    return names, both, topics


def _page(job: ComparisonJob, metrics: Mapping[str, Any]) -> Page:
    selections, documents = metrics["selections"], metrics["documents"]
    selected = [one["selected"] for one in selections.values()]
    amount = f"{selected[0]:,}" if len(set(selected)) == 1 else f"{min(selected):,} to {max(selected):,}"
    best = Tile(max(selections, key=lambda name: selections[name]["objective"]), "highest J")
    advice, definitions = [], [*DEFINITIONS]
    if job.lambs:
        lamb, definitions = metrics["recommended_lamb"], [*DEFINITIONS, KNEE_DEFINITION]
        best = Tile("none" if lamb is None else f"{lamb:g}", "recommended lamb")
        advice = [
            "The trade-off is linear, so there is no knee. Pick the value that suits your use."
            if lamb is None
            else f"The knee is at lamb = {lamb:g}. To use it: --set selection.lamb={lamb:g}"
        ]
    note = f"n = {amount} of {documents:,} documents each"
    figures = [_trade_off(job, metrics, note)] if len(selections) > 1 else []
    names = metrics["jaccard"]["selections"]
    overlap = Table(
        "Jaccard overlap",
        [Column("selection"), *(Column(name, "number") for name in names)],
        [[name, *row] for name, row in zip(names, metrics["jaccard"]["values"], strict=True)],
    )
    return Page(
        title="Comparison of selections",
        lead=f"The same budget for all. {_described(job.settings)} Weight of quality (lamb): {job.settings.lamb:g}, "
        "unless a variant says otherwise.",
        tiles=[
            Tile(f"{documents:,}", "documents"),
            Tile(amount, "selected by each"),
            Tile(str(len(selections)), "selections"),
            best,
        ],
        sections=[
            Section("Selections", advice, figures, [_table(job, selections)]),
            teaching_section(metrics["teaching"]),
            Section("Overlap", tables=[overlap]),
            Section("How to read this", definitions),
        ],
        metrics=metrics,
    )


def _table(job: ComparisonJob, selections: Mapping[str, dict[str, Any]]) -> Table:
    """Return the figures of all selections: of their documents and tokens, what the budget leaves unequal."""
    amount = ["tokens" if len({one["selected"] for one in selections.values()}) == 1 else "selected"]
    names = ["mean_quality", *METRICS, "near_duplicates"]
    note = "Seconds: reading, selecting and measuring, one after the other, each on all cores."
    if any(one["teaching"] is not None for one in selections.values()):
        names.append("teaching")
        note += (
            " Learned: how much better a small language model that read the selection predicts held-out documents than "
            f"one that read as many random tokens; see {TITLE!r}."
        )
    if job.label_column is not None:
        names.append("effective_topics")
        amount = []  # all columns are in sight
        note += " Topics: how many equally large ones would have the same entropy."
    if job.left_out:
        note += f" Left out: {'; '.join(f'{name}: {why}' for name, why in job.left_out.items())}."
    names += ["objective", "gap", *amount, "seconds"]
    columns = [Column("selection"), *(FIGURES[name] for name in names)]
    rows = [[of, *(one[name] for name in names)] for of, one in selections.items()]
    return Table("All selections", columns, rows, note=note)


def _trade_off(job: ComparisonJob, metrics: Mapping[str, Any], note: str) -> Figure:
    """Draw quality against diversity: the curve of the frontier, and a point for each other selection."""
    (axis, y_label), selections = _diversity_axis(job.settings), metrics["selections"]
    series = []
    if job.lambs:
        x, y = ([selections[name][figure] for name in job.lambs] for figure in ("mean_quality", axis))
        marked = [place for place, lamb in enumerate(job.lambs.values()) if lamb == metrics["recommended_lamb"]]
        series.append(Series("mean_field at each lamb", x, y, [f"{one:g}" for one in job.lambs.values()], marked))
    series += [
        Series(name, [one["mean_quality"]], [one[axis]]) for name, one in selections.items() if name not in job.lambs
    ]
    title, x_label = "Quality against diversity", "mean quality (standardised score)"
    chart = charts.lines(title, x_label, y_label, series)
    alt = "Mean quality against diversity, one point for each selection."
    ring = "; the ring is the recommended lamb" if job.lambs else ""
    return Figure("trade-off", *chart, alt, f"Up and to the right is better{ring}. {note}.")


def _diversity_axis(settings: PipelineSelectionSettings) -> tuple[str, str]:
    """Return which figure of a selection a chart shows as its diversity, and the axis' label."""
    if len(settings.metric_weights) == 1:
        [name] = settings.metric_weights
        return name, METRICS[name].label
    return "diversity", "diversity: " + " + ".join(f"{w:g} {name}" for name, w in settings.metric_weights.items())


def _described(settings: PipelineSelectionSettings) -> str:
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
