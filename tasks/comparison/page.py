"""Write the page of a comparison: what several selections hold under the same budget.

Of the selections at several weights of quality, it shows the frontier of quality and diversity with its knee.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pydantic import Field

from fineweb_mask.models.comparison.knee import knee
from fineweb_mask.models.errors import DataError, SettingsError
from fineweb_mask.models.names import find
from fineweb_mask.models.selection.measures import coverage, intersections, jaccard, relative_gap
from fineweb_mask.models.settings import PipelineSelectionSettings
from fineweb_mask.models.settings.selection import METRICS, NEAR_DUPLICATE
from fineweb_mask.tasks.comparison.variants import Variant
from fineweb_mask.tasks.reporting import charts
from fineweb_mask.tasks.reporting.charts import Series
from fineweb_mask.tasks.reporting.page import Column, Figure, Page, PageJob, Section, Table, Tile
from fineweb_mask.tasks.source.columns import document_columns
from fineweb_mask.tasks.source.discovery import SourceShard
from fineweb_mask.tasks.storage.parquet import read_metadata, read_schema, read_table
from fineweb_mask.tasks.witness.section import TITLE, teaching_column, teaching_section
from fineweb_mask.tasks.workspace.job import Dependencies, Stage, stage_task
from fineweb_mask.tasks.workspace.records.counts import mean_of
from fineweb_mask.tasks.workspace.references import StageFile

MOST_TOPICS = 40
"""Topics in a table; the largest ones."""
LABELS = (pa.types.is_string, pa.types.is_large_string, pa.types.is_integer, pa.types.is_boolean)
"""What a column of topics may hold."""
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
KNEE_DEFINITION = (
    "The recommended value of lamb is the knee of the curve: the selection farthest from the straight line between the "
    "two ends, after quality and diversity are both scaled to the range from 0 to 1. It is a starting point, not the "
    "best value for every use."
)
TOPIC_DEFINITION = (
    "Topics: the values of the label column that have a selected document. Effective: exp(entropy) of their shares, "
    "the number of equally large topics with the same entropy. Rarest: the smallest share that a topic has of the "
    "selection."
)


class LabelColumnError(SettingsError):
    """A column of topics cannot be used."""


def check_label_column(column: str, shards: Sequence[SourceShard]) -> str:
    """Check that documents will have a column of topics, before any work, and return its name as it is there.

    Raises
    ------
    LabelColumnError
        If no source file that can be read has it, or it holds no labels.
    """
    columns = document_columns(shards) or {}
    if (own := find(column, columns)) is None:
        raise LabelColumnError(
            f"label column {column!r} must be among the documents' columns: {', '.join(sorted(columns))}"
        )
    if not any(fits(columns[own]) for fits in LABELS):
        raise LabelColumnError(f"label column {column!r} must hold text, integers or booleans, it holds {columns[own]}")
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
    """Write `index.html`, `metrics.json` and the plots; the reference's details hold the figures of the selections."""
    compared, both, topics = _overlap_and_topics(job)
    selections, one = _selections(job, topics), _blocks(next(iter(job.groups.values())))
    axis, _ = _diversity_axis(job.settings)
    frontier = [selections[name] for name in job.lambs]
    best = knee([one["mean_quality"] for one in frontier], [one[axis] for one in frontier])
    details = {
        "documents": sum(block["documents"] for block in one),
        "tokens": sum(block["tokens"] for block in one),
        "selections": selections,
        "recommended_lamb": None if best is None else list(job.lambs.values())[best],
    }
    metrics = details | {
        "blocks": len(one),
        "selection": job.settings.model_dump(mode="json", exclude={"device", "solver"}),
        "teaching": job.teaching.details,
        "jaccard": {"selections": compared, "values": jaccard(both).tolist()},
        "topics": {topic: dict(counts) for topic, counts in topics.items()},
    }
    job.write(_page(job, metrics), details)


