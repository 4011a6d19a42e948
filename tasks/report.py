"""Report: a self-contained HTML page on what went in, what came out and why; its numbers and its plots as files."""

import base64
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from tasks.accounting import Counts
from tasks.lake import (
    StageFile,
    StageKey,
    Workspace,
    digest,
    is_whole,
    manifest_reference,
    read_manifest,
    write_manifest,
    written_file,
)
from tasks.materialize import MaterializeShard
from tasks.stage import StageJob, build_once, stage_task
from tasks.templating import render

if TYPE_CHECKING:
    from matplotlib.figure import Figure

VERSION = 2
BINS = 40
BEFORE, AFTER = "#9aa5b1", "#0072b2"  # told apart by colour-blind readers too (Okabe and Ito)


class ReportJob(StageJob):
    """Write the report of a dataset."""

    dataset: StageFile
    shards: list[MaterializeShard]
    counts: Counts
    blocks: list[dict[str, Any]]
    stages: list[dict[str, Any]]  # of the run that the report is first written in: name, seconds, files, cached

    @property
    def manifest_path(self) -> Path:
        """The manifest of the report's files."""
        return self.lake.reports / "manifest.json"

    def current(self) -> StageFile | None:
        """Return a reference to the report if it is whole and of this dataset, else None."""
        manifest = read_manifest(self.manifest_path)
        if manifest is None or manifest.key != self.key or not is_whole(self.manifest_path, manifest):
            return None
        return manifest_reference(self.lake, self.manifest_path, self.name, manifest)


def plan(
    workspace: Workspace,
    *,
    dataset: StageFile,
    shards: list[MaterializeShard],
    counts: Counts,
    blocks: list[dict[str, Any]],
    stages: list[dict[str, Any]],
) -> ReportJob:
    """Return the job that reports on a dataset."""
    key = StageKey(stage="report", version=VERSION, settings=digest([]), inputs=digest([dataset.fingerprint]))
    return ReportJob(
        workspace=str(workspace.root),
        name="report",
        key=key,
        dataset=dataset,
        shards=shards,
        counts=counts,
        blocks=blocks,
        stages=stages,
    )


def report(job: ReportJob) -> StageFile:
    """Write `index.html`, `metrics.json` and the plots in `plots/`."""
    return build_once(job, lambda: _build(job))


def _build(job: ReportJob) -> None:
    columns = _read_columns(job)
    provenance = job.dataset.details
    selected = columns["selected"]
    figures = {
        "quality": _histogram("Quality before and after", "quality (standardised)", columns["quality"], selected),
        "length": _histogram("Length before and after", "characters (log10)", np.log10(columns["n_chars"]), selected),
        "retention": _retention(provenance["retention"]),
    }
    if job.blocks and job.blocks[0]["history"]:
        figures["learning-curve"] = _learning_curve(job.blocks[0])
    plots = {name: _png(figure) for name, figure in figures.items()}
    metrics = {
        "counts": job.counts.model_dump(),
        "retention": provenance["retention"],
        "stages": job.stages,
        "blocks": job.blocks,
    }
    page = render(
        "report.html",
        counts=job.counts,
        blocks=job.blocks,
        stages=job.stages,
        retention=provenance["retention"],
        figures=[base64.b64encode(plot).decode() for plot in plots.values()],
        captions=[figure.axes[0].get_title() for figure in figures.values()],
        code=provenance["code"],
    )
    outputs = {
        job.lake.reports / "index.html": page.encode(),
        job.lake.reports / "metrics.json": (json.dumps(metrics, indent=2) + "\n").encode(),
        **{job.lake.reports / "plots" / f"{name}.png": plot for name, plot in plots.items()},
    }
    for path, content in outputs.items():
        with written_file(path) as partial:
            partial.write_bytes(content)
    write_manifest(job.manifest_path, job.key, outputs, {})


def _read_columns(job: ReportJob) -> dict[str, NDArray[Any]]:
    """Return quality, length and selection of every eligible document."""
    parts: dict[str, list[NDArray[Any]]] = {"quality": [], "n_chars": [], "selected": []}
    for shard in job.shards:
        masks = pq.read_table(job.lake.resolve(shard.masks), columns=["selected", "block"])
        eligible = masks["block"].is_valid().to_numpy()
        parts["selected"].append(masks["selected"].to_numpy()[eligible])
        for file, name in ((shard.scores, "quality"), (shard.documents, "n_chars")):
            parts[name].append(pq.read_table(job.lake.resolve(file), columns=[name])[name].to_numpy()[eligible])
    return {name: np.concatenate(arrays) for name, arrays in parts.items()}


def _figure(title: str, x_label: str, y_label: str) -> "Figure":
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 3.6), dpi=130, layout="constrained")
    axes = figure.subplots()
    axes.set_title(title, loc="left", fontsize=11, fontweight="bold")
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def _histogram(title: str, x_label: str, values: NDArray[Any], selected: NDArray[np.bool_]) -> "Figure":
    figure = _figure(title, x_label, "share of documents")
    axes = figure.axes[0]
    low, high = np.quantile(values, [0.001, 0.999]) if len(values) else (0.0, 1.0)
    edges = np.linspace(low, max(high, low + 1e-6), BINS + 1)
    for name, part, colour, filled in (
        ("eligible", values, BEFORE, True),
        ("selected", values[selected], AFTER, False),
    ):
        heights, _ = np.histogram(np.clip(part, low, high), edges)
        label = f"{name} (n = {len(part):,})"
        axes.stairs(heights / max(len(part), 1), edges, fill=filled, color=colour, label=label, linewidth=2)
    axes.legend(frameon=False)
    return figure


def _retention(rows: Sequence[dict[str, Any]]) -> "Figure":
    top = sorted(rows, key=lambda row: row["documents"], reverse=True)[:30]
    title = "Share selected by dump" if len(top) == len(rows) else "Share selected by dump (30 largest)"
    figure = _figure(title, "selected of the ingested documents (%)", "")
    figure.set_size_inches(6.4, max(2.4, 0.28 * len(top) + 1.4))
    labels = [_label(row["dump"][:32]) for row in top]
    shares = [100 * row["selected"] / row["documents"] for row in top]
    bars = figure.axes[0].barh(range(len(top)), shares, color=AFTER, height=0.6)
    figure.axes[0].bar_label(bars, [f"n = {row['documents']:,}" for row in top], padding=3, fontsize=8)
    figure.axes[0].set_yticks(range(len(top)), labels)
    figure.axes[0].invert_yaxis()
    figure.axes[0].margins(x=0.18)
    return figure


def _learning_curve(block: dict[str, Any]) -> "Figure":
    figure = _figure("Learning curve of the first block", "step", "objective")
    axes = figure.axes[0]
    steps, values = zip(*block["history"], strict=True)
    axes.plot(steps, values, color=AFTER, linewidth=2, marker="o", markersize=3, label="objective")
    axes.axhline(block["random_objective"], color=BEFORE, linestyle=":", label="random selection")
    if block["upper_bound"] is not None:
        axes.axhline(block["upper_bound"], color="#d55e00", linestyle="--", label="upper bound on any selection")
    axes.legend(frameon=False)
    return figure


def _label(text: str) -> str:
    """Return a text as matplotlib can draw it: no markup, and only Latin letters, which its font surely has."""
    latin = "".join(c if ord(c) < 0x250 else "?" for c in text if c.isprintable())
    return latin.replace("$", r"\$")


def _png(figure: "Figure") -> bytes:
    stream = io.BytesIO()
    figure.savefig(stream, format="png")
    return stream.getvalue()


report_task = stage_task(report)
