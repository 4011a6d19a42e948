"""Find the marginal gain of a document that came after a selection, by any objective.

The selection reported how far every document's gain is from the threshold. With the raw gain of each term, which is
computed for all documents and the newcomer, the weights and the threshold are the solution of linear equations: the
objective's scales, which take long to find, are not needed.
"""

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from fineweb_mask.models.ledger.standing import LEAST, margin
from fineweb_mask.models.selection.block import checked_block
from fineweb_mask.models.selection.metrics.base import SupportsGradient, SupportsMarginalGains
from fineweb_mask.models.settings.selection import SelectionSettings

LEAST_KNOWN = 10
"""Documents of known gain for each unknown weight."""


class Newcomer(NamedTuple):
    """The marginal gain of a document that the selection did not see."""

    margin: float  # above the threshold, in deviations of all marginal gains
    fit: float  # R^2 of the equations over the documents of known gain; 1: the gains are exactly explained


def newcomer(
    vectors: NDArray[np.floating[Any]],
    quality: NDArray[np.float32],
    settings: SelectionSettings,
    selected: NDArray[np.bool_],
    inclusion: NDArray[np.floating[Any]],
    tokens: NDArray[np.int64] | None = None,
) -> Newcomer | None:
    """Return the marginal gain of the last of n + 1 documents, or None if too few gains are known.

    Parameters
    ----------
    vectors, quality, tokens
        Of the n documents that were selected from, and of the newcomer: (n + 1, d), (n + 1,) and (n + 1,).
    settings
        Those of the selection, by `mean_field`.
    selected, inclusion
        What it reported of its documents, (n,) each.
    """
    block = checked_block(vectors, quality, settings, device="cpu", tokens=tokens)
    mask = torch.from_numpy(np.append(selected, False))
    masses = torch.ones_like(block.quality) if block.knapsack is None else block.knapsack.masses
    columns = [block.quality * masses, masses]  # what a document takes of the means' denominator costs gain, too
    terms = [*block.metrics.values(), *([] if block.near_duplicates is None else [block.near_duplicates[0]])]
    for metric in terms:
        if isinstance(metric, SupportsMarginalGains):
            columns.append(metric.marginal_gains(mask).float())
        elif isinstance(metric, SupportsGradient):
            columns.append(metric.gradient(mask.float()).float())
    raw = torch.stack(columns, dim=1).double().numpy()
    if block.knapsack is not None:
        raw /= block.knapsack.costs.double().numpy()[:, None]
    scale = raw.std(axis=0)
    table = np.column_stack([(raw - raw.mean(axis=0)) / np.where(scale > 0, scale, 1), np.ones(len(raw))])
    known = np.flatnonzero((inclusion > LEAST) & (inclusion < 1 - LEAST))
    if len(known) < LEAST_KNOWN * table.shape[1]:
        return None
    wanted = np.array([margin(float(one)) for one in inclusion[known]])
    weights, *_ = np.linalg.lstsq(table[known], wanted, rcond=None)
    error = wanted - table[known] @ weights
    return Newcomer(float(table[-1] @ weights), float(1 - error.var() / max(wanted.var(), 1e-12)))
