"""Write the page of a sweep: the frontier of quality and diversity, and the recommended weight of quality."""

from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any, ClassVar

from fineweb_mask.models.selection.knee import knee
from fineweb_mask.models.settings import PipelineSelectionSettings
from fineweb_mask.tasks.reporting import charts
from fineweb_mask.tasks.reporting.page import Column, Figure, Page, PageJob, Section, Tile
from fineweb_mask.tasks.selection.contenders import (
    described_settings,
    diversity_axis,
    figure_names,
    figures_table,
    over_blocks,
)
from fineweb_mask.tasks.workspace.job import Dependencies, Stage, stage_task
from fineweb_mask.tasks.workspace.references import StageFile

DEFINITIONS = (
    "Each value of lamb gives one selection by mean_field, which maximises J = lamb * quality + "
    "(1 - lamb) * diversity, less a charge for near-duplicates. No selection has a J above the upper bound. The gap is "
    "the distance from J to that bound, as a share of the distance from a random selection to it.",
    "The recommended value is the knee of the curve: the selection farthest from the straight line between the two "
    "ends, after quality and diversity are both scaled to the range from 0 to 1. It is a starting point, not the best "
    "value for every use.",
    "Quality is standardised over the corpus. A near-duplicate is a selected document that has a cosine of 0.95 or "
    "more with another selected document.",
)


class SweepJob(PageJob):
    """Write the page of a sweep."""

    stage: ClassVar[Stage] = Stage("sweep", version=1, folders=("sweep",))
    settings: PipelineSelectionSettings
    advised: str = ""  # what a recipe must also set to select as here
    lambs: tuple[float, ...]
    frontiers: list[StageFile]  # of every group of shards
    baselines: dict[str, list[StageFile]]  # by selector, of every group
    seconds: dict[str, float]  # by value or selector, as far as it is known

    def depends_on(self) -> Dependencies:
        """Return what the page says of the settings, and the fingerprints of the selections."""
        return Dependencies(
            settings=[self.settings.digested(exclude={"device"}), self.advised, self.lambs, list(self.baselines)],
            inputs=[[file.fingerprint for file in files] for files in (self.frontiers, *self.baselines.values())],
        )


@stage_task
def write_sweep_page(job: SweepJob) -> None:
    """Write `index.html`, `metrics.json` and the plots; the reference's details name the recommended value."""
    metrics = _metrics(job)
    details = {name: metrics[name] for name in ("recommended_lamb", "documents", "values", "baselines")}
    job.write(_page(job, metrics), details)


def _metrics(job: SweepJob) -> dict[str, Any]:
    values = []
    for lamb in job.lambs:
        blocks = [block for file in job.frontiers for block in file.details["blocks"] if block["lamb"] == lamb]
        values.append(
            {"lamb": lamb, **over_blocks(blocks, job.settings.weighed_by), "seconds": job.seconds.get(str(lamb))}
        )
    first = [block for file in job.frontiers for block in file.details["blocks"] if block["lamb"] == job.lambs[0]]
    axis, _ = diversity_axis(job.settings)
    best = knee([value["mean_quality"] for value in values], [value[axis] for value in values])
    return {
        "documents": sum(block["documents"] for block in first),
        "blocks": len(first),
        "recommended_lamb": None if best is None else job.lambs[best],
        "selection": job.settings.model_dump(mode="json", exclude={"device", "lamb", "solver"}),
        "values": values,
        "baselines": {
            name: {
                **over_blocks([block for file in files for block in file.details["blocks"]], job.settings.weighed_by),
                "lamb": job.settings.lamb if name == "greedy" else None,
                "seconds": job.seconds.get(name),
            }
            for name, files in job.baselines.items()
        },
    }


def _page(job: SweepJob, metrics: Mapping[str, Any]) -> Page:
    values, documents = metrics["values"], metrics["documents"]
    recommended = metrics["recommended_lamb"]
    selected = [value["selected"] for value in values]
    amount = f"{selected[0]:,}" if len(set(selected)) == 1 else f"{min(selected):,} to {max(selected):,}"
    if recommended is None:
        advice = "The trade-off is linear, so there is no knee. Pick the value that suits your use."
    else:
        advice = f"The knee is at lamb = {recommended:g}. To use it: --set selection.lamb={recommended:g}{job.advised}"
    note = f"J and gap are computed at lamb = {job.settings.lamb:g}, the value in the recipe."
    baselines = [(_named(name, one), one) for name, one in metrics["baselines"].items()]
    columns = figure_names(job.settings, [*values, *metrics["baselines"].values()])
    tables = [
        figures_table("By lamb", Column("lamb", "number"), [(value["lamb"], value) for value in values], columns),
        figures_table("Baselines", Column("selector"), baselines, columns, note),
    ]
    return Page(
        title="Quality against diversity",
        lead=f"One selection for each weight of quality (lamb). {described_settings(job.settings)}",
        tiles=[
            Tile(f"{documents:,}", "documents"),
            Tile(amount, "selected at each value"),
            Tile(str(len(values)), "values of lamb"),
            Tile("none" if recommended is None else f"{recommended:g}", "recommended lamb"),
        ],
        sections=[
            Section("Frontier", [advice], _charts(job, metrics, amount), tables),
            Section("How to read this", DEFINITIONS),
        ],
        footer=f"fineweb-mask {version('fineweb-mask')}",
        metrics=metrics,
    )


def _named(name: str, one: Mapping[str, Any]) -> str:
    return name if one["lamb"] is None else f"{name}, lamb {one['lamb']:g}"


def _charts(job: SweepJob, metrics: Mapping[str, Any], amount: str) -> list[Figure]:
    values, baselines = metrics["values"], metrics["baselines"]
    axis, y_label = diversity_axis(job.settings)
    note = f"n = {amount} of {metrics['documents']:,} documents"
    quality, diversity = [value["mean_quality"] for value in values], [value[axis] for value in values]
    marked = [job.lambs.index(metrics["recommended_lamb"])] if metrics["recommended_lamb"] is not None else []
    labels = [f"lamb {lamb:g}" if place in marked else f"{lamb:g}" for place, lamb in enumerate(job.lambs)]
    points = [charts.MapLabel(one["mean_quality"], one[axis], name) for name, one in baselines.items()]
    curve = charts.Series("mean_field at each lamb", quality, diversity, marked, labels)
    title, x_label = "Frontier of quality and diversity", "mean quality (standardised score)"
    frontier = charts.trade_off(title, x_label, y_label, points, curve=curve, note=note)
    alt = "Mean quality against diversity of the selection at each lamb, with the baselines as points."
    figures = [Figure("frontier", frontier, alt, f"Up and to the right is better. {note}.")]
    if len(values) > 1:
        both = [
            charts.Series("quality", job.lambs, _shares(quality), marked),
            charts.Series("diversity", job.lambs, _shares(diversity), marked),
        ]
        x_label, y_label = "lamb (weight of quality)", "share of the range over the sweep (%)"
        shares = charts.lines("Quality and diversity by lamb", x_label, y_label, both, note=note)
        alt = "Quality and diversity at each lamb, as a share of their range."
        caption = f"100% is the highest value over the sweep, 0% the lowest. {note}."
        figures.append(Figure("shares", shares, alt, caption))
    return figures


def _shares(values: Sequence[float]) -> list[float]:
    low, high = min(values), max(values)
    return [100 * (value - low) / (high - low) if high > low else 100.0 for value in values]
