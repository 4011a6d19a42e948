"""Write the page of a comparison: what several selections hold under the same budget.

They are those of several selectors and, on the page of a sweep, of the solver at many weights of quality: the frontier
of quality and diversity with its knee, beside the selectors.
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
from fineweb_mask.models.errors import SettingsError
from fineweb_mask.models.names import find
from fineweb_mask.models.selection.measures import coverage, intersections, jaccard, relative_gap
from fineweb_mask.models.settings import PipelineSelectionSettings
from fineweb_mask.models.settings.selection import NEAR_DUPLICATE
from fineweb_mask.models.settings.selectors.registry import SELECTORS
from fineweb_mask.tasks.comparison.figures import (
    described_settings,
    diversity_axis,
    figure_names,
    figures_table,
    lamb_name,
    over_blocks,
)
from fineweb_mask.tasks.reporting import charts
from fineweb_mask.tasks.reporting.labels import MapLabel, Series
from fineweb_mask.tasks.reporting.page import Column, Figure, Page, PageJob, Section, Table, Tile
from fineweb_mask.tasks.source.columns import document_columns
from fineweb_mask.tasks.source.discovery import SourceShard
from fineweb_mask.tasks.storage.parquet import read_metadata, read_schema, read_table
from fineweb_mask.tasks.witness.section import TITLE, teaching_column, teaching_section
from fineweb_mask.tasks.workspace.job import Dependencies, Stage, stage_task
from fineweb_mask.tasks.workspace.references import StageFile

DRAWN_TOPICS = 40
"""Most topics in a chart and a table; the largest ones."""
LABELS = (pa.types.is_string, pa.types.is_large_string, pa.types.is_integer, pa.types.is_boolean)
"""What a column of topics may hold."""
DEFINITIONS = (
    "The solvers maximise J = lamb * quality + (1 - lamb) * diversity, less a penalty for near-duplicates; the other "
    "selectors do not know J, and have the same budget.",
    "Quality is standardised over the corpus. Diversity metrics are raw values: larger is more diverse. They are "
    "measured for every selection, whether or not it maximised them. No selection has a J above the upper bound. The "
    "gap is the distance from J to that bound, as a share of the distance from a random selection to it.",
    f"A near-duplicate is a selected document that has a cosine of {NEAR_DUPLICATE} or more with another selected one. "
    "The overlap of two selections is the number of documents in both, divided by the number in either (Jaccard).",
)
SWEEP_DEFINITION = (
    "Each value of lamb gives one selection by mean_field. The recommended value is the knee of the curve: the "
    "selection farthest from the straight line between the two ends, after quality and diversity are both scaled to "
    "the range from 0 to 1. It is a starting point, not the best value for every use."
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
    """Write the page of a comparison, or of a sweep, which has `lambs`."""

    stage: ClassVar[Stage] = Stage("compare", version=3, folders=("compare", "sweep"))
    settings: PipelineSelectionSettings
    documents: list[StageFile]
    masks: dict[str, list[StageFile]]  # by selector, in the order of the documents
    groups: dict[str, list[StageFile]]  # by selector
    seconds: dict[str, float]  # by selector or value of lamb, as far as it is known
    label_column: str | None = None
    left_out: dict[str, str] = Field(default_factory=dict)  # why, by selector
    lambs: tuple[float, ...] = ()
    frontiers: list[StageFile] = Field(default_factory=list)  # of the sweep, of every group of shards
    teaching: StageFile  # what `measure_teaching` found of the selections
    advised: str = ""  # what a recipe must also set to select as the sweep

    @property
    def name(self) -> str:
        """The name of the page's folder."""
        return self.folder_name

    @property
    def folder_name(self) -> str:
        """The folder of the page in the workspace."""
        of_comparison, of_sweep = self.stage.folders
        return of_sweep if self.lambs else of_comparison

    def depends_on(self) -> Dependencies:
        """Return what the page says of the settings, and the fingerprints of the selections."""
        swept = [self.lambs, self.advised, [file.fingerprint for file in self.frontiers]]
        return Dependencies(
            settings=[
                self.settings.model_dump(exclude={"device"}),
                self.label_column,
                list(self.groups),
                self.left_out,
                *(swept if self.lambs else []),
            ],
            inputs=[
                self.teaching.fingerprint,
                *([file.fingerprint for file in files] for files in (self.documents, *self.groups.values())),
            ],
        )


