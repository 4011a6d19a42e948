"""A budget against enumeration: what is full, what fills it, and the relaxation's maximum."""

import numpy as np
import pytest
import torch
from scipy.optimize import linprog

from tests.models.selection.enumerable import full_masks, random_budget

SEEDS = range(40)


def budgets():
    for seed in SEEDS:
        random = np.random.default_rng(seed)
        yield random, random_budget(random, int(random.integers(1, 11)), by_tokens=bool(seed % 2))


def test_every_full_selection_uses_at_least_the_least():
    reached = 0
    for _, budget in budgets():
        used = full_masks(budget).long() @ budget.costs
        assert budget.least <= int(used.min()) <= int(used.max()) <= budget.limit
        reached += int(used.min()) == budget.least
    assert reached >= 10  # it is not an empty promise


def test_filling_is_full_keeps_its_start_and_follows_the_priority():
    for random, budget in budgets():
        full, priority = full_masks(budget), torch.from_numpy(random.normal(size=budget.n))
        filled = budget.fill(priority)
        expected, left = set(), budget.limit
        for document in priority.argsort(descending=True).tolist():  # the definition, one by one
            if budget.allowed[document] and budget.costs[document] <= left:
                expected.add(document)
                left -= int(budget.costs[document])
        assert set(filled.nonzero()[:, 0].tolist()) == expected
        start = filled & (torch.rand(len(filled)) < 0.5)
        again = budget.fill(-priority, start)
        assert bool(again[start].all())
        for mask in (filled, again):
            assert bool((mask == full).all(1).any())


def test_probabilities_fill_the_budget_and_order_by_worth():
    for random, budget in budgets():
        worth = torch.from_numpy(random.normal(size=budget.n))
        pi = budget.probabilities(worth, 0.7)
        assert float(pi.double() @ budget.costs.double()) == pytest.approx(budget.limit, rel=1e-5)
        allowed = budget.allowed.nonzero()[:, 0]
        assert bool((pi[allowed[worth[allowed].argsort()]].diff() >= 0).all())
        assert bool((pi[~budget.allowed] == 0).all())


def test_the_relaxations_maximum_is_that_of_a_linear_program():
    for random, budget in budgets():
        gains = random.normal(size=budget.n) + random.choice([-2, 0, 2])
        bound, taken = budget.best(torch.from_numpy(gains))
        costs = budget.costs.numpy()
        exact = linprog(
            -gains,
            A_ub=np.vstack([costs, -costs]),
            b_ub=[budget.limit, -budget.least],
            bounds=[(0, int(allowed)) for allowed in budget.allowed],
        )
        assert bound == pytest.approx(-exact.fun, rel=1e-6, abs=1e-9)
        assert float(taken @ torch.from_numpy(gains)) == pytest.approx(bound)
        assert bound >= float((full_masks(budget).double() @ torch.from_numpy(gains)).max()) - 1e-9
