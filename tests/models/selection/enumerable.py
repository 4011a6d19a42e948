"""Make blocks of documents so small that every selection from them can be evaluated."""

import itertools
import math

import numpy as np
import torch

from fineweb_mask.models.selection.metrics.base import metric_class
from fineweb_mask.models.selection.metrics.facility import Facility
from fineweb_mask.models.selection.metrics.near_duplicates import NearDuplicates
from fineweb_mask.models.selection.problem.objective import Objective
from fineweb_mask.models.selection.problem.token_budget import Knapsack
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


def any_masks(n):
    """All selections but the empty one, (2^n - 1, n) bool."""
    return torch.tensor(list(itertools.product([False, True], repeat=n)))[1:]


def is_full(masks, knapsack):
    """Which masks (G, n) keep within the budget and leave no room for a further document, (G,) bool."""
    room = knapsack.limit - masks.long() @ knapsack.tokens
    shortest = torch.where(masks, torch.iinfo(torch.int64).max, knapsack.tokens).amin(1)
    return (room >= 0) & (shortest > room)


def token_lengths(random, n):
    """Lengths (n,) int64 of three kinds: even, heavy-tailed, all equal."""
    kind = random.integers(3)
    if kind == 0:
        return random.integers(1, 100, n)
    return np.maximum(1, random.lognormal(4, 1.2, n)).astype(int) if kind == 1 else np.full(n, random.integers(1, 9))


def random_rows(random, n, d):
    """Unit rows (n, d), some around a common direction, some with duplicates or opposite rows."""
    features = random.normal(size=(n, d)) + random.choice([0, 0.5, 2])
    if random.random() < 0.3:
        features[: n // 2] = features[n // 2 : 2 * (n // 2)] * random.choice([-1, 1])
    return Rows(torch.nn.functional.normalize(torch.from_numpy(features).float(), dim=1))


def random_metrics(random, rows, budget, knapsack=None):
    """Some metrics of these rows and, in half of all cases, near-duplicates, with a weight each."""
    masses = None if knapsack is None else knapsack.masses
    names = random.permutation(sorted(METRICS))[: random.integers(1, len(METRICS) + 1)]
    shortest, settings = int(random.choice([2, 4, 64])), selection.SelectionSettings()
    length = max(shortest, math.ceil(6 * rows.n / budget))
    metrics = {
        name: Facility(rows, length, masses)
        if name == "facility"
        else METRICS[name].for_block(rows, settings, budget, masses)
        for name in names
    }
    weights = {name: float(random.uniform(0.05, 1)) for name in names}
    if random.random() < 0.5:
        metrics["near"], weights["near"] = NearDuplicates.of(rows, 0.8, knapsack), float(random.choice([0.1, 1, 4]))
    return metrics, weights


def token_problem(seed, *, lengths=token_lengths):
    """An objective of random documents, lengths and metrics under a budget of tokens."""
    random = np.random.default_rng(seed)
    n, d = int(random.integers(2, 11)), int(random.integers(2, 6))
    rows = random_rows(random, n, d)
    tokens = torch.from_numpy(np.asarray(lengths(random, n), dtype=np.int64))
    limit = max(int(tokens.min()), round(random.uniform(0.1, 1) * int(tokens.sum())))
    knapsack = Knapsack.of(tokens, limit)
    metrics, weights = random_metrics(random, rows, knapsack.size, knapsack)
    quality = random.normal(size=n) * random.choice([0.1, 1, 3])
    linear_weight = float(random.choice([0, 0.3, 0.9]))
    return Objective(
        torch.from_numpy(quality).float(),
        max(1, round(knapsack.size)),
        metrics,
        linear_weight=linear_weight,
        weights=weights,
        knapsack=knapsack,
    )


def document_problem(seed):
    """An objective of random documents, metrics, weights and near-duplicates under a budget of documents."""
    random = np.random.default_rng(seed)
    n, d = int(random.integers(2, 15)), int(random.integers(2, 9))
    rows, budget = random_rows(random, n, d), int(random.integers(1, n + 1))
    metrics, weights = random_metrics(random, rows, budget)
    quality = torch.from_numpy(random.normal(size=n) * random.choice([0.1, 1, 3])).float()
    return Objective(quality, budget, metrics, linear_weight=float(random.choice([0, 0.3, 0.9])), weights=weights)


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
    scale = {"disf": 0.05}.get(metric, 1)
    return rows, Objective(
        torch.from_numpy(quality), budget, {metric: made}, linear_weight=lamb, weights={metric: scale}
    )


def partial_value(objective, metric, mask):
    """J of an unfinished selection with the denominators of the full budget."""
    linear = float(objective.linear[mask].sum())
    made, weight = objective.metrics[metric], objective.weights[metric]
    if metric == "facility":
        return linear + (weight * float(made.value(mask[None])[0]) if mask.any() else 0.0)
    return linear + weight * float(made.of_moment(made.moment(mask.float()), objective.budget))
