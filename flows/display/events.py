"""Tell Prefect of a dataset that a run has written, by an event that automations can wait for."""

import json
from pathlib import Path

from fineweb_mask.flows.display.prefect_ui import announce
from fineweb_mask.flows.summary import RunSummary
from fineweb_mask.models.settings import PipelineSettings
from fineweb_mask.tasks.storage.remote.copies import ensure_local


def announce_dataset(summary: RunSummary, settings: PipelineSettings, metrics: Path) -> None:
    """Emit the event of a dataset that a run has written, if it has, with figures of the report's `metrics`."""
    if not any(stage.stage == "materialize" and stage.cached < stage.files for stage in summary.stages):
        return
    found = json.loads(ensure_local(metrics).read_bytes())
    gaps = [block["gap"] for block in found["blocks"] if block["gap"] is not None]
    named = ("workspace", "dataset", "report", "documents_in", "documents_kept", "objective", "terms")
    payload = {name: getattr(summary, name) for name in named} | {
        "gap": max(gaps, default=None),  # of the block where it is widest
        "near_duplicates": found["diversity"].get("selected", {}).get("near_duplicates"),
        "tokens": summary.counts.tokens_selected,
        "recipe": settings.model_dump(mode="json", exclude_unset=True),
    }
    announce("dataset.published", summary.dataset, payload)
