"""Refine a selection by swapping selected for unselected documents (ours).

Objectives of quality and metrics with a `swap_model` (all but `facility`) are refined inside a pool: the selected
documents of least marginal gain and the unselected ones of most. One matrix of the pool gives the gain of every swap
in it, for `pairwise` and `disf` exactly, so thousands of swaps cost one product. Then all marginal gains are computed
again and the next pool is drawn, as long as the objective rises. Where a metric does not promise its gains
(`swaps_as_promised`), a round that does not help is repeated with half the swaps.

Other objectives are refined by batches of swaps, chosen by the marginal gain of each document. A batch is halved
until it raises the objective.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fineweb_mask.models.runtime.progress import track
from fineweb_mask.models.selection.metrics.base import SupportsNeighbours, SupportsSwaps
from fineweb_mask.models.selection.problem.objective import Objective
from fineweb_mask.models.selection.solvers.problem import Problem
from fineweb_mask.models.selection.solvers.token_swaps import dual_price, exchanged, polish, swap_in_pool

NEAREST = 16  # neighbours, of which at most one is added and one dropped in a round
ROUNDS_OF_SWAPS = 20  # at most: what they gain falls from round to round, and LEAST_RISE ends them before
QUALITY_POOL = 512  # documents among which one round swaps where quality alone counts
LEAST_RISE = 1e-6  # share of the objective: a round that gains less is the last
LEAST_GAIN = 1e-7  # share of the range of gains in the pool: less is float32 rounding


def pool_round(objective: Objective, mask: Tensor, pool_size: int, most: int) -> tuple[Tensor, int]:
    """Make at most `most` swaps inside one pool, by the swap model of every metric: (n,) bool, and their number."""
    models = [
        metric.swap_model(mask, objective.weights[name])
        for name, metric in objective.active.items()
        if isinstance(metric, SupportsSwaps)
    ]
    gains = objective.linear.clone()  # (n,) gain from adding a document, or loss from dropping it
    for model in models:
        gains += model.gains
    half, priority, knapsack = pool_size // 2, objective.priority(gains), objective.knapsack
    inside, outside = mask.nonzero()[:, 0], (~mask).nonzero()[:, 0]
    weakest = inside[priority[inside].sort(stable=True).indices[:half]]
    strongest = outside[priority[outside].sort(descending=True, stable=True).indices[:half]]
    pool = torch.cat([weakest, strongest])
    cross = torch.zeros((len(pool), len(pool)), device=pool.device)
    for model in models:
        cross += model.cross(pool)
    if knapsack is None:
        chosen, swaps = _swap_in_pool(gains[pool].double().cpu().numpy(), cross.cpu().numpy(), len(weakest), most)
    else:
        reduced = gains.double() - dual_price(knapsack, gains) * knapsack.costs
        chosen, swaps = swap_in_pool(
            reduced[pool].cpu().numpy(),
            cross.cpu().numpy(),
            knapsack.tokens[pool].cpu().numpy(),
            np.arange(len(pool)) < len(weakest),
            room=knapsack.limit - int(knapsack.tokens[mask].sum()),
            most=most,
        )
    swapped = mask.clone()
    swapped[pool] = torch.from_numpy(chosen).to(mask.device)
    return swapped if knapsack is None else knapsack.fill(priority, swapped), swaps


def _swap_in_pool(
    gains: NDArray[np.float64],  # (p,), the first n_inside documents are selected
    cross: NDArray[np.float32],  # (p, p), how much one document reduces the gains of the other
    n_inside: int,
    most: int,
) -> tuple[NDArray[np.bool_], int]:
    chosen = np.arange(len(gains)) < n_inside
    if n_inside in {0, len(gains)}:
        return chosen, 0
    least = LEAST_GAIN * float(np.ptp(gains))
    loss = np.where(chosen, gains, np.inf)  # from dropping
    gain = np.where(chosen, -np.inf, gains)  # from adding
    for swaps in range(most):
        # The better of the cheapest drop and the best addition, each with its best partner.
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


def batch_round(objective: Objective, mask: Tensor, reached: float, most: int) -> tuple[Tensor, float, int]:
    """Swap as many pairs at once as raise the objective: (n,) bool, its objective, the swaps made.

    Neighbours share their gains, so of each neighbourhood only the best document to add and the best to drop take
    part. If all pairs together do not help, the better half is tried, and so on down to one pair. If no swap helps, the
    result is `mask` itself.
    """
    gains = objective.priority(objective.marginal_gains(mask))
    gain, loss = torch.where(mask, -torch.inf, gains), torch.where(mask, gains, torch.inf)
    add, drop = ~mask, mask
    for metric in objective.metrics.values():
        if isinstance(metric, SupportsNeighbours):
            near = metric.neighbours(NEAREST)
            add, drop = add & (gain >= gain[near].amax(0)), drop & (loss <= loss[near].amin(0))
    additions, drops = add.nonzero()[:, 0], drop.nonzero()[:, 0]
    additions = additions[gain[additions].sort(descending=True, stable=True).indices]
    drops = drops[loss[drops].sort(stable=True).indices]
    pairs = min(len(additions), len(drops), most)
    pairs = int((gain[additions[:pairs]] > loss[drops[:pairs]]).sum())
    while pairs:
        if objective.knapsack is not None:
            swapped = exchanged(objective.knapsack, mask, drops[:pairs], additions, gains)
        else:
            swapped = mask.clone()
            swapped[drops[:pairs]], swapped[additions[:pairs]] = False, True
        value = objective.value_of(swapped)
        if value > reached:
            return swapped, value, pairs
        pairs //= 2
    return mask, reached, 0


def refine(problem: Problem, mask: Tensor, rounds: int = ROUNDS_OF_SWAPS) -> Tensor:
    """Swap round by round, at most so often, while the objective rises: (n,) bool, never worse than `mask`."""
    objective, history = problem.objective, problem.history
    swapping = [metric for metric in objective.active.values() if isinstance(metric, SupportsSwaps)]
    in_pools = len(swapping) == len(objective.active)
    pool_size = max((metric.swap_pool for metric in swapping), default=QUALITY_POOL)
    as_promised = all(metric.swaps_as_promised for metric in swapping)
    reached = objective.value_of(mask)
    most = max(1, objective.budget // 8)
    for _ in track("rounds of swaps", range(rounds)):
        if in_pools:
            swapped, swaps = pool_round(objective, mask, pool_size, 2 * pool_size)
            value = objective.value_of(swapped)
            while value <= reached and swaps > 1 and not as_promised:
                swapped, swaps = pool_round(objective, mask, pool_size, swaps // 2)
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
    return polish(objective, mask)
