"""Prepare a run over documents that were drawn from a source, in a workspace that is removed in the end."""

import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fineweb_mask.models.settings import (
    MaterializeSettings,
    PipelineSelectionSettings,
    PipelineSettings,
    SourceSettings,
)
from fineweb_mask.models.settings.engine import EngineSettings
from fineweb_mask.tasks.audit.sample import SOURCE, WORKSPACE
from fineweb_mask.tasks.workspace.workspace import Workspace


@contextmanager
def drawn_folder(workspace: Workspace, name: str) -> Iterator[Path]:
    """Return a folder in the cache of the workspace that is removed in the end; if killed, when no run uses it."""
    with workspace.in_use():
        folder = workspace.cache / f".{name}.{uuid.uuid4().hex}.partial"
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def narrowed(settings: PipelineSettings, folder: Path) -> PipelineSettings:
    """Return a recipe with the same ingest, of the drawn source and with another workspace."""
    changes = {
        "workspace": str(folder / WORKSPACE),
        "source": SourceSettings(
            path=str(folder / SOURCE), max_document_bytes=settings.source.max_document_bytes, fingerprint="content"
        ),
        "ingest": settings.ingest.model_copy(update={"keep_dropped": True, "on_wiped_group": "warn"}),
        "selection": PipelineSelectionSettings(),
        "materialize": MaterializeSettings(memory_limit=settings.materialize.memory_limit),
        "engine": EngineSettings(workers=settings.engine.workers),
    }
    return settings.model_copy(update=changes)
