"""Select from a block the documents that go best with those of an earlier selection."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from fineweb_mask.models.selection.block import BlockSolver, Selection
from fineweb_mask.models.selection.inputs import Given, SelectionInputError, checked_features, checked_quality
from fineweb_mask.models.selection.problem.normalisation import Ranges
from fineweb_mask.models.selection.solvers.problem import History

HELD_BY = 4.0  # penalty of an earlier document left out, in the largest difference of marginal gains
LEAST_DIFFERENCE = 1e-6  # between marginal gains, where all documents gain the same
RANDOM_SELECTIONS = 8  # whose mean objective is the random one


def select_given(
    block: BlockSolver,
    given: Given,
    *,
    quality_weights: Sequence[float] | None = None,
    ranges: Ranges | None = None,
    progress: Callable[[int, float, float], None] | None = None,
) -> Selection:
    """Select documents of a block so that they and those of an earlier selection together maximise J.

    The earlier documents join the block, in every selection; the terms' scales are those of the block alone. The
    objective, its terms, the bound and `random_objective` are of both selections together; `random_objective` is the
    mean over a few random selections from the block.

    Raises
    ------
    SelectionInputError
        If the earlier vectors have other dimensions, or the settings cannot be combined with an earlier selection.
    """
    settings = block.settings
    if block.own_metrics:
        raise SelectionInputError("given: own_metrics know nothing of earlier documents: leave one of them out")
    if settings.solver != "mean_field" or block.knapsack is not None or settings.near_duplicates.forbid:
        raise SelectionInputError(
            "given: an earlier selection needs solver: mean_field, budget_by: documents and no near_duplicates.forbid: "
            "set these, or leave it out"
        )
    device, n, budget = block.rows.device, block.rows.n, block.budget
    earlier = checked_features(given.vectors, device)
    if earlier.d != block.rows.d:
        raise SelectionInputError(
            f"given: its vectors must have {block.rows.d} dimensions, as those of the documents, received {earlier.d}: "
            "embed both with one encoder"
        )
    their_quality = checked_quality(given.quality, earlier.n, device, quality_weights)
    quality = torch.cat([block.quality, their_quality])
    rows = block.rows.followed_by(earlier)
    both = BlockSolver(rows, quality, settings.model_copy(update={"budget": budget + earlier.n}), {})
    both.take_ranges(both.on_scale(block.ranges if ranges is None else ranges))
    plain = both.scaled(settings.lamb)
    held = torch.arange(rows.n, device=device) >= n
    generator = block.generator()
    random = [_random_with(held, budget, generator) for _ in range(RANDOM_SELECTIONS)]
    gains = plain.objective.marginal_gains(random[0])
    penalty = HELD_BY * max(float(gains.max() - gains.min()), LEAST_DIFFERENCE)
    history = History(progress)
    while True:
        scaled = replace(plain, objective=plain.objective.holding(held, penalty))
        solution = both.solution(scaled, history)
        if bool(solution.mask[held].all()):
            break
        penalty *= HELD_BY
    random_objective = float(torch.tensor([scaled.objective.value_of(mask) for mask in random]).mean())
    found = both.selection(scaled, solution, history, settings.lamb, random_objective=random_objective)
    chosen = found.indices[found.indices < n]
    return replace(found, indices=chosen, inclusion=found.inclusion[:n])


def _random_with(held: Tensor, budget: int, generator: torch.Generator) -> Tensor:
    """Draw a mask of all held documents and as many others as the budget, at random: (n,) bool."""
    keys = torch.rand(len(held), generator=generator).to(held.device).masked_fill_(held, -1.0)
    mask = held.clone()
    mask[keys.topk(budget).indices] = True
    return mask
