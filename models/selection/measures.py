"""Measure selections on one scale, independent of what each of them maximised. Importing it does not import torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fineweb_mask.models.errors import FinewebMaskError
from fineweb_mask.models.settings.selection import METRICS, NEAR_DUPLICATE

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

ROUNDING = 1e-4
"""Of the objective: `normalize` may magnify float32 rounding by up to a million if all documents are nearly equal."""


class FalseBoundError(FinewebMaskError, ArithmeticError):
    """A selection is better than its proven upper bound: the tangent of a metric is wrong."""


def measured(
    features: Any,  # noqa: ANN401
    quality: Any,  # noqa: ANN401
    indices: NDArray[np.integer[Any]],
    *,
    device: str | torch.device = "cpu",
    tokens: NDArray[np.integer[Any]] | None = None,
) -> dict[str, float]:
    """Measure a selection of documents (K,) from one block, features (n, d) and quality (n,).

    With tokens (n,), mean quality and metrics are means over tokens, as in the objective of a budget of tokens. Return
    "mean_quality", every metric's raw value under its name, and the rate of "near_duplicates".
    """
    import torch

    from fineweb_mask.models.selection.budget import Budget
    from fineweb_mask.models.selection.inputs import checked_column, checked_features
    from fineweb_mask.models.selection.metrics.base import metric_class
    from fineweb_mask.models.selection.neighbours import Neighbours, nearest

    place = torch.device(device)
    rows = checked_features(features, place)
    costs = torch.ones(rows.n, dtype=torch.int64, device=place)
    if tokens is not None:
        costs = torch.as_tensor(tokens, dtype=torch.int64, device=place)
    chosen = torch.as_tensor(np.asarray(indices, dtype=np.int64), device=place)
    mask = torch.zeros(rows.n, dtype=torch.bool, device=place)
    mask[chosen] = True
    budget = Budget.of(costs, int(costs[chosen].sum()))
    mean_quality = checked_column(quality, "quality", rows.n, place)[chosen].double() @ budget.shares[chosen].double()
    neighbours = nearest(rows.only(chosen), 2).similarity[1:]  # without the documents themselves
    everyone = torch.arange(rows.n, dtype=torch.int32, device=place)[None]
    lists = Neighbours(everyone, torch.ones_like(everyone, dtype=torch.float32))  # `facility` computes all others
    return {
        "mean_quality": float(mean_quality),
        **{name: float(metric_class(name)(rows, budget, lists).value(mask[None])[0]) for name in METRICS},
        "near_duplicates": near_duplicate_rate(neighbours.flatten().cpu().numpy()) or 0.0,
    }


def near_duplicate_rate(nearest: NDArray[np.floating[Any]], threshold: float = NEAR_DUPLICATE) -> float | None:
    """Return the share of cosines (n,) with the nearest other document that reach the threshold; None if n = 0."""
    return float((nearest >= threshold).mean()) if len(nearest) else None


def relative_gap(objective: float, bound: float | None, random_objective: float) -> float | None:
    """Return how far an objective may be below the best, as a share of the way there from a random selection.

    (bound - objective) / (bound - random_objective); None without a bound. An objective that exceeds the bound by more
    than rounding raises FalseBoundError.
    """
    if bound is None:
        return None
    if objective - bound > ROUNDING * max(1.0, abs(objective), abs(bound)):
        raise FalseBoundError(
            f"the objective {objective:.9g} exceeds its upper bound {bound:.9g}, which a metric's tangent is too low "
            "for: please report it"
        )
    return max(bound - objective, 0.0) / (bound - random_objective) if bound > random_objective else 0.0


def intersections(masks: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Count the documents that each two selections share, (s, n) masks: (s, s). Counts of parts of n add up."""
    return np.array([[np.count_nonzero(a & b) for b in masks] for a in masks], dtype=np.int64)


def jaccard(both: NDArray[np.int64]) -> NDArray[np.float64]:
    """Compute |A and B| / |A or B| of each two selections from the counts they share, (s, s); 1 if both are empty."""
    sizes = np.diag(both)
    either = sizes[:, None] + sizes[None] - both
    overlap: NDArray[np.float64] = np.divide(both, either, out=np.ones(both.shape), where=either > 0)
    return overlap
