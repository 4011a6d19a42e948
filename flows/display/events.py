"""Tell Prefect of a dataset that a run has written: as assets, and as events that start other deployments."""

import json
from pathlib import Path

from prefect.events import emit_event
from pydantic import BaseModel, Field

from fineweb_mask.flows.display.prefect_ui import announce, or_warn
from fineweb_mask.flows.summary import RunSummary
from fineweb_mask.models.settings import PipelineSettings
from fineweb_mask.models.urls import is_url
from fineweb_mask.tasks.storage.remote.copies import ensure_local


class Limits(BaseModel, extra="forbid"):
    """Above what of a selection an event is emitted."""

    gap: float = Field(0.05, ge=0, description="Distance from the best possible, as a share of that of random ones.")
    near_duplicates: float = Field(0.01, ge=0, le=1, description="Share of the selected documents.")


def announce_dataset(
    summary: RunSummary, settings: PipelineSettings, metrics: Path, limits: Limits, *, is_approved: bool = False
) -> None:
    """Emit what a run has written, if it has: the assets, the dataset's event, and those of figures above a limit.

    Figures are of the report's `metrics`. Of a dataset that a person has approved, which may have been written before,
    the event is emitted all the same.
    """
    written = {stage.stage for stage in summary.stages if stage.cached < stage.files}
    made = [("materialize", summary.dataset, settings.source.path), ("report", summary.report, summary.dataset)]
    made += [("export", folder, summary.dataset) for folder in summary.exports.values()]
    for stage, place, upstream in made:
        if stage in written:
            or_warn(
                emit_event,
                "prefect.asset.materialization.succeeded",
                {"prefect.resource.id": asset_key(place), "prefect.resource.name": Path(place).name},
                related=[{"prefect.resource.id": asset_key(upstream), "prefect.resource.role": "asset"}],
                payload={"documents": summary.documents_kept, "stage": stage},
            )
    if "materialize" not in written and not is_approved:
        return
    found = json.loads(ensure_local(metrics).read_bytes())
    gaps = [block["gap"] for block in found["blocks"] if block["gap"] is not None]
    figures = {
        "gap": max(gaps, default=None),  # of the block where it is widest
        "near_duplicates": found["diversity"].get("selected", {}).get("near_duplicates"),
    }
    named = ("workspace", "dataset", "report", "documents_in", "documents_kept", "objective", "terms")
    payload = {name: getattr(summary, name) for name in named} | figures
    payload |= {
        "tokens": summary.counts.tokens_selected,
        "recipe": settings.model_dump(mode="json", exclude_unset=True),
    }
    announce("dataset.published", summary.dataset, payload)
    for name, limit in limits:
        if figures[name] is not None and figures[name] > limit:
            announce("dataset.above-limit", summary.dataset, payload | {"limit": {name: limit}}, figure=name)


def asset_key(place: str) -> str:
    """Return the key of a file, folder or URL among Prefect's assets.

    >>> asset_key("s3://bucket/dataset"), asset_key("/data/my set")
    ('s3://bucket/dataset', 'file:///data/my%20set')
    """
    return place if is_url(place) else Path(place).absolute().as_uri()
