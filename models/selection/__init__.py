"""Joint selection of documents for quality and diversity; the numbers only, no files.

Importing the package costs no torch: `select` and what belongs to it load on first use.
"""

from typing import TYPE_CHECKING

from fineweb_mask.models.settings.selection import SelectionSettings

if TYPE_CHECKING:
    from fineweb_mask.models.selection.inputs import SelectionInputError
    from fineweb_mask.models.selection.selector import Selection, select

__all__ = ["Selection", "SelectionInputError", "SelectionSettings", "select"]


def __getattr__(name: str) -> object:
    """Load the numeric part when one of its names is first used."""
    if name not in __all__:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    from fineweb_mask.models.selection import selector

    return getattr(selector, name)
