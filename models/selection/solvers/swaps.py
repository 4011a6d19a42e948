"""Refinement of a selection by exact swaps of a selected with an unselected document (ours).

Objectives made of quality and kernel metrics (`pairwise`, `disf`) are refined inside a pool: the selected
documents worth least and the unselected ones worth most. One Gram matrix of the pool gives the exact gain of
every swap in it, so thousands of swaps cost one product; then the worth of all documents is computed anew and
the next pool drawn, while the objective rises.

Other objectives are refined by batches of swaps chosen by each document's exact worth on its own; each batch
is evaluated, and halved until the objective rises.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from fineweb_mask.models.runtime.progress import track
from fineweb_mask.models.selection.metrics.facility import Facility
from fineweb_mask.models.selection.metrics.kernel import KernelMetric
from fineweb_mask.models.selection.metrics.pairwise import Pairwise

if TYPE_CHECKING:
    from torch import Tensor

    from fineweb_mask.models.selection.objective import Objective
    from fineweb_mask.models.selection.solvers.problem import Problem

NEAREST = 16  # neighbours of which one at most is added, and one dropped, in a round
POOL = 4096  # documents among which one round swaps
PAIRWISE_POOL = 512  # annealing leaves `pairwise` so near its optimum that few documents are undecided
LEAST_RISE = 1e-6  # of the objective: a round that gains less is the last
LEAST_GAIN = 1e-7  # of the worth's spread in the pool: smaller gains are float32 rounding


def pool_round(
    objective: Objective,
    mask: Tensor,  # (n,) bool
    pool_size: int,
    most: int,
) -> tuple[Tensor, int]:
    """Swap inside one pool, as seen through the tangent of every metric at its present v.

    D is convex in v, so the tangent never promises more than the objective then gains.

    Returns
    -------
    Tensor
        (n,) bool, the swapped selection.
    int
        Swaps made.
    """
    worth = objective.linear.clone()  # (n,) what a document adds, or if selected, what dropping it loses
    sign = torch.where(mask, 1.0, -1.0)
    kernels: list[tuple[KernelMetric, float]] = []
    for name, metric in objective.metrics.items():
        if not isinstance(metric, KernelMetric) or objective.weights[name] == 0:
            continue
        moment = metric.moment(mask)
        slope = objective.weights[name] * metric.slope(float(moment.square().sum()), objective.budget)
        worth -= slope * (2 * metric.scores(moment) - sign * metric.diagonal)
        kernels.append((metric, slope))
    half = pool_size // 2
    inside, outside = mask.nonzero()[:, 0], (~mask).nonzero()[:, 0]
    weakest = inside[worth[inside].sort(stable=True).indices[:half]]
    strongest = outside[worth[outside].sort(descending=True, stable=True).indices[:half]]
    pool = torch.cat([weakest, strongest])
    cross = torch.zeros((len(pool), len(pool)), device=pool.device)
    for metric, slope in kernels:
        features = metric.rows.take(pool)
        cross += 2 * slope * metric.kernel(features, features)
    chosen, swaps = _swap_in_pool(worth[pool].double().cpu().numpy(), cross.cpu().numpy(), len(weakest), most)
    swapped = mask.clone()
    swapped[pool] = torch.from_numpy(chosen).to(mask.device)
    return swapped, swaps


def _swap_in_pool(
    worth: np.ndarray,  # (p,) float64, the first n_inside ones selected
    cross: np.ndarray,  # (p, p) float32, what the presence of one takes off the other's worth
    n_inside: int,
    most: int,
) -> tuple[np.ndarray, int]:
    chosen = np.arange(len(worth)) < n_inside
    if n_inside in {0, len(worth)}:
        return chosen, 0
    least = LEAST_GAIN * float(np.ptp(worth))
    loss = np.where(chosen, worth, np.inf)  # of dropping
    gain = np.where(chosen, -np.inf, worth)  # of adding
    for swaps in range(most):
        # The better of: the cheapest drop with its best partner, the dearest addition with its best partner.
        out = int(loss.argmin())
        partners = gain + cross[out]
        into = int(partners.argmax())
        best = partners[into] - loss[out]
        other = int(gain.argmax())
        partners = loss - cross[other]
        drop = int(partners.argmin())
        if gain[other] - partners[drop] > best:
            out, into, best = drop, other, gain[other] - partners[drop]
        if best <= least:
            return chosen, swaps
        change = cross[out] - cross[into]
        added, dropped = gain[into], loss[out]
        loss += change
        gain += change
        loss[into] = added + cross[out, into]
        gain[into] = -np.inf
        gain[out] = dropped - cross[into, out]
        loss[out] = np.inf
        chosen[out], chosen[into] = False, True
    return chosen, most


def batch_round(
    objective: Objective,
    mask: Tensor,  # (n,) bool
    reached: float,
    most: int,
) -> tuple[Tensor, float, int]:
    """Swap the best of many pairs at once, as many as make the objective rise.

    Documents that are each other's neighbours share their worth, so of them only the best to add and the best
    to drop take part. If all pairs together do not help, the better half is tried, down to a single one.

    Returns
    -------
    Tensor
        (n,) bool, the swapped selection; `mask` itself if no swap helped.
    float
        Its objective.
    int
        Swaps made.
    """
    worth = objective.worth(mask)
    gain, loss = torch.where(mask, -torch.inf, worth), torch.where(mask, worth, torch.inf)
    add, drop = ~mask, mask
    for metric in objective.metrics.values():
        if isinstance(metric, Facility):
            near = metric.graph.index[:NEAREST]
            add, drop = add & (gain >= gain[near].amax(0)), drop & (loss <= loss[near].amin(0))
    additions, drops = add.nonzero()[:, 0], drop.nonzero()[:, 0]
    additions = additions[gain[additions].sort(descending=True, stable=True).indices]
    drops = drops[loss[drops].sort(stable=True).indices]
    pairs = min(len(additions), len(drops), most)
    pairs = int((gain[additions[:pairs]] > loss[drops[:pairs]]).sum())
    while pairs:
        swapped = mask.clone()
        swapped[drops[:pairs]], swapped[additions[:pairs]] = False, True
        value = objective.value_of(swapped)
        if value > reached:
            return swapped, value, pairs
        pairs //= 2
    return mask, reached, 0


def refine(problem: Problem, mask: Tensor) -> Tensor:
    """Swap round by round while the objective rises: (n,) bool, never worse than `mask`."""
    objective, history, settings = problem.objective, problem.history, problem.settings.mean_field
    active = objective.active.values()
    in_pools = all(isinstance(metric, KernelMetric) for metric in active)
    suited = PAIRWISE_POOL if all(isinstance(metric, Pairwise) for metric in active) else POOL
    pool_size = settings.swap_pool or suited
    reached = objective.value_of(mask)
    most = max(1, objective.budget // 8)
    for _ in track("rounds of swaps", range(settings.swap_rounds)):
        if in_pools:
            swapped, swaps = pool_round(objective, mask, pool_size, 2 * pool_size)
            value = objective.value_of(swapped)
        else:
            swapped, value, swaps = batch_round(objective, mask, reached, most)
            most = 2 * swaps
        risen = value - reached
        if swaps == 0 or risen <= 0:
            break
        mask, reached = swapped, value
        history.record(history.entries[-1][0] + 1, reached)
        if risen < LEAST_RISE * abs(reached):
            break
    return mask
