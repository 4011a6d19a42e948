"""Select a smaller, better pre-training set from raw web text.

>>> import numpy as np
>>> import fineweb_mask as fm
>>> random = np.random.default_rng(0)
>>> vectors, quality = random.normal(size=(1_000, 16)), random.random(1_000)
>>> selection = fm.select(vectors, quality, select_ratio=0.2, lamb=0.9)
>>> len(selection.indices), bool(selection.gap < 0.01)
(200, True)

The whole pipeline, from raw documents to a dataset, is `fm.curate("my_recipe.yaml")`; what it made is read by
`fm.open("workspaces/mine").selected`.
A name is imported on first use, so `import fineweb_mask` alone loads neither torch nor Prefect.
"""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fineweb_mask.flows.compare import CompareSummary
    from fineweb_mask.flows.ledger import diff
    from fineweb_mask.flows.python.opened import OpenedWorkspace
    from fineweb_mask.flows.python.opened import open_workspace as open  # noqa: A004 - fineweb_mask.open, as gzip.open
    from fineweb_mask.flows.python.start import compare, curate
    from fineweb_mask.flows.recipe import load_recipe
    from fineweb_mask.flows.summary import RunSummary
    from fineweb_mask.models.errors import (
        DataError,
        FinewebMaskError,
        ModelError,
        SettingsError,
        StorageError,
        WorkspaceError,
    )
    from fineweb_mask.models.selection.block import Selection
    from fineweb_mask.models.selection.inputs import SelectorInputs, Targets
    from fineweb_mask.models.selection.metrics.base import Metric
    from fineweb_mask.models.selection.selector import select
    from fineweb_mask.models.settings import PipelineSettings
    from fineweb_mask.models.settings.selection import SelectionSettings
    from fineweb_mask.tasks.ledger.difference import DiffSummary

    __version__: str

__all__ = [
    "CompareSummary",
    "DataError",
    "DiffSummary",
    "FinewebMaskError",
    "Metric",
    "ModelError",
    "OpenedWorkspace",
    "PipelineSettings",
    "RunSummary",
    "Selection",
    "SelectionSettings",
    "SelectorInputs",
    "SettingsError",
    "StorageError",
    "Targets",
    "WorkspaceError",
    "__version__",
    "compare",
    "curate",
    "diff",
    "load_recipe",
    "open",
    "select",
]
_MODULES = {
    "flows.compare": ("CompareSummary",),
    "flows.python.start": ("compare", "curate"),
    "flows.ledger": ("diff",),
    "flows.python.opened": ("OpenedWorkspace", "open_workspace"),
    "flows.recipe": ("load_recipe",),
    "flows.summary": ("RunSummary",),
    "models.selection.block": ("Selection",),
    "models.selection.inputs": ("SelectorInputs", "Targets"),
    "models.selection.metrics.base": ("Metric",),
    "models.selection.selector": ("select",),
    "models.settings": ("PipelineSettings",),
    "models.settings.selection": ("SelectionSettings",),
    "tasks.ledger.difference": ("DiffSummary",),
}
_NAMED = {"open": "open_workspace"}


def __getattr__(name: str) -> object:
    """Import a public name on first use."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "__version__":
        value: object = version("fineweb-mask")
    else:
        own = _NAMED.get(name, name)
        module = next((module for module, names in _MODULES.items() if own in names), "models.errors")
        value = getattr(import_module(f"{__name__}.{module}"), own)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
