"""Make blocks of documents so small that every selection from them can be evaluated."""

import itertools

import torch

from fineweb_mask.models.selection.metrics.base import metric_class
from fineweb_mask.models.selection.metrics.spectral import SpectralMetric
from fineweb_mask.models.selection.objective import Objective
from fineweb_mask.models.selection.rows import Rows
from fineweb_mask.models.settings import selection

METRICS = {name: metric_class(name) for name in selection.METRICS}


def unit_rows(n, d, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn((n, d), generator=generator) + 0.5
    return Rows(torch.nn.functional.normalize(rows, dim=1).to(dtype))


def random_masks(n, k, groups, seed=1):
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.rand((groups, n), generator=generator).topk(k, dim=1).indices
    return torch.zeros((groups, n), dtype=torch.bool).scatter_(1, chosen, value=True)


def every_mask(n, k):
    """All selections of k of n documents, (C(n, k), n) bool."""
    chosen = torch.tensor(list(itertools.combinations(range(n), k)))
    return torch.zeros((len(chosen), n), dtype=torch.bool).scatter_(1, chosen, value=True)


def bernoulli_expectation(function, pi):
    """Sum a function over all masks under independent inclusion."""
    total = 0.0
    for bits in itertools.product([False, True], repeat=len(pi)):
        mask = torch.tensor(bits)
        total += float(torch.where(mask, pi, 1 - pi).prod()) * function(mask)
    return total


def probabilities(n, budget, seed=3):
    pi = torch.rand(n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + 0.2
    return pi * budget / pi.sum()


def central_differences(function, pi, width=1e-4):
    steps = width * torch.eye(len(pi), dtype=pi.dtype)
    return torch.tensor([(function(pi + step) - function(pi - step)) / (2 * width) for step in steps])


def objective_of(features, quality, metric, budget, lamb=0.4):
    rows = Rows(torch.from_numpy(features))
    made = METRICS[metric](rows)
    scale = {"disf": 0.05, "logdet": 0.1}.get(metric, 1)
    return rows, Objective(
        torch.from_numpy(quality), budget, {metric: made}, linear_weight=lamb, weights={metric: scale}
    )


def partial_value(objective, metric, mask):
    """J of an unfinished selection with the denominators of the full budget."""
    linear = float(objective.linear[mask].sum())
    made, weight = objective.metrics[metric], objective.weights[metric]
    if metric == "facility":
        return linear + (weight * float(made.value(mask[None])[0]) if mask.any() else 0.0)
    if isinstance(made, SpectralMetric):
        return linear + weight * float(made.of_matrix(made.moment(mask) / objective.budget))
    v = made.moment(mask.float()).square().sum()
    return linear + weight * float(made.outer(v, objective.budget))
