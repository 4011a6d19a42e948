"""A budget of tokens against enumeration: what is full, what fills it, and the relaxation's maximum."""

import numpy as np
import pytest
import torch
from scipy.optimize import linprog

from fineweb_mask.models.selection.problem.token_budget import Knapsack
from tests.models.selection.enumerable import any_masks, is_full, token_lengths

SEEDS = range(60)


def knapsack_of(seed):
    random = np.random.default_rng(seed)
    tokens = torch.from_numpy(token_lengths(random, int(random.integers(1, 11))))
    limit = max(int(tokens.min()), round(random.uniform(0.05, 1) * int(tokens.sum())))
    return random, Knapsack.of(tokens, limit)


def test_every_full_selection_uses_at_least_the_least_and_has_a_mass_in_its_range():
    reached = 0
    for seed in SEEDS:
        _, knapsack = knapsack_of(seed)
        masks = any_masks(len(knapsack.tokens))
        full = masks[is_full(masks, knapsack)]
        used, masses = full.long() @ knapsack.tokens, full.double() @ knapsack.masses.double()
        assert int(used.min()) >= knapsack.least
        reached += int(used.min()) == knapsack.least
        low, high = knapsack.masses_of_full
        assert low * (1 - 1e-6) <= float(masses.min()) <= float(masses.max()) <= high * (1 + 1e-6)
    assert reached >= 10  # it is not an empty promise


def test_filling_is_full_keeps_its_start_and_follows_the_priority():
    for seed in SEEDS:
        random, knapsack = knapsack_of(seed)
        priority = torch.from_numpy(random.normal(size=len(knapsack.tokens)))
        filled = knapsack.fill(priority)
        assert bool(is_full(filled[None], knapsack))
        expected, left = set(), knapsack.limit
        for document in priority.argsort(descending=True).tolist():  # the definition, one by one
            if knapsack.tokens[document] <= left:
                expected.add(document)
                left -= int(knapsack.tokens[document])
        assert set(filled.nonzero()[:, 0].tolist()) == expected
        start = filled & (torch.rand(len(filled)) < 0.5)
        again = knapsack.fill(-priority, start)
        assert bool(is_full(again[None], knapsack))
        assert bool(again[start].all())


def test_probabilities_fill_the_budget_and_order_by_worth_per_token():
    for seed in SEEDS:
        random, knapsack = knapsack_of(seed)
        worth = torch.from_numpy(random.normal(size=len(knapsack.tokens)))
        pi = knapsack.probabilities(worth, 0.7)
        assert float(pi.double() @ knapsack.tokens.double()) == pytest.approx(knapsack.limit, rel=1e-5)
        order = (worth / knapsack.costs).argsort()
        assert bool((pi[order].diff() >= 0).all())


def test_the_relaxations_maximum_is_that_of_a_linear_program():
    """Charnes and Cooper: a mean over fractions is linear in u = m / mass and t = 1 / mass."""
    for seed in SEEDS:
        random, knapsack = knapsack_of(seed)
        n, masses = len(knapsack.tokens), knapsack.masses.double().numpy()
        shares, lengths = random.normal(size=n), knapsack.tokens.numpy()
        bound, taken = knapsack.highest(torch.zeros(n, dtype=torch.float64), torch.from_numpy(shares))
        exact = linprog(
            -np.append(shares, 0),
            A_ub=np.vstack([
                np.append(lengths, -knapsack.limit), np.append(-lengths, knapsack.least),
                np.hstack([np.eye(n), -np.ones((n, 1))]),
            ]),
            b_ub=np.zeros(n + 2), A_eq=np.append(masses, 0)[None], b_eq=[1], bounds=(0, None),
        )  # fmt: skip
        assert bound == pytest.approx(-exact.fun, rel=1e-5, abs=1e-6)
        assert knapsack.least * (1 - 1e-6) <= float(taken @ knapsack.tokens.double()) <= knapsack.limit * (1 + 1e-6)


def test_no_full_selection_exceeds_the_relaxation():
    for seed in SEEDS:
        random, knapsack = knapsack_of(seed)
        n = len(knapsack.tokens)
        masks = any_masks(n)
        full = masks[is_full(masks, knapsack)].double()
        for scale in (0.0, 0.3, 3.0):
            worth, shares = torch.from_numpy(scale * random.normal(size=n)), torch.from_numpy(random.normal(size=n))
            value = full @ worth + (full @ shares) / (full @ knapsack.masses.double())
            assert knapsack.highest(worth, shares)[0] >= float(value.max()) - 1e-6


def test_the_best_mean_is_nearly_that_of_enumeration():
    short = []
    for seed in SEEDS:
        random, knapsack = knapsack_of(seed)
        values = torch.from_numpy(random.normal(size=len(knapsack.tokens)))
        masks = any_masks(len(values))
        full = torch.cat([knapsack.best_mean(values)[None], masks[is_full(masks, knapsack)]]).double()
        means = (full @ (values * knapsack.masses)) / (full @ knapsack.masses.double())
        short.append(float(means.max() - means[0]))
    assert np.median(short) < 1e-6
    assert np.mean(short) < 0.15
