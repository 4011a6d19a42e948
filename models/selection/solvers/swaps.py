"""Refine a selection by swapping selected for unselected documents (ours).

Objectives of quality and metrics with a `swap_model` (all but `facility`) are refined inside a pool: the selected
documents of least marginal gain and the unselected ones of most. One matrix of the pool gives the gain of every swap
in it, for `pairwise` and `disf` exactly, so thousands of swaps cost one product. Then all marginal gains are computed
again and the next pool is drawn, as long as the objective rises.

Where gains are costly (`SupportsFocus`), they are those of the selected documents and of as many others: the best when
the gains of all were last computed, which is at the start and whenever no swap among these documents helps.

Other objectives are refined by batches of swaps, chosen by the marginal gain of each document. A batch is halved
until it raises the objective.

With a budget of tokens, documents are of unequal length. A document's marginal gain is compared at the dual price of
tokens: the gain of the last token that fits. A swap keeps within the budget, and dropping or adding alone is a swap
with nobody. What room is left after a round is filled.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fineweb_mask.models.runtime.progress import track
from fineweb_mask.models.selection.metrics.base import SupportsNeighbours, SupportsSwaps
from fineweb_mask.models.selection.problem.objective import Objective
from fineweb_mask.models.selection.problem.token_budget import Knapsack
from fineweb_mask.models.selection.solvers.problem import Problem

NEAREST = 16  # neighbours, of which at most one is added and one dropped in a round
ROUNDS_OF_SWAPS = 20  # at most: what they gain falls from round to round, and LEAST_RISE ends them before
QUALITY_POOL = 512  # documents among which one round swaps where quality alone counts
LEAST_RISE = 1e-6  # share of the objective: a round that gains less is the last
LEAST_GAIN = 1e-7  # share of the range of gains in the pool: less is float32 rounding
CANDIDATES = 16  # cheapest drops and best additions, each of which is tried with every partner that fits
LEAST_EXCHANGE = 1e-6  # share of the sizes of the objective's terms: less is rounding, and could go round in circles
NOBODY, FEWEST = 1 / 8, 8  # share of a pool: places without a document on either side, and the fewest
SMALL = 64  # most documents for which every swap is evaluated exactly


def pool_round(objective: Objective, mask: Tensor, pool_size: int) -> tuple[Tensor, int]:
    """Make swaps inside one pool, by the swap model of every metric: (n,) bool, and their number."""
    most = 2 * pool_size
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
        chosen, swaps = _swap_one_for_one(gains[pool].double().cpu().numpy(), cross.cpu().numpy(), len(weakest), most)
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


def _swap_one_for_one(
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


def refine(problem: Problem, mask: Tensor, rounds: int = ROUNDS_OF_SWAPS, least_rise: float = 0.0) -> Tensor:
    """Swap round by round, at most so often, while the objective rises: (n,) bool, never worse than `mask`.

    Inside pools, a round that gains less than `least_rise` of what was gained since the history began is the last.
    """
    objective, history = problem.objective, problem.history
    swapping = [metric for metric in objective.active.values() if isinstance(metric, SupportsSwaps)]
    in_pools = len(swapping) == len(objective.active)
    pool_size = max((metric.swap_pool for metric in swapping), default=QUALITY_POOL)
    reached = objective.value_of(mask)
    largest_batch = most = max(1, objective.budget // 8)
    seen, saw_all = _seen(objective, mask), True
    for _ in track("rounds of swaps", range(rounds)):
        if in_pools:
            swapped, swaps = pool_round(seen, mask, pool_size)
            value = seen.value_of(swapped)
        else:
            swapped, value, swaps = batch_round(seen, mask, reached, most)
            most = 2 * swaps
        risen = value - reached
        if swaps > 0 and risen > 0:
            mask, reached = swapped, value
            history.record(history.entries[-1][0] + 1, reached)
        if in_pools and least_rise and risen < least_rise * (reached - history.entries[0][2]):
            break
        if swaps > 0 and risen >= LEAST_RISE * abs(reached):
            saw_all = False
        elif seen is objective or saw_all:
            break
        else:  # among these documents no swap helps: look at all again
            seen, saw_all, most = _seen(objective, mask), True, largest_batch
    return polish(objective, mask)


def _seen(objective: Objective, mask: Tensor) -> Objective:
    """Look at the documents alone that may be swapped, where that saves time."""
    if not objective.may_focus:
        return objective
    return objective.focused(objective.contenders(objective.marginal_gains(mask), mask))


def dual_price(knapsack: Knapsack, gains: Tensor) -> float:
    """Return the gain per cost at which documents of marginal gains (n,), sorted by it, fill the budget."""
    ratio = gains.double() / knapsack.costs
    order = ratio.sort(descending=True, stable=True).indices
    last = int((knapsack.tokens[order].cumsum(0) <= knapsack.limit).sum())
    return float(ratio[order[min(last, len(order) - 1)]])


def swap_in_pool(
    gains: NDArray[np.float64],  # (p,), less the dual price of the tokens
    cross: NDArray[np.float32],  # (p, p), how much one document reduces the gains of the other
    lengths: NDArray[np.int64],  # (p,) tokens
    chosen: NDArray[np.bool_],  # (p,)
    *,
    room: int,  # tokens
    most: int,
) -> tuple[NDArray[np.bool_], int]:
    """Make at most `most` swaps, each the best of those considered: which are selected (p,), and the swaps made."""
    n = len(gains)
    nobody = max(FEWEST, round(NOBODY * n))
    gains = np.append(gains, np.zeros(2 * nobody))
    lengths = np.append(lengths, np.zeros(2 * nobody, dtype=np.int64))
    cross = np.pad(cross, (0, 2 * nobody))
    chosen = np.append(chosen, np.arange(2 * nobody) < nobody)
    least = LEAST_GAIN * float(np.ptp(gains))
    for swaps in range(most):
        inside, outside = np.flatnonzero(chosen), np.flatnonzero(~chosen)
        drops, additions = _smallest(inside, gains[inside]), _smallest(outside, -gains[outside])
        found = [
            _best_pair(gains, cross, lengths, drops, outside, room),
            _best_pair(gains, cross, lengths, inside, additions, room),
        ]
        best, out, into = max(found)
        if best <= least:
            return chosen[:n], swaps
        gains += np.where(np.arange(len(gains)) != out, cross[out], 0) - np.where(
            np.arange(len(gains)) != into, cross[into], 0
        )
        room += int(lengths[out] - lengths[into])
        chosen[out], chosen[into] = False, True
    return chosen[:n], most


def _smallest(documents: NDArray[np.int64], values: NDArray[np.float64]) -> NDArray[np.int64]:
    if len(documents) <= CANDIDATES:
        return documents
    return documents[np.argpartition(values, CANDIDATES)[:CANDIDATES]]


def _best_pair(
    gains: NDArray[np.float64],
    cross: NDArray[np.float32],
    lengths: NDArray[np.int64],
    drops: NDArray[np.int64],
    additions: NDArray[np.int64],
    room: int,
) -> tuple[float, int, int]:
    """Find the best swap of one of the drops for one of the additions that fits: its gain and the two documents."""
    rises = gains[additions] - gains[drops][:, None] + cross[np.ix_(drops, additions)]
    rises = np.where(lengths[additions] - lengths[drops][:, None] <= room, rises, -np.inf)
    out, into = np.unravel_index(int(rises.argmax()), rises.shape)
    return float(rises[out, into]), int(drops[out]), int(additions[into])


def exchanged(knapsack: Knapsack, mask: Tensor, drops: Tensor, additions: Tensor, priority: Tensor) -> Tensor:
    """Drop documents, add those of `additions` that fit in the order of priority (n,), then fill: (n,) bool."""
    swapped = mask.clone()
    swapped[drops] = False
    wanted = priority.double() - priority.double().max() - 1
    wanted[additions] -= wanted.min() - 1
    wanted[drops] = 2 * wanted.min() - 1
    return knapsack.fill(wanted, swapped)


def polish(objective: Objective, mask: Tensor) -> Tensor:
    """Make the best of all exchanges in a small block until none helps: (n,) bool.

    An exchange is a swap of one document for another, a drop, or an addition for which the selected documents of the
    least gain per token make room. The room left is filled.
    """
    knapsack = objective.knapsack
    if knapsack is None or objective.n > SMALL:
        return mask
    while True:
        priority, others = objective.priority(objective.marginal_gains(mask)), [mask]
        nobody = mask.new_zeros(0, dtype=torch.int64)
        for out in mask.nonzero():
            room = knapsack.limit - int(knapsack.tokens[mask].sum()) + int(knapsack.tokens[out])
            others.append(exchanged(knapsack, mask, out, nobody, priority))
            fits = (~mask & (knapsack.tokens <= room)).nonzero()
            others += [exchanged(knapsack, mask, out, into, priority) for into in fits]
        kept_first = priority + mask * (priority.max() - priority.min() + 1)
        for into in (~mask & (knapsack.tokens <= knapsack.limit)).nonzero():
            alone = torch.zeros_like(mask).index_fill(0, into, value=True)
            others += [knapsack.fill(kept_first, alone), knapsack.fill(priority, alone)]
        values = objective.value(torch.stack(others))
        best = int(values.argmax())
        if values[best] - values[0] <= LEAST_EXCHANGE * objective.size_of(mask):
            return mask
        mask = others[best]
