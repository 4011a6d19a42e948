"""Select by the rank of the quality inside groups, QuaDMix, or by the separate scores of several scorers, ODiS."""

from collections import deque
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fineweb_mask.models.selection.selectors.sampling import deviations
from fineweb_mask.models.selection.solvers.policy_gradient import gumbel_keys
from fineweb_mask.models.selection.solvers.problem import Problem, Solution, in_order
from fineweb_mask.models.settings.selection import QuadmixCurveSettings, QuadmixSettings

STEEPNESS = 1000.0
"""How sharply the expected copies fall at omega: the upper end of the range that QuaDMix searches."""
FLOOR = 0.001
"""Expected copies of documents below omega: the upper end of QuaDMix's range, too."""
VARIANCE = 0.95
"""Share of the scores' variance that the components keep (ours)."""


def in_turn(rankings: Sequence[NDArray[np.integer]], others: Tensor, problem: Problem) -> Tensor:
    """Return minus the number of documents taken before each, (n,) float64: rankings take their best not taken.

    Parameters
    ----------
    rankings
        Documents of each ranking, best first; those at the end may be missing.
    others
        Worth of every document, (n,): in this order follow those that are not taken when the budget is full.
    problem
        Says what the budget is.
    """
    n, budget = len(others), problem.objective.budget
    priority = torch.empty(n, dtype=torch.float64, device=others.device)
    steps = torch.arange(n, dtype=torch.float64, device=others.device)
    priority[others.sort(descending=True, stable=True).indices] = -n - steps
    costs, allowed = budget.costs.tolist(), budget.allowed.tolist()
    left, order, turns = budget.limit, list[int](), deque(map(iter, rankings))
    taken = bytearray(not one for one in allowed)
    while left > 0 and turns:
        ranking = turns.popleft()
        document = next((one for one in map(int, ranking) if not taken[one]), None)
        if document is None:
            continue  # it is at its end
        turns.append(ranking)
        taken[document] = 1
        order.append(document)
        left -= costs[document]
    priority[torch.tensor(order, dtype=torch.int64, device=others.device)] = -steps[: len(order)]
    return priority


def solve_quadmix(problem: Problem) -> Solution:
    """Sample without replacement, in proportion to a function of each document's rank in its group.

    Ranks are by the quality, which is the weighted sum of the scores. Source: QuaDMix, arXiv 2504.16511, which takes
    documents more than once, and searches the weights and the curve of every group with small models; here they are
    settings, and the rank of the best document is 0. The inclusion is the random key.
    """
    settings, labels = problem.settings.quadmix, problem.also.groups
    tokens = torch.ones_like(problem.objective.budget.costs) if problem.tokens is None else problem.tokens
    groups = np.full(len(tokens), "") if labels is None else labels
    wanted = torch.empty(len(tokens), dtype=torch.float64, device=tokens.device)
    names, numbers = np.unique(groups, return_inverse=True)
    members = np.split(np.argsort(numbers, kind="stable"), np.bincount(numbers).cumsum()[:-1])
    for name, own in zip(names.tolist(), map(torch.from_numpy, members), strict=True):
        wanted[own] = wanted_at(ranks(problem.quality[own], tokens[own]), curve_of(settings, name))
    return in_order(problem, gumbel_keys(wanted.log().float(), 1, problem.generator)[0])


def curve_of(settings: QuadmixSettings, group: str) -> QuadmixCurveSettings:
    """Return the curve of a group; what it does not set is as for all.

    >>> settings = QuadmixSettings(omega=0.2, by_group={"en": {"eta": 2}})
    >>> curve_of(settings, "en").omega, curve_of(settings, "en").eta, curve_of(settings, "de").eta
    (0.2, 2.0, 1.0)
    """
    own = settings.by_group.get(group)
    return settings if own is None else settings.model_copy(update=own.model_dump(exclude_unset=True))


def ranks(quality: Tensor, tokens: Tensor) -> Tensor:
    """Return the share of all tokens (b,) in documents of better quality (b,): (b,) float64, 0 is the best."""
    order = quality.sort(descending=True, stable=True).indices
    lengths = tokens[order].double()
    found = torch.empty_like(lengths)
    found[order] = (lengths.cumsum(0) - lengths) / lengths.sum()
    return found


def wanted_at(ranks: Tensor, settings: QuadmixCurveSettings) -> Tensor:
    """Return how much documents of these ranks (n,) are wanted: (n,) float64.

    >>> wanted_at(torch.tensor([0.0, 0.4, 0.6]), QuadmixSettings(omega=0.5, eta=1)).tolist()
    [2.001, 2.001, 0.001]
    """
    good = (2 * torch.sigmoid(STEEPNESS * (settings.omega - ranks.double()))) ** settings.eta
    return torch.where(ranks <= settings.omega, good, 0.0) + FLOOR


def solve_odis(problem: Problem, *, variance: float = VARIANCE) -> Solution:
    """Let the principal components of the standardised scores take, in turn, their best document not yet taken.

    Source: ODiS, arXiv 2510.18909, which trains a scorer for each of the first four components and takes what is above
    a threshold of each; here all documents are scored. Ours are the turns, the share of the variance that decides how
    many components there are, and their direction: loadings add up to something positive. The inclusion is minus the
    number of documents that were taken before.
    """
    columns = torch.stack([deviations(column) for column in problem.also.scores.values()])
    values = components(columns, variance)
    orders = values.sort(dim=1, descending=True, stable=True).indices
    best = torch.full((values.shape[1],), -torch.inf, dtype=torch.float64, device=values.device)
    for order in orders:  # the best place of each document, for those that nobody takes
        places = torch.empty_like(best)
        places[order] = -torch.arange(len(order), dtype=torch.float64, device=values.device)
        best = torch.maximum(best, places)
    return in_order(problem, in_turn(list(orders.cpu().numpy()), best, problem))


def components(columns: Tensor, variance: float) -> Tensor:
    """Return the principal components of standardised columns (p, n) that hold a share of the variance: (c, n)."""
    values, vectors = torch.linalg.eigh((columns.double() @ columns.double().T) / columns.shape[1])
    values, vectors = values.flip(0).clamp(min=0), vectors.flip(1)
    held = values.cumsum(0) / values.sum().clamp(min=1e-30)
    count = min(len(values), int((held < variance - 1e-9).sum()) + 1)
    loadings = vectors[:, :count]
    signs = torch.where(loadings.sum(0) < 0, -1.0, 1.0)
    found: Tensor = (loadings * signs).T @ columns.double()
    return found.float()
