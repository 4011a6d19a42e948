"""Make blocks of documents so small that every selection from them can be evaluated."""

import itertools

import numpy as np
import torch

from fineweb_mask.models.selection.budget import Budget
from fineweb_mask.models.selection.metrics.base import Linear, metric_class
from fineweb_mask.models.selection.neighbours import nearest
from fineweb_mask.models.selection.objective import Objective
from fineweb_mask.models.selection.rows import Rows
from fineweb_mask.models.settings import selection

METRICS = {name: metric_class(name) for name in selection.METRICS}


def unit_rows(n, d, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn((n, d), generator=generator) + 0.5
    return Rows(torch.nn.functional.normalize(rows, dim=1).to(dtype))


def of_documents(n, k):
    """A budget of k of n documents."""
    return Budget.of(torch.ones(n, dtype=torch.int64), k)


def made(name, rows, budget, length=64):
    """A metric, with lists of a length."""
    return METRICS[name](rows, budget, nearest(rows, length))


def random_masks(n, k, groups, seed=1):
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.rand((groups, n), generator=generator).topk(k, dim=1).indices
    return torch.zeros((groups, n), dtype=torch.bool).scatter_(1, chosen, value=True)


def any_masks(n):
    """All selections but the empty one, (2^n - 1, n) bool."""
    return torch.tensor(list(itertools.product([False, True], repeat=n)))[1:]


def full_masks(budget):
    """All selections within a budget that leave no room for a further document, (G, n) bool."""
    masks = any_masks(budget.n)
    masks = masks[~(masks & ~budget.allowed).any(1)]
    room = budget.limit - masks.long() @ budget.costs
    shortest = torch.where(masks | ~budget.allowed, torch.iinfo(torch.int64).max, budget.costs).amin(1)
    return masks[(room >= 0) & (shortest > room)]


def random_budget(random, n, *, by_tokens):
    """A budget of documents, or of tokens of three kinds: even, heavy-tailed, all equal; not all may be allowed."""
    allowed = torch.from_numpy(random.random(n) < random.choice([0.6, 1.0]))
    allowed[int(random.integers(n))] = True
    if not by_tokens:
        return Budget.of(torch.ones(n, dtype=torch.int64), int(random.integers(1, n + 1)), allowed)
    lengths = random.choice(["even", "tailed", "equal"])
    tokens = random.integers(1, 100, n) if lengths == "even" else np.full(n, random.integers(1, 9))
    if lengths == "tailed":
        tokens = np.maximum(1, random.lognormal(4, 1.2, n)).astype(int)
    tokens = torch.from_numpy(tokens.astype(np.int64))
    limit = max(int(tokens[allowed].min()), round(random.uniform(0.1, 1) * int(tokens.sum())))
    return Budget.of(tokens, limit, allowed)


def random_rows(random, n, d):
    """Unit rows (n, d), some around a common direction, some with duplicates or opposite rows."""
    features = random.normal(size=(n, d)) + random.choice([0, 0.5, 2])
    if random.random() < 0.3:
        features[: n // 2] = features[n // 2 : 2 * (n // 2)] * random.choice([-1, 1])
    return Rows(torch.nn.functional.normalize(torch.from_numpy(features).float(), dim=1))


def random_objective(seed, *, by_tokens, largest=10):
    """An objective of random documents, metrics, weights and a random budget."""
    random = np.random.default_rng(seed)
    n, d = int(random.integers(2, largest + 1)), int(random.integers(2, 6))
    rows, budget = random_rows(random, n, d), random_budget(random, n, by_tokens=by_tokens)
    names = random.permutation(sorted(METRICS))[: random.integers(1, len(METRICS) + 1)]
    metrics = {name: made(name, rows, budget, int(random.choice([2, 4, 64]))) for name in names}
    weights = {name: float(random.uniform(0.05, 1)) for name in names}
    quality = torch.from_numpy(random.normal(size=n) * random.choice([0.1, 1, 3])).float()
    metrics["quality"], weights["quality"] = Linear(quality * budget.shares), float(random.choice([0, 0.3, 0.9]))
    return Objective(budget, metrics, weights)


def central_differences(function, place, width=1e-4):
    """Differentiate a function of a tensor, in its shape."""
    found = torch.zeros_like(place)
    for at in itertools.product(*map(range, place.shape)):
        step = torch.zeros_like(place)
        step[at] = width
        found[at] = (function(place + step) - function(place - step)) / (2 * width)
    return found
