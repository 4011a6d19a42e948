"""Write the page of a comparison: what several selectors choose under the same budget."""

from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pydantic import Field

from fineweb_mask.models.errors import SettingsError
from fineweb_mask.models.selection.measures import coverage, intersections, jaccard, relative_gap
from fineweb_mask.models.settings import PipelineSelectionSettings, SourceSettings
from fineweb_mask.models.settings.selectors.registry import SELECTORS
from fineweb_mask.tasks.reporting import charts
from fineweb_mask.tasks.reporting.page import Column, Figure, Page, PageJob, Section, Table, Tile
from fineweb_mask.tasks.selection.contenders import (
    described_settings,
    diversity_axis,
    figure_names,
    figures_table,
    over_blocks,
)
from fineweb_mask.tasks.source.column_checks import document_columns
from fineweb_mask.tasks.source.discovery import SourceShard
from fineweb_mask.tasks.storage.parquet import read_metadata, read_schema, read_table
from fineweb_mask.tasks.workspace.job import Dependencies, Stage, stage_task
from fineweb_mask.tasks.workspace.references import StageFile

DRAWN_TOPICS = 40
"""Most topics in a chart and a table; the largest ones."""
LABELS = (pa.types.is_string, pa.types.is_large_string, pa.types.is_integer, pa.types.is_boolean)
"""What a column of topics may hold."""
DEFINITIONS = (
    "The solvers maximise J = lamb * quality + (1 - lamb) * diversity, less a charge for near-duplicates; the other "
    "selectors do not know J, and have the same budget.",
    "Quality is standardised over the corpus. Diversity metrics are raw values: larger is more diverse. They are "
    "measured for every selection, whether or not it maximised them. No selection has a J above the upper bound. The "
    "gap is the distance from J to that bound, as a share of the distance from a random selection to it.",
    "A near-duplicate is a selected document that has a cosine of 0.95 or more with another selected document. The "
    "overlap of two selections is the number of documents in both, divided by the number in either (Jaccard).",
)
TOPIC_DEFINITION = (
    "Topics: the values of the label column that have a selected document. Effective: exp(entropy) of their shares, "
    "the number of equally large topics with the same entropy. Rarest: the smallest share that a topic has of the "
    "selection."
)


class LabelColumnError(SettingsError):
    """A column of topics cannot be used."""


def check_label_column(column: str, shards: Sequence[SourceShard], source: SourceSettings) -> None:
    """Check that documents will have a column of topics, before any work.

    Raises
    ------
    LabelColumnError
        If no source file that can be read has it, or it holds no labels.
    """
    columns = document_columns(shards, source, {column}) or {}
    if column not in columns:
        raise LabelColumnError(
            f"label column {column!r} must be among the documents' columns: {', '.join(sorted(columns))}"
        )
    if not any(fits(columns[column]) for fits in LABELS):
        raise LabelColumnError(
            f"label column {column!r} must hold text, integers or booleans, it holds {columns[column]}"
        )


class CompareJob(PageJob):
    """Write the page of a comparison."""

    stage: ClassVar[Stage] = Stage("compare", version=2, folders=("compare",))
    settings: PipelineSelectionSettings
    label_column: str | None
    documents: list[StageFile]
    masks: dict[str, list[StageFile]]  # by selector, in the order of the documents
    groups: dict[str, list[StageFile]]  # by selector
    seconds: dict[str, float]  # by selector, as far as it is known
    left_out: dict[str, str] = Field(default_factory=dict)  # why, by selector

    def depends_on(self) -> Dependencies:
        """Return what the page says of the settings, and the fingerprints of the selections."""
        return Dependencies(
            settings=[
                self.settings.digested(exclude={"device"}),
                self.label_column,
                list(self.groups),
                self.left_out,
            ],
            inputs=[[file.fingerprint for file in files] for files in (self.documents, *self.groups.values())],
        )


@stage_task
def write_compare_page(job: CompareJob) -> None:
    """Write `index.html`, `metrics.json` and the plots."""
    metrics = _metrics(job)
    details = {name: metrics[name] for name in ("documents", "tokens", "selectors")}
    job.write(_page(job, metrics), details)


