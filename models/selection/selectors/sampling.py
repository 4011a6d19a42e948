"""Select by one number of each document: the largest, in proportion to it, or at random."""

from dataclasses import replace

import torch
from torch import Tensor

from fineweb_mask.models.selection.problem.token_budget import top
from fineweb_mask.models.selection.solvers.policy_gradient import gumbel_keys
from fineweb_mask.models.selection.solvers.problem import Problem, Solution, finished


def solve_random(problem: Problem) -> Solution:
    """Select uniformly at random; the inclusion is the random key."""
    quality = problem.objective.quality
    return finished(problem, torch.rand(len(quality), generator=problem.generator).to(quality.device))


def solve_top_quality(problem: Problem) -> Solution:
    """Select the documents of highest quality, ties by position."""
    return finished(problem, problem.objective.quality)


def solve_quality_sampling(problem: Problem) -> Solution:
    """Sample without replacement in proportion to exp(quality / temperature).

    Quality is in standard deviations. Source: QuRating, arXiv 2402.09739. The inclusion is the logit.
    """
    logits = deviations(problem.objective.quality) / problem.settings.quality_sampling.temperature
    mask = problem.objective.top(gumbel_keys(logits, 1, problem.generator)[0])
    return finished(problem, logits, mask)


def solve_dsir(problem: Problem) -> Solution:
    """Sample without replacement in proportion to importance weights, whose logs are `log_weights`.

    Those of minus infinity, too short to be compared, come last. With weights of several tasks, each task samples its
    share of the budget, of the documents that are left. Source: DSIR, arXiv 2302.03169, and its published code
    (p-lambda/dsir). The inclusion is the log weight, the largest of all tasks.
    """
    objective, examples = problem.objective, problem.also.task_examples
    weights = problem.also.log_weights.reshape(problem.rows.n, -1)
    is_short = torch.isinf(weights).all(1)
    lowest = weights[~is_short].min() if not is_short.all() else torch.zeros_like(weights[0, 0])
    weights = torch.where(is_short[:, None], lowest - 1, weights)
    shares = torch.ones(weights.shape[1]) if examples is None else torch.as_tensor(examples).float()
    limit = objective.budget if objective.knapsack is None else objective.knapsack.limit
    ends = (shares.double().cumsum(0) / shares.double().sum() * limit).round().long().tolist()
    mask = torch.zeros(problem.rows.n, dtype=torch.bool, device=weights.device)
    for own, end in zip(weights.T, ends, strict=True):
        keys = gumbel_keys(own, 1, problem.generator)[0]
        lots = torch.rand(len(keys), generator=problem.generator).to(keys.device)
        keys = torch.where(is_short, keys.min() - 1 - lots, keys)
        if objective.knapsack is None:
            mask |= top(keys.masked_fill(mask, -torch.inf), end - int(mask.sum()))
        else:
            mask = replace(objective.knapsack, limit=end).fill(keys, mask)
    return finished(problem, weights.amax(1), mask)


def deviations(values: Tensor) -> Tensor:
    """Return how many standard deviations values (n,) are from their mean: (n,) float32; 0 if all are equal.

    >>> deviations(torch.tensor([1.0, 3.0])).tolist()
    [-1.0, 1.0]
    """
    deviation = values.double().std(correction=0).clamp(min=1e-30)
    return ((values.double() - values.mean(dtype=torch.float64)) / deviation).float()
