"""Divide a budget among groups, each of which is selected from by itself. It does not import torch."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fineweb_mask.models.errors import SettingsError

NEARLY = 1e-6
"""What a number may be below a whole one by rounding."""
LISTED = 20
"""Groups that an error names."""


def whole(wanted: NDArray[np.float64], total: int) -> NDArray[np.int64]:
    """Round numbers (c,) that add up to a total: those that are nearest to one more get what is left.

    >>> whole(np.array([2.3, 2.9, 0, 2.8]), 8).tolist()
    [2, 3, 0, 3]
    """
    counts = np.floor(wanted + NEARLY).astype(np.int64)
    counts[np.argsort(counts - wanted, kind="stable")[: total - int(counts.sum())]] += 1
    return counts


def divided(budget: float, shares: NDArray[np.float64], sizes: NDArray[np.int64]) -> NDArray[np.float64]:
    """Divide a budget in proportion to shares (c,), none more than its size (c,): what is left goes to the others.

    >>> divided(50, np.array([0.5, 0.5, 0]), np.array([80, 20, 9])).tolist()
    [30.0, 20.0, 0.0]
    """
    given, open_ = np.zeros(len(sizes)), shares > 0
    while open_.any():
        parts = np.where(open_, shares, 0) * ((budget - given.sum()) / shares[open_].sum())
        full = open_ & (parts >= sizes)
        if not full.any():
            given += parts
            break
        given[full] = sizes[full]
        open_ &= ~full
    return given


class GroupShare(NamedTuple):
    """Which share of a group's documents, or tokens, is selected."""

    asked: float  # as its share of the budget wants: above 1 if the group has too few
    given: float  # with what other groups cannot fill: 1 at most


def group_shares(shares: str | Mapping[str, float], ratio: float, sizes: Mapping[str, int]) -> dict[str, GroupShare]:
    """Return the share of each group that is selected, so that all together are a share of the corpus.

    What a group has too few for goes to the others, in proportion to their shares of the budget.

    Parameters
    ----------
    shares
        "equal", or the share of the budget of each group; others have none.
    ratio
        Share of the corpus that is selected.
    sizes
        Documents, or tokens, of each group.

    Raises
    ------
    SettingsError
        If a group that has a share has no documents.

    Examples
    --------
    >>> group_shares("equal", 0.5, {"a": 80, "b": 20})
    {'a': GroupShare(asked=0.3125, given=0.375), 'b': GroupShare(asked=1.25, given=1.0)}
    """
    held = {name: size for name, size in sorted(sizes.items()) if size}
    if isinstance(shares, Mapping):
        if missing := sorted(set(shares) - set(held)):
            raise SettingsError(
                f"selection.groups.shares: no document is in {', '.join(map(repr, missing))}; the groups are "
                f"{', '.join(map(repr, list(held)[:LISTED]))}: correct the names, or leave them out"
            )
    else:
        shares = dict.fromkeys(held, 1 / max(len(held), 1))
    budget, counts = ratio * sum(held.values()), np.array(list(held.values()), dtype=np.int64)
    wanted = np.array([shares.get(name, 0.0) for name in held])
    asked, given = wanted * budget / counts, divided(budget, wanted, counts) / counts
    return dict(zip(held, map(GroupShare, asked.tolist(), given.tolist()), strict=True))