@stage_task
def write_comparison_page(job: ComparisonJob) -> None:
    """Write `index.html`, `metrics.json` and the plots; the reference's details hold the figures of the selections."""
    metrics = _metrics(job)
    details = ("documents", "tokens", "selectors", "recommended_lamb", "values", "baselines")
    job.write(_page(job, metrics), {name: metrics[name] for name in details if name in metrics})


def _metrics(job: ComparisonJob) -> dict[str, Any]:
    both, topics = _overlap_and_topics(job)
    selectors, one = _selectors(job, topics), _blocks(next(iter(job.groups.values())))
    return {
        "documents": sum(block["documents"] for block in one),
        "tokens": sum(block["tokens"] for block in one),
        "blocks": len(one),
        "selection": job.settings.model_dump(mode="json", exclude={"device", "solver"}),
        **({**_frontier(job), "baselines": selectors} if job.lambs else {"selectors": selectors}),
        "teaching": job.teaching.details,
        "jaccard": {"selectors": list(selectors), "values": jaccard(both).tolist()},
        "topics": {topic: dict(counts) for topic, counts in topics.items()},
    }


def _blocks(files: Sequence[StageFile]) -> list[dict[str, Any]]:
    return [block for file in files for block in file.details["blocks"]]


def _frontier(job: ComparisonJob) -> dict[str, Any]:
    """Return the figures of the selection at each weight of quality, and the weight at the knee."""
    blocks, values, taught = _blocks(job.frontiers), [], teaching_column(job.teaching.details)
    for lamb in job.lambs:
        figures = over_blocks([block for block in blocks if block["lamb"] == lamb], job.settings.budget_by)
        teaching = taught.get(lamb_name(lamb))
        values.append({"lamb": lamb, **figures, "teaching": teaching, "seconds": job.seconds.get(str(lamb))})
    axis, _ = diversity_axis(job.settings)
    best = knee([value["mean_quality"] for value in values], [value[axis] for value in values])
    return {"recommended_lamb": None if best is None else job.lambs[best], "values": values}


def _selectors(job: ComparisonJob, topics: Mapping[str, Counter[str]]) -> dict[str, dict[str, Any]]:
    blocks = {name: _blocks(files) for name, files in job.groups.items()}
    swept = [block for block in _blocks(job.frontiers) if block["lamb"] == job.settings.lamb]
    everyone, found = [*blocks.values(), *([swept] if swept else [])], {}
    taught = teaching_column(job.teaching.details)
    for name, own in blocks.items():
        spread = coverage([counts[name] for counts in topics.values()]) if job.label_column is not None else None
        found[name] = {
            **over_blocks(_with_shared_bounds(own, everyone), job.settings.budget_by),
            "teaching": taught.get(name),
            "topics": None if spread is None else spread.topics,
            "effective_topics": None if spread is None else spread.effective,
            "rarest_topic": None if spread is None else spread.rarest,
            "seconds": job.seconds.get(name),
            **({"lamb": job.settings.lamb if name == "greedy" else None} if job.lambs else {}),
        }
    return found


