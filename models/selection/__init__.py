"""Select documents jointly for quality and diversity: numbers only, no files.

Importing the package does not import torch: settings and `measures` serve pages that compute nothing. `select`
and the names that belong to it are loaded on first use.
"""

from typing import TYPE_CHECKING

from fineweb_mask.models.settings.selection import SelectionSettings

if TYPE_CHECKING:
    from fineweb_mask.models.selection.block import Selection
    from fineweb_mask.models.selection.inputs import SelectionInputError, SelectorInputs, Targets
    from fineweb_mask.models.selection.metrics.base import Metric
    from fineweb_mask.models.selection.selector import select

__all__ = ["Metric", "Selection", "SelectionInputError", "SelectionSettings", "SelectorInputs", "Targets", "select"]


def __getattr__(name: str) -> object:
    """Import the numeric part when one of its names is first used."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from fineweb_mask.models.selection import selector

    return getattr(selector, name)
