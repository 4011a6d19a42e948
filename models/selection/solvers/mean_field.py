"""Maximise the objective by one gradient: relax, keep as many documents as the budget takes, refine (ours)."""

import torch

from fineweb_mask.models.selection.solvers.problem import Problem, Solution
from fineweb_mask.models.selection.solvers.refine import ROUNDS, refine
from fineweb_mask.models.selection.solvers.relax import STEPS, relax

NEAREST = 16  # documents that are like each document, itself included, of which one is swapped in a round


def solve_mean_field(problem: Problem, *, steps: int = STEPS, rounds: int = ROUNDS) -> Solution:
    """Relax in at most so many steps, and refine the best selection on the way in at most so many rounds of swaps."""
    objective, budget, history = problem.objective, problem.objective.budget, problem.history
    flat = budget.probabilities(torch.zeros_like(objective.quality), 1.0)
    best = budget.fill(budget.worth(objective.gradient(flat)))
    reached = objective.value_of(best)
    history.record(0, reached)
    if bool(best[budget.allowed].all()):
        return Solution(best, best.float())
    coarse = objective.coarse(problem.generator)
    relaxed = relax(coarse, steps)
    for priority in (relaxed, budget.worth(objective.gradient(relaxed))):
        rounded = budget.fill(priority)
        if (value := objective.value_of(rounded)) > reached:
            best, reached = rounded, value
    history.record(steps, reached)
    near = None if problem.lists is None else problem.lists.index[:NEAREST]
    best = refine(objective, best, history, near, rounds)
    return Solution(best, objective.inclusion(best))