def _with_shared_bounds(blocks: list[dict[str, Any]], everyone: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Return the blocks with the lowest bound of any selector: it holds for all selections of that budget."""
    shared = []
    for place, block in enumerate(blocks):
        bounds = [others[place]["upper_bound"] for others in everyone]
        bound = min((bound for bound in bounds if bound is not None), default=None)
        if bound is not None and block["upper_bound"] is None and block["objective"] > bound:
            bound = None  # it selected less than the budget, about which the bound says nothing
        gap = relative_gap(block["objective"], bound, block["random_objective"])
        shared.append(block | {"upper_bound": bound, "gap": gap})
    return shared


def _overlap_and_topics(job: ComparisonJob) -> tuple[NDArray[np.int64], dict[str, Counter[str]]]:
    """Count what every two selections share, and by topic the documents (under "") and what each selector took."""
    names = list(job.masks)
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
    return both, {topic: Counter({name: counts[name] for name in ["", *names]}) for topic, counts in ordered}


def _labels(path: Path, column: str) -> pa.ChunkedArray:
    """Return every document's topic as text; null in a shard that lacks the column."""
    if column not in read_schema(path).names:
        return pa.chunked_array([pa.nulls(read_metadata(path).num_rows, pa.string())])
    return read_table(path, columns=[column])[column].cast(pa.string())


def _page(job: ComparisonJob, metrics: Mapping[str, Any]) -> Page:
    selections, documents = _selections(metrics), metrics["documents"]
    selected = [one["selected"] for one in selections.values()]
    amount = f"{selected[0]:,}" if len(set(selected)) == 1 else f"{min(selected):,} to {max(selected):,}"
    note = f"n = {amount} of {documents:,} documents each"
    best = Tile(max(selections, key=lambda name: selections[name]["objective"]), "highest J")
    if job.lambs:
        recommended = metrics["recommended_lamb"]
        best = Tile("none" if recommended is None else f"{recommended:g}", "recommended lamb")
    figures = [_trade_off(job, metrics, note), *_by_lamb(job, metrics, note), _near_duplicates(selections, note)]
    sections = [Section("Selections", _advice(job, metrics), figures, [_table(job, metrics)])]
    sections += [teaching_section(metrics["teaching"]), _overlap(metrics, note)]
    if job.label_column is not None:
        sections.append(_topics(metrics, note, job.label_column))
    definitions = [*DEFINITIONS, *([SWEEP_DEFINITION] if job.lambs else [])]
    definitions += [] if job.label_column is None else [TOPIC_DEFINITION]
    at = f"from {job.lambs[0]:g} to {job.lambs[-1]:g}" if job.lambs else f"{job.settings.lamb:g}"
    return Page(
        title="Quality against diversity" if job.lambs else "Comparison of selectors",
        lead=f"The same budget for all. {described_settings(job.settings)} Weight of quality (lamb): {at}.",
        tiles=[
            Tile(f"{documents:,}", "documents"),
            Tile(amount, "selected by each"),
            Tile(str(len(selections)), "selections"),
            best,
        ],
        sections=[*sections, Section("How to read this", definitions, tables=[_sources(list(job.groups))])],
        metrics=metrics,
    )


def _selections(metrics: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the figures of every selection by its label: of the values of a sweep, then of the selectors."""
    swept = {lamb_name(value["lamb"]): value for value in metrics.get("values", [])}
    return {**swept, **metrics["baselines" if swept else "selectors"]}


def _advice(job: ComparisonJob, metrics: Mapping[str, Any]) -> list[str]:
    if not job.lambs:
        return []
    best = metrics["recommended_lamb"]
    if best is None:
        return ["The trade-off is linear, so there is no knee. Pick the value that suits your use."]
    return [f"The knee is at lamb = {best:g}. To use it: --set selection.lamb={best:g}{job.advised}"]


def _table(job: ComparisonJob, metrics: Mapping[str, Any]) -> Table:
    selections = _selections(metrics)
    names = figure_names(job.settings, selections.values())
    note = "Seconds: the selection alone, one after the other, each on all cores."
    if "teaching" in names:
        note += (
            " Learned: how much better a small language model that read the selection predicts held-out documents than "
            f"one that read as many random tokens; see {TITLE!r}."
        )
    if job.label_column is not None:
        names.insert(names.index("objective"), "effective_topics")
        names = [name for name in names if name not in {"selected", "tokens"}]  # all columns are in sight
        note += " Topics: their effective number, explained below."
    if job.left_out:
        note += f" Left out: {'; '.join(f'{name}: {why}' for name, why in job.left_out.items())}."
    if job.lambs:
        note += f" J and gap of the selectors are at lamb = {job.settings.lamb:g}, the recipe's value."
    return figures_table("All selections", Column("selection"), selections.items(), names, note)


def _trade_off(job: ComparisonJob, metrics: Mapping[str, Any], note: str) -> Figure:
    """Draw quality against diversity: a point for each selector, and the curve of a sweep."""
    axis, y_label = diversity_axis(job.settings)
    selections = _selections(metrics)
    points = [MapLabel(selections[name]["mean_quality"], selections[name][axis], name) for name in job.groups]
    curve = None
    if job.lambs:
        x, y = ([value[name] for value in metrics["values"]] for name in ("mean_quality", axis))
        curve = Series("mean_field at each lamb", x, y, _marked(job, metrics), [f"{one:g}" for one in job.lambs])
    title, x_label = "Quality against diversity", "mean quality (standardised score)"
    chart = charts.trade_off(title, x_label, y_label, points, curve=curve, note=note)
    alt = "Mean quality against diversity, one point for each selection."
    return Figure("trade-off", chart, alt, f"Up and to the right is better. {note}.")


def _marked(job: ComparisonJob, metrics: Mapping[str, Any]) -> list[int]:
    """Return the place of the recommended value in the sweep, if there is one."""
    return [place for place, lamb in enumerate(job.lambs) if lamb == metrics["recommended_lamb"]]


def _by_lamb(job: ComparisonJob, metrics: Mapping[str, Any], note: str) -> list[Figure]:
    """Draw quality and diversity by weight of quality, as shares of their ranges; nothing of one value."""
    if len(job.lambs) < 2:
        return []
    axis, _ = diversity_axis(job.settings)
    both = []
    for name, figure in (("quality", "mean_quality"), ("diversity", axis)):
        found = np.array([value[figure] for value in metrics["values"]])
        shares = 100 * (found - found.min()) / np.ptp(found) if np.ptp(found) else np.full(len(found), 100.0)
        both.append(Series(name, job.lambs, shares.tolist(), _marked(job, metrics)))
    x_label, y_label = "lamb (weight of quality)", "share of the range over the sweep (%)"
    chart = charts.lines("Quality and diversity by lamb", x_label, y_label, both, note=note)
    alt = "Quality and diversity at each lamb, as a share of their range."
    return [Figure("shares", chart, alt, f"100% is the highest value over the sweep, 0% the lowest. {note}.")]


def _near_duplicates(selections: Mapping[str, Mapping[str, Any]], note: str) -> Figure:
    title, x_label = "Near-duplicates", f"selected documents with a near-duplicate, cosine {NEAR_DUPLICATE} or more (%)"
    bars = [charts.Bar(name, 100 * one["near_duplicates"]) for name, one in selections.items()]
    chart = charts.bars(title, x_label, bars, note=note, form="{:.1f}%".format)
    return Figure("near-duplicates", chart, "Share of near-duplicates by selection.", f"Less is better. {note}.")


def _sources(names: Sequence[str]) -> Table:
    """Return what each selector is after, and where it comes from."""
    columns = [Column("selector"), Column("looks for"), Column("random"), Column("source")]
    rows = [
        [name, entry.maximises, "yes" if entry.is_sampled else "no", entry.source]
        for name, entry in SELECTORS.items()
        if name in names
    ]
    return Table("Selectors", columns, rows, wide=True)


def _overlap(metrics: Mapping[str, Any], note: str) -> Section:
    names, values = metrics["jaccard"]["selectors"], metrics["jaccard"]["values"]
    title, label = "Overlap of the selections", "Jaccard overlap (0 to 1)"
    chart = charts.heat_map(title, label, names, names, np.array(values), limits=(0, 1), note=note)
    caption = f"1: the same selection. 0: no document in common. {note}."
    figure = Figure("overlap", chart, "Jaccard overlap of each pair of selections.", caption)
    columns = [Column("selector"), *(Column(name, "number") for name in names)]
    rows = [[name, *row] for name, row in zip(names, values, strict=True)]
    return Section("Overlap", figures=[figure], tables=[Table("Jaccard overlap", columns, rows, wide=True)])


def _topics(metrics: Mapping[str, Any], note: str, column: str) -> Section:
    names, topics = list(metrics["selectors"]), list(metrics["topics"].items())
    drawn = topics[:DRAWN_TOPICS]
    totals = {name: max(sum(counts[name] for _, counts in topics), 1) for name in ["", *names]}
    shares = np.array([[100 * counts[name] / totals[name] for name in ["", *names]] for _, counts in drawn])
    which = ("" if len(topics) == len(drawn) else f"the {DRAWN_TOPICS} largest of ") + f"{len(topics):,} topics"
    figures = []
    if drawn:
        chart = charts.heat_map(
            "Topics", "share of the selection (%)", [topic for topic, _ in drawn], ["all documents", *names], shares,
            note=f"{note}; {which}", form="{:.1f}",
        )  # fmt: skip
        caption = f"The share of each topic in all documents and in each selection. {note}; {which}."
        figures.append(Figure("topics", chart, "Share of each topic in each selection.", caption))
    table = Table(
        "Documents by topic",
        [Column("topic"), Column("all documents", "count"), *(Column(name, "count") for name in names)],
        [[topic, *(counts[name] for name in ["", *names])] for topic, counts in drawn],
        note=f"Topics from the column {column}: {which}.",
        wide=True,
    )
    columns = [Column("selector"), Column("topics", "count"), Column("effective", "number"), Column("rarest", "share")]
    coverages = [
        [name, one["topics"], one["effective_topics"], one["rarest_topic"]]
        for name, one in metrics["selectors"].items()
    ]
    return Section("Topics", figures=figures, tables=[Table("Coverage", columns, coverages), table])