def _blocks(files: Sequence[StageFile]) -> list[dict[str, Any]]:
    return [block for file in files for block in file.details["blocks"]]


def _selections(job: ComparisonJob, topics: Mapping[str, Counter[str]]) -> dict[str, dict[str, Any]]:
    """Return the figures of every selection by its variant."""
    blocks, found = {name: _blocks(files) for name, files in job.groups.items()}, {}
    taught = teaching_column(job.teaching.details)
    for variant in job.variants:
        name, own = variant.name, blocks[variant.name]
        if not any(block["selected"] for block in own):
            raise DataError(f"variant {name}: its ids must be of documents that can be selected, none is")
        same = [blocks[one.name] for one in job.variants if one.objective == variant.objective and not variant.files]
        is_covered = any(name in counts for counts in topics.values())
        spread = coverage([counts[name] for counts in topics.values()]) if is_covered else None
        found[name] = {
            **over_blocks(_with_shared_bounds(own, same), job.settings.budget_by),
            "teaching": taught.get(name),
            "topics": None if spread is None else spread.topics,
            "effective_topics": None if spread is None else spread.effective,
            "rarest_topic": None if spread is None else spread.rarest,
            "seconds": job.seconds.get(name) or None,
        }
    return found


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

    And by topic the documents (under "") and what each selection took.
    """
    names = [name for name in job.masks if name not in job.lambs] or list(job.masks)
    both = np.zeros((len(names), len(names)), dtype=np.int64)
    topics: dict[str, Counter[str]] = {}
    for place, documents in enumerate(job.documents):
        tables = [
            read_table(job.workspace.resolve(job.masks[name][place]), columns=["selected", "block"]) for name in names
        ]
        masks = np.array([table["selected"].to_numpy() for table in tables])
        both += intersections(masks)
        if job.label_column is None:
            continue
        labels = _labels(job.workspace.resolve(documents), job.label_column)
        for name, mask in zip(["", *names], [tables[0]["block"].is_valid().to_numpy(), *masks], strict=True):
            for entry in pc.value_counts(labels.filter(pa.array(mask)).drop_null()).to_pylist():
                topics.setdefault(entry["values"], Counter())[name] += entry["counts"]
    ordered = sorted(topics.items(), key=lambda item: (-item[1][""], item[0]))
    return names, both, {topic: Counter({name: counts[name] for name in ["", *names]}) for topic, counts in ordered}


def _labels(path: Path, column: str) -> pa.ChunkedArray:
    """Return every document's topic as text; null in a shard that lacks the column."""
    if column not in read_schema(path).names:
        return pa.chunked_array([pa.nulls(read_metadata(path).num_rows, pa.string())])
    return read_table(path, columns=[column])[column].cast(pa.string())


def _page(job: ComparisonJob, metrics: Mapping[str, Any]) -> Page:
    selections, documents = metrics["selections"], metrics["documents"]
    selected = [one["selected"] for one in selections.values()]
    amount = f"{selected[0]:,}" if len(set(selected)) == 1 else f"{min(selected):,} to {max(selected):,}"
    best = Tile(max(selections, key=lambda name: selections[name]["objective"]), "highest J")
    if job.lambs:
        recommended = metrics["recommended_lamb"]
        best = Tile("none" if recommended is None else f"{recommended:g}", "recommended lamb")
    note = f"n = {amount} of {documents:,} documents each"
    figures = [_trade_off(job, metrics, note)] if len(selections) > 1 else []
    sections = [Section("Selections", _advice(job, metrics), figures, [_table(job, metrics)])]
    sections += [teaching_section(metrics["teaching"]), _overlap(metrics)]
    if job.label_column is not None:
        sections.append(_topics(metrics, job.label_column))
    definitions = [*DEFINITIONS, *([KNEE_DEFINITION] if job.lambs else [])]
    definitions += [] if job.label_column is None else [TOPIC_DEFINITION]
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
        sections=[*sections, Section("How to read this", definitions)],
        metrics=metrics,
    )


