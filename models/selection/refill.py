"""Fill the selection of a block up again by the next best documents, where some of the block are gone."""

import math
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from fineweb_mask.models.runtime.threads import same_threads
from fineweb_mask.models.selection.block import Selection, checked_block
from fineweb_mask.models.selection.solvers.mean_field import ranks
from fineweb_mask.models.selection.solvers.problem import History, Solution
from fineweb_mask.models.settings.selection import SelectionSettings


@same_threads()
def refill(
    features: Any,  # noqa: ANN401 - numpy or torch, (n, d)
    quality: Any,  # noqa: ANN401 - numpy or torch, (n,)
    settings: SelectionSettings,
    kept: NDArray[Any],
    *,
    device: str | torch.device = "cpu",
    tokens: Any = None,  # noqa: ANN401 - numpy or torch, (n,)
) -> Selection:
    """Select what was selected and the documents of the largest marginal gain, until the budget is full.

    A selection from scratch could be of other documents for the most part, for many selections are nearly as good.
    Half of what is missing is added at a time (of a budget of tokens, all), so that what follows sees what is added,
    and no two near-duplicates at the same time. Of a selection that is larger than the budget, those of the least
    marginal gain are dropped.

    Parameters
    ----------
    features, quality, settings, device, tokens
        As for `select`; the solver is `mean_field` or `greedy`, and no near-duplicates are forbidden.
    kept
        What was selected, (n,) bool.

    Returns
    -------
    Selection
        With its objective and bound among these documents.

    Examples
    --------
    >>> import numpy as np
    >>> features, kept = np.eye(6, 4, dtype=np.float32) + 0.1, np.array([True, False, False, True, False, False])
    >>> found = refill(features, np.arange(6, dtype=np.float32), SelectionSettings(budget=3), kept)
    >>> len(found.indices), set(found.indices.tolist()) >= {0, 3}
    (3, True)
    """
    block = checked_block(features, quality, settings, device=device, tokens=tokens)
    scaled, history = block.scaled(settings.lamb), History()
    objective, mask = scaled.objective, torch.as_tensor(kept, device=block.rows.device).clone()
    knapsack = objective.knapsack

    def priority() -> Tensor:
        return objective.priority(objective.marginal_gains(mask))

    def missing() -> int:
        if knapsack is None:
            return objective.budget - int(mask.sum())
        return knapsack.limit - int(knapsack.tokens[mask].sum())

    def next_best(many: int) -> Tensor:
        order = priority().masked_fill(mask, -torch.inf).sort(descending=True, stable=True).indices
        order = order[: len(order) - int(mask.sum())]
        if block.near_duplicates is None:
            return order[:many]
        return block.near_duplicates[0].independent(order, many, None if knapsack is None else knapsack.tokens)

    while (left := missing()) < 0:
        least = priority().masked_fill(~mask, torch.inf).topk(1 if knapsack else -left, largest=False)
        mask[least.indices] = False
    while knapsack is None and (left := missing()):
        mask[next_best(math.ceil(left / 2))] = True
    if knapsack is not None:
        if block.near_duplicates is not None:
            mask |= next_best(missing())
        mask = knapsack.fill(priority(), mask)
    history.record(1, objective.value_of(mask))
    solution = Solution(mask, ranks(objective, mask, mask.float()))
    return block.selection(scaled, solution, history, settings.lamb)
