"""The paper's solver: its sampling is exact and its estimator points where the closed form does."""

import numpy as np
import pytest
import torch

from fineweb_mask.models.selection.rows import Rows
from fineweb_mask.models.selection.selector import select
from fineweb_mask.models.selection.solvers.policy_gradient import advantages, draw
from fineweb_mask.models.settings.selection import SelectionSettings
from tests.models.selection.enumerable import made, of_documents, random_budget


def test_masks_are_drawn_without_replacement_from_the_softmax():
    logits = torch.tensor([0.0, 1.0, -1.0, 0.5])
    masks = draw(logits, of_documents(4, 2), 40_000, torch.Generator().manual_seed(0))
    assert (masks.sum(1) == 2).all()
    p = logits.softmax(0)
    first = p
    second = torch.stack([sum(p[j] * p[i] / (1 - p[j]) for j in range(4) if j != i) for i in range(4)])
    # four standard errors of a frequency over 40,000 draws
    torch.testing.assert_close(masks.double().mean(0), (first + second).double(), rtol=0, atol=0.01)


def test_draws_within_a_budget_of_tokens_end_with_the_first_document_that_does_not_fit():
    budget = random_budget(np.random.default_rng(1), 30, by_tokens=True)
    masks = draw(torch.zeros(30), budget, 200, torch.Generator().manual_seed(0))
    used = masks.long() @ budget.costs
    assert int(used.max()) <= budget.limit
    assert float(used.double().mean()) > budget.limit - 2 * float(budget.costs.double().mean())


def test_advantages_are_standardised_and_survive_equal_rewards():
    standardised = advantages(torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64))
    assert float(standardised.mean()) == pytest.approx(0, abs=1e-12)
    assert float(standardised.std(correction=0)) == pytest.approx(1, abs=1e-6)
    assert (advantages(torch.full((5,), 3.0)) == 0).all()


@pytest.mark.parametrize("name", ["pairwise", "facility"])
def test_estimators_mean_is_the_closed_form_gradient(name):
    """Under equal logits, the covariance of J and m_i is pi (1 - pi) (g_i - mean g), up to 1/n."""
    n, budget, rollouts = 40, 16, 8_000
    generator = torch.Generator().manual_seed(0)
    rows = Rows(torch.nn.functional.normalize(torch.randn((n, 5), generator=generator) + 0.3, dim=1))
    masks = draw(torch.zeros(n), of_documents(n, budget), rollouts, generator)
    metric, share = made(name, rows, of_documents(n, budget)), budget / n
    rewards, gradient = metric.value(masks), metric.gradient(torch.full((n,), share)).double()
    deviation = rewards.std(correction=0)
    estimate = advantages(rewards) @ masks.double() / rollouts * deviation
    closed = share * (1 - share) * (gradient - gradient.mean()) * n / (n - 1)
    sampling_error = float(deviation) * (share * (1 - share) / rollouts) ** 0.5
    assert float(torch.corrcoef(torch.stack([estimate, closed]))[0, 1]) > 0.98
    # four sampling errors, and what fixing the budget changes against independent inclusion
    assert float((estimate - closed).abs().max()) < 4 * sampling_error + 0.1 * float(closed.abs().max())


def learned(corpus, learning, **settings):
    return select(
        *corpus, SelectionSettings(solver="policy_gradient", policy_gradient=learning, near_duplicates=None, **settings)
    )


@pytest.mark.parametrize("metric", ["facility", "disf"])
def test_learning_beats_random(metric, corpus):
    learning = {"n_epochs": 50, "n_rollout": 32, "partial": 0.5}
    selection = learned(corpus, learning, metrics=metric, select_ratio=0.2, lamb=0.2)
    assert selection.objective > selection.random_objective + 0.2
    assert len(selection.indices) == 40


def test_the_learning_rate_falls_from_the_first_step_to_the_last(corpus):
    rates = {"partial": 1.0, "max_lr": 5.0, "min_lr": 0.0}
    one, two = (learned(corpus, rates | {"n_epochs": steps}, select_ratio=0.2).inclusion for steps in (1, 2))
    assert one.std() > 0
    assert (one == two).all()


def test_prune_leaves_the_lowest_quality_out_down_to_the_budget_and_quality_init_starts_from_it(corpus):
    learning = {"n_epochs": 5, "prune": 0.5, "init": "quality", "partial": 1.0}
    selection = learned(corpus, learning, select_ratio=0.1, lamb=0.0, normalize="none")
    lowest = corpus[1].argsort()[:100]
    assert not set(lowest.tolist()) & set(selection.indices.tolist())
    assert selection.inclusion[lowest].max() < selection.inclusion[selection.indices].min()
    assert len(learned(corpus, {"n_epochs": 2, "prune": 0.5}, select_ratio=0.9).indices) == 180
