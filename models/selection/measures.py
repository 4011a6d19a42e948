"""What selections are compared by, whatever each of them maximised."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from fineweb_mask.models.selection.inputs import checked_features, checked_quality
from fineweb_mask.models.selection.neighbours import nearest
from fineweb_mask.models.selection.objective import METRICS
from fineweb_mask.models.selection.rows import Rows

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

NEAR_DUPLICATE = 0.95  # cosine of two documents from which one nearly repeats the other


class Measures:
    """One block of documents, on which selections are measured by every built-in metric in its raw value.

    Parameters
    ----------
    features
        (n, d) float16 or float32.
    quality
        (n,) float32.
    device
        Where it is computed.
    """

    def __init__(self, features: Any, quality: Any, *, device: str | torch.device = "cpu") -> None:  # noqa: ANN401
        place = torch.device(device)
        self._rows = checked_features(features, place)
        self._quality = checked_quality(quality, self._rows.n, place, None)
        self._metrics = {name: kind(self._rows) for name, kind in METRICS.items()}

    def of(self, indices: NDArray[np.integer[Any]]) -> dict[str, float]:
        """Measure a selection: its mean quality, every metric's raw value, its rate of near-duplicates.

        Parameters
        ----------
        indices
            (K,) the selected documents.
        """
        chosen = torch.as_tensor(np.asarray(indices, dtype=np.int64), device=self._rows.device)
        mask = torch.zeros(self._rows.n, dtype=torch.bool, device=self._rows.device)
        mask[chosen] = True
        return {
            "mean_quality": float(self._quality[chosen].mean(dtype=torch.float64)),
            **{name: float(metric.value(mask[None])[0]) for name, metric in self._metrics.items()},
            "near_duplicates": near_duplicate_rate(Rows(self._rows.take(chosen))),
        }


def near_duplicate_rate(rows: Rows, threshold: float = NEAR_DUPLICATE) -> float:
    """Give the share of unit rows (K, d) whose nearest other row has a cosine of at least `threshold`."""
    if rows.n < 2:
        return 0.0
    return float((nearest(rows, 2).similarity[1] >= threshold).double().mean())


def intersections(masks: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Count what every two of some selections (s, n) share: (s, s); the counts of several parts of n add up."""
    return np.array([[np.count_nonzero(a & b) for b in masks] for a in masks], dtype=np.int64)


def jaccard(both: NDArray[np.int64]) -> NDArray[np.float64]:
    """Give |A and B| / |A or B| for every two of some selections.

    Parameters
    ----------
    both
        (s, s), what every two share; on the diagonal the size of each.

    Returns
    -------
    ndarray
        (s, s); two empty selections are equal.
    """
    sizes = np.diag(both)
    either = sizes[:, None] + sizes[None] - both
    overlap: NDArray[np.float64] = np.divide(both, either, out=np.ones(both.shape), where=either > 0)
    return overlap


class Coverage(NamedTuple):
    """How a selection spreads over known topics."""

    topics: int  # that have a selected document
    effective: float  # exp of the entropy of the selection's topics: as many equally large ones
    rarest: float  # share of the selection that its rarest topic has, 0 where one is missing


def coverage(selected: ArrayLike) -> Coverage:
    """Say how a selection spreads over topics.

    Parameters
    ----------
    selected
        (t,) selected documents of each topic of the corpus.
    """
    counts = np.asarray(selected, dtype=np.float64)
    if not counts.sum():
        return Coverage(0, 0.0, 0.0)
    shares = counts / counts.sum()
    held = shares[shares > 0]
    return Coverage(len(held), float(np.exp(-(held * np.log(held)).sum())), float(shares.min()))