def _metrics(job: CompareJob) -> dict[str, Any]:
    blocks = {name: [block for file in files for block in file.details["blocks"]] for name, files in job.groups.items()}
    both, topics = _overlap_and_topics(job)
    selectors = {}
    for name, own in blocks.items():
        spread = coverage([counts[name] for counts in topics.values()]) if job.label_column is not None else None
        selectors[name] = {
            **over_blocks(_with_shared_bounds(own, list(blocks.values())), job.settings.weighed_by),
            "topics": None if spread is None else spread.topics,
            "effective_topics": None if spread is None else spread.effective,
            "rarest_topic": None if spread is None else spread.rarest,
            "seconds": job.seconds.get(name),
        }
    one = next(iter(blocks.values()))
    return {
        "documents": sum(block["documents"] for block in one),
        "tokens": sum(block["tokens"] for block in one),
        "blocks": len(one),
        "selection": job.settings.model_dump(mode="json", exclude={"device", "solver"}),
        "selectors": selectors,
        "jaccard": {"selectors": list(blocks), "values": jaccard(both).tolist()},
        "topics": {topic: dict(counts) for topic, counts in topics.items()},
    }


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


def _overlap_and_topics(job: CompareJob) -> tuple[NDArray[np.int64], dict[str, Counter[str]]]:
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


def _page(job: CompareJob, metrics: Mapping[str, Any]) -> Page:
    selectors, documents = metrics["selectors"], metrics["documents"]
    best = max(selectors, key=lambda name: selectors[name]["objective"])
    selected = [one["selected"] for one in selectors.values()]
    amount = f"{selected[0]:,}" if len(set(selected)) == 1 else f"{min(selected):,} to {max(selected):,}"
    note = f"n = {amount} of {documents:,} documents each"
    sections = [
        Section("Selections", figures=_trade_offs(job, metrics, note), tables=[_table(job, metrics)]),
        _overlap(metrics, note),
    ]
    if job.label_column is not None:
        sections.append(_topics(metrics, note, job.label_column))
    definitions = DEFINITIONS if job.label_column is None else (*DEFINITIONS, TOPIC_DEFINITION)
    return Page(
        title="Comparison of selectors",
        lead=f"The same budget for all. {described_settings(job.settings)} Weight of quality: {job.settings.lamb:g}.",
        tiles=[
            Tile(f"{documents:,}", "documents"),
            Tile(amount, "selected by each"),
            Tile(str(len(selectors)), "selectors"),
            Tile(best, "highest J"),
        ],
        sections=[*sections, Section("How to read this", definitions, tables=[_sources(list(selectors))])],
        footer=f"fineweb-mask {version('fineweb-mask')}",
        metrics=metrics,
    )


def _table(job: CompareJob, metrics: Mapping[str, Any]) -> Table:
    topics = [] if job.label_column is None else ["effective_topics"]
    names = figure_names(job.settings, metrics["selectors"].values())
    names[names.index("objective") : names.index("objective")] = topics
    note = "Seconds: the selection alone. The selectors ran one after the other, each on all cores."
    note += " Topics: their effective number, explained below." if topics else ""
    if job.left_out:
        reasons = "; ".join(f"{name}: {why}" for name, why in job.left_out.items())
        note += f" Left out: {reasons}."
    return figures_table("All selectors", Column("selector"), metrics["selectors"].items(), names, note)


def _sources(names: Sequence[str]) -> Table:
    """Return what each selector is after, and where it comes from."""
    columns = [Column("selector"), Column("looks for"), Column("by chance"), Column("source")]
    rows = [
        [name, entry.maximises, "yes" if entry.is_sampled else "no", entry.source]
        for name, entry in SELECTORS.items()
        if name in names
    ]
    return Table("Selectors", columns, rows, wide=True)


def _trade_offs(job: CompareJob, metrics: Mapping[str, Any], note: str) -> list[Figure]:
    selectors = metrics["selectors"]
    axis, y_label = diversity_axis(job.settings)
    points = [charts.MapLabel(one["mean_quality"], one[axis], name) for name, one in selectors.items()]
    trade_off = charts.trade_off(
        "Quality against diversity", "mean quality (standardised score)", y_label, points, note=note
    )
    repeated = charts.bars(
        "Near-duplicates",
        "selected documents with a near-duplicate, cosine 0.95 or more (%)",
        [charts.Bar(name, 100 * one["near_duplicates"]) for name, one in selectors.items()],
        note=note,
        form="{:.1f}%".format,
    )
    return [
        Figure("trade-off", trade_off, "Mean quality against diversity, one point for each selector.",
               f"Up and to the right is better. {note}."),
        Figure("near-duplicates", repeated, "Share of near-duplicates by selector.", f"Less is better. {note}."),
    ]  # fmt: skip


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
