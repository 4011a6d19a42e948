"""Maximise the objective over inclusion probabilities, by its gradient in closed form instead of sampled masks (ours).

Every document has an inclusion probability pi_i, and all together fill the budget. Each step goes towards the smoothed
selection of the documents of the largest gradient, sigmoid((g_i / cost_i - tau) / T), where tau makes the budget exact
and the temperature T falls (Frank and Wolfe's steps, smoothed). How far is read off the gradient before and after the
last step: where it turned on the way, the step was too long.
"""

import torch
from torch import Tensor

from fineweb_mask.models.runtime.progress import track
from fineweb_mask.models.selection.objective import Objective

STEPS = 40
HOT, COLD = 0.5, 0.02  # temperature in standard deviations of the gradient: at first, and in the end
FIRST, SHORTEST, LONGEST = 0.3, 0.05, 0.5  # shares of the way
GROWTH = 1.5  # of a step over the last one, at most


def relax(objective: Objective, steps: int = STEPS) -> Tensor:
    """Return inclusion probabilities of a high objective, (n,) float32."""
    budget = objective.budget
    pi, share = budget.probabilities(torch.zeros_like(objective.quality), 1.0), FIRST
    gradient = objective.gradient(pi)
    for step in track("steps of the relaxation", range(steps)):
        worth = budget.worth(gradient)
        temperature = HOT * (COLD / HOT) ** (step / max(1, steps - 1)) * budget.deviation(worth)
        if temperature <= 0:  # all documents gain the same
            break
        way = budget.probabilities(worth, temperature) - pi
        pi = pi + share * way
        rise, gradient = float(gradient.double() @ way.double()), objective.gradient(pi)
        fall = rise - float(gradient.double() @ way.double())  # of the slope along the way
        best = share * rise / fall if fall > 0 else LONGEST
        share = min(max(best, SHORTEST), GROWTH * share, LONGEST)
    return pi