def _advice(job: ComparisonJob, metrics: Mapping[str, Any]) -> list[str]:
    best = metrics["recommended_lamb"]
    if not job.lambs:
        return []
    if best is None:
        return ["The trade-off is linear, so there is no knee. Pick the value that suits your use."]
    return [f"The knee is at lamb = {best:g}. To use it: --set selection.lamb={best:g}"]


def _table(job: ComparisonJob, metrics: Mapping[str, Any]) -> Table:
    """Return the figures of all selections: of their documents and tokens, what the budget leaves unequal."""
    selections = metrics["selections"]
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
        note += " Topics: their effective number, explained below."
    if job.left_out:
        note += f" Left out: {'; '.join(f'{name}: {why}' for name, why in job.left_out.items())}."
    names += ["objective", "gap", *amount, "seconds"]
    columns = [Column("selection"), *(FIGURES[name] for name in names)]
    rows = [[of, *(one[name] for name in names)] for of, one in selections.items()]
    return Table("All selections", columns, rows, note=note, wide=True)


def _trade_off(job: ComparisonJob, metrics: Mapping[str, Any], note: str) -> Figure:
    """Draw quality against diversity: the curve of the frontier, and a point for each other selection."""
    (axis, y_label), selections = _diversity_axis(job.settings), metrics["selections"]
    series = []
    if job.lambs:
        x, y = ([selections[name][figure] for name in job.lambs] for figure in ("mean_quality", axis))
        marked = [place for place, lamb in enumerate(job.lambs.values()) if lamb == metrics["recommended_lamb"]]
        series.append(Series("mean_field at each lamb", x, y, [f"{one:g}" for one in job.lambs.values()], marked))
    series += [
        Series(name, [one["mean_quality"]], [one[axis]], [name])
        for name, one in selections.items()
        if name not in job.lambs
    ]
    title, x_label = "Quality against diversity", "mean quality (standardised score)"
    chart = charts.lines(title, x_label, y_label, series, note=note, height=4.8)
    alt = "Mean quality against diversity, one point for each selection."
    ring = "; the ring is the recommended lamb" if job.lambs else ""
    return Figure("trade-off", chart, alt, f"Up and to the right is better{ring}. {note}.")


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


def _overlap(metrics: Mapping[str, Any]) -> Section:
    names, values = metrics["jaccard"]["selections"], metrics["jaccard"]["values"]
    columns = [Column("selection"), *(Column(name, "number") for name in names)]
    rows = [[name, *row] for name, row in zip(names, values, strict=True)]
    return Section("Overlap", tables=[Table("Jaccard overlap", columns, rows, wide=True)])


def _topics(metrics: Mapping[str, Any], column: str) -> Section:
    names, topics = metrics["jaccard"]["selections"], list(metrics["topics"].items())
    drawn = topics[:MOST_TOPICS]
    which = ("" if len(topics) == len(drawn) else f"the {MOST_TOPICS} largest of ") + f"{len(topics):,} topics"
    totals = {name: max(sum(counts[name] for _, counts in topics), 1) for name in ["", *names]}
    table = Table(
        "Share of each topic",
        [Column("topic"), Column("all documents", "share"), *(Column(name, "share") for name in names)],
        [[topic, *(counts[name] / totals[name] for name in ["", *names])] for topic, counts in drawn],
        note=f"Topics from the column {column}: {which}. Counts are in metrics.json.",
        wide=True,
    )
    columns = [Column("selection"), Column("topics", "count"), Column("effective", "number"), Column("rarest", "share")]
    coverages = [
        [name, *(metrics["selections"][name][one] for one in ("topics", "effective_topics", "rarest_topic"))]
        for name in names
    ]
    return Section("Topics", tables=[Table("Coverage", columns, coverages), table])
