"""Define the input and the output of a solver: a function from `Problem` to `Solution`."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fineweb_mask.models.runtime.stopping import raise_if_stopped
from fineweb_mask.models.selection.inputs import SelectorInputs
from fineweb_mask.models.selection.neighbours import Neighbours
from fineweb_mask.models.selection.objective import Objective
from fineweb_mask.models.selection.rows import Rows
from fineweb_mask.models.settings.selection import SelectionSettings


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
    A solver of your own, which takes the first documents, to be entered in `SELECTORS`:

    >>> def solve_first(problem):
    ...     return finished(problem, -torch.arange(len(problem.objective.quality)).float())
    >>> from fineweb_mask.models.selection.budget import Budget
    >>> budget = Budget.of(torch.ones(3, dtype=torch.int64), 2)
    >>> objective = Objective(budget, torch.tensor([3.0, 1.0, 2.0]), linear_weight=1.0)
    >>> solve_first(Problem(Rows(torch.eye(3)), objective, SelectionSettings(), torch.Generator())).mask.tolist()
    [True, True, False]
    """

    rows: Rows
    objective: Objective
    settings: SelectionSettings
    generator: torch.Generator  # on the rows' device, seeded
    history: History = field(default_factory=History)
    also: SelectorInputs = field(default_factory=SelectorInputs)  # what some selectors read, on the rows' device
    tokens: Tensor | None = None  # (n,) int64, if they are known
    lists: Neighbours | None = None  # the nearest of every document, where something reads them


@dataclass
class Solution:
    """The result of a solver."""

    mask: Tensor  # (n,) bool, full
    inclusion: Tensor  # (n,) float32: learned logit or probability; larger ranks higher


def finished(problem: Problem, inclusion: Tensor, mask: Tensor | None = None) -> Solution:
    """Return the solution of one step: a mask (n,), or the documents of the highest inclusion (n,)."""
    mask = problem.objective.budget.fill(inclusion) if mask is None else mask
    problem.history.record(1, problem.objective.value_of(mask))
    return Solution(mask, inclusion)
