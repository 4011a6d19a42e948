"""Define the input and the output of a solver: a function from `Problem` to `Solution`."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from fineweb_mask.models.selection.inputs import SelectorInputs
from fineweb_mask.models.selection.neighbours import Neighbours
from fineweb_mask.models.selection.objective import Objective
from fineweb_mask.models.selection.rows import Rows
from fineweb_mask.models.settings.selection import SelectionSettings


@dataclass
class Problem:
    """One selection to solve.

    Examples
    --------
    A solver of your own, which takes the first documents, to be entered in `SELECTORS`:

    >>> def solve_first(problem):
    ...     return in_order(problem, -torch.arange(problem.rows.n).float())
    >>> from fineweb_mask.models.selection.budget import Budget
    >>> objective = Objective(Budget.of(torch.ones(3, dtype=torch.int64), 2), metrics={}, weights={})
    >>> rows, quality = Rows(torch.eye(3)), torch.tensor([3.0, 1.0, 2.0])
    >>> solve_first(Problem(rows, quality, objective, SelectionSettings(), torch.Generator())).mask.tolist()
    [True, True, False]
    """

    rows: Rows
    quality: Tensor  # (n,) float32
    objective: Objective
    settings: SelectionSettings
    generator: torch.Generator  # on the CPU, seeded
    also: SelectorInputs = field(default_factory=SelectorInputs)  # what some selectors read, on the rows' device
    tokens: Tensor | None = None  # (n,) int64, if they are known
    near: Neighbours | None = None  # documents that are alike, of which one moves at a time; where something reads them


@dataclass
class Solution:
    """The result of a solver."""

    mask: Tensor  # (n,) bool, full
    inclusion: Tensor  # (n,) float32: learned logit or probability; larger ranks higher


def in_order(problem: Problem, inclusion: Tensor) -> Solution:
    """Return the documents of the highest inclusion (n,) that fill the budget."""
    return Solution(problem.objective.budget.fill(inclusion), inclusion)
