"""Select by one number of each document: the largest, in proportion to it, or at random."""

import torch
from torch import Tensor

from fineweb_mask.models.selection.solvers.policy_gradient import gumbel_keys
from fineweb_mask.models.selection.solvers.problem import Problem, Solution, in_order


def solve_random(problem: Problem) -> Solution:
    """Select uniformly at random; the inclusion is the random key."""
    quality = problem.quality
    return in_order(problem, torch.rand(len(quality), generator=problem.generator).to(quality.device))


def solve_top_quality(problem: Problem) -> Solution:
    """Select the documents of highest quality, ties by position."""
    return in_order(problem, problem.quality)


def solve_quality_sampling(problem: Problem) -> Solution:
    """Sample without replacement in proportion to exp(quality / temperature).

    Quality is in standard deviations. Source: QuRating, arXiv 2402.09739. The inclusion is the random key.
    """
    logits = deviations(problem.quality) / problem.settings.temperature
    return in_order(problem, gumbel_keys(logits, 1, problem.generator)[0])


def solve_dsir(problem: Problem) -> Solution:
    """Sample without replacement in proportion to importance weights, whose logs are `log_weights`.

    Those of minus infinity, too short to be compared, come last. Source: DSIR, arXiv 2302.03169, and its published code
    (p-lambda/dsir). The inclusion is the random key.
    """
    weights = problem.also.log_weights
    is_short = torch.isinf(weights)
    keys = gumbel_keys(weights.masked_fill(is_short, 0.0), 1, problem.generator)[0]
    keys[is_short] -= keys.max() - keys.min() + 1
    return in_order(problem, keys)


def deviations(values: Tensor) -> Tensor:
    """Return how many standard deviations values (n,) are from their mean: (n,) float32; 0 if all are equal.

    >>> deviations(torch.tensor([1.0, 3.0])).tolist()
    [-1.0, 1.0]
    """
    deviation = values.double().std(correction=0).clamp(min=1e-30)
    return ((values.double() - values.mean(dtype=torch.float64)) / deviation).float()
