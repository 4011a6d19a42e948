"""Publish the page that a flow ends with."""

from pathlib import Path
from typing import Any, TypeVar

from fineweb_mask.flows.display.prefect_ui import publish_page, publish_table
from fineweb_mask.flows.pipeline.run import Run
from fineweb_mask.flows.summary import PageSummary

Page = TypeVar("Page", bound=PageSummary)


def published(
    kind: type[Page], run: Run, folder: Path, table: list[dict[str, Any]], description: str, **found: object
) -> Page:
    """Show a page and its table in the Prefect UI, each as an artifact, and return the summary of what was found."""
    publish_page(folder, folder.name, run.settings.workspace, description)
    publish_table(f"{folder.name}-table", run.settings.workspace, table, description)
    paths = {"page": folder / "index.html", "metrics": folder / "metrics.json"}
    return kind.of(run.workspace, run.quarantined, run.stages, **paths, **found)
