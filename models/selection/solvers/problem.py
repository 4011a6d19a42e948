"""Define the input and the output of a solver: a function from `Problem` to `Solution`."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from fineweb_mask.models.runtime.stopping import raise_if_stopped
from fineweb_mask.models.selection.inputs import SelectorInputs
from fineweb_mask.models.selection.problem.objective import Objective
from fineweb_mask.models.selection.rows import Rows
from fineweb_mask.models.settings.selection import SelectionSettings

ROUNDS = 6  # most solves where the denominators depend on what is selected
SETTLED = 1e-3  # share of the mass: a smaller change needs no further solve


@dataclass
class History:
    """The best objective so far at each step."""

    progress: Callable[[int, float, float], None] | None = None  # called with each entry
    entries: list[tuple[int, float, float]] = field(default_factory=list)  # (step, seconds since the start, objective)
    started: float = field(default_factory=time.perf_counter)

    def record(self, step: int, objective: float) -> None:
        """Add an entry for a step; an objective below the best so far repeats the best."""
        raise_if_stopped()
        best = max(objective, self.entries[-1][2]) if self.entries else objective
        entry = (step, time.perf_counter() - self.started, best)
        self.entries.append(entry)
        if self.progress is not None:
            self.progress(*entry)


@dataclass
class Problem:
    """One selection to solve.

    Examples
    --------
    A solver of your own, which takes the first K documents, to be entered in `SELECTORS`:

    >>> def solve_first(problem):
    ...     mask = torch.arange(problem.objective.n) < problem.objective.budget
    ...     problem.history.record(1, problem.objective.value_of(mask))
    ...     return Solution(mask, inclusion=-torch.arange(len(mask)).float())
    >>> objective = Objective(torch.tensor([3.0, 1.0, 2.0]), 2, {}, linear_weight=1.0, weights={})
    >>> solve_first(Problem(Rows(torch.eye(3)), objective, SelectionSettings(), torch.Generator())).mask.tolist()
    [True, True, False]
    """

    rows: Rows
    objective: Objective
    settings: SelectionSettings
    generator: torch.Generator  # on the rows' device, seeded
    history: History = field(default_factory=History)
    start: Tensor | None = None  # (n,) probabilities that solved a similar problem, from which `mean_field` starts
    also: SelectorInputs = field(default_factory=SelectorInputs)  # what some selectors read, on the rows' device
    tokens: Tensor | None = None  # (n,) int64, if they are known


@dataclass
class Solution:
    """The result of a solver."""

    mask: Tensor  # (n,) bool, K of them true, or full by tokens
    inclusion: Tensor  # (n,) float32: learned logit or probability; larger ranks higher
    relaxed: Tensor | None = None  # (n,) probabilities that fill the budget, from which the bound is computed
    copies: Tensor | None = None  # (n,) int64, how often each document is taken; None: those of the mask once
    scored: int | None = None  # documents that were scored, where a solver scores few
    is_closed: bool = False  # whether no other document may be selected, although the budget is not full


def finished(problem: Problem, inclusion: Tensor, mask: Tensor | None = None, copies: Tensor | None = None) -> Solution:
    """Return the solution of one step: a mask (n,), or the documents of the highest inclusion (n,) that fill K."""
    mask = problem.objective.top(inclusion) if mask is None else mask
    problem.history.record(1, problem.objective.value_of(mask))
    return Solution(mask, inclusion, copies=copies)


def settle(problem: Problem, solve: Callable[[Problem], Solution]) -> Solution:
    """Solve, again and again where the denominators depend on what is selected: the best solution.

    That is so where a budget of tokens holds selections of unequal mass. Each solve takes the denominators of the last
    answer, and penalises every document for how it enlarges them.
    """
    objective = problem.objective
    knapsack = objective.knapsack
    if knapsack is None or knapsack.by_tokens:
        return solve(problem)
    best: tuple[float, Solution] | None = None
    at = objective.settled(torch.full_like(objective.quality, knapsack.share))
    for _ in range(ROUNDS):
        solution = solve(replace(problem, objective=at))
        reached = objective.value_of(solution.mask)
        if best is None or reached > best[0]:
            best = reached, solution
        size = at.size
        at = objective.settled(solution.mask.float())
        if abs(at.size - size) <= SETTLED * size:
            break
    assert best is not None  # noqa: S101 - the loop runs at least once
    return best[1]
