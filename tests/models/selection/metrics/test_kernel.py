"""The code that kernel metrics share, against an enumeration of all subsets."""

import pytest
import torch

from fineweb_mask.models.selection.metrics.pairwise import Pairwise
from tests.models.selection.enumerable import (
    METRICS,
    bernoulli_expectation,
    central_differences,
    every_mask,
    probabilities,
    random_masks,
    unit_rows,
)

NAMES = ["pairwise", "disf"]


@pytest.mark.parametrize("name", NAMES)
def test_random_value_is_the_mean_over_all_subsets(name):
    metric = METRICS[name](unit_rows(9, 3))
    values = metric.value(every_mask(9, 4))
    mean = values.mean() if name == "pairwise" else -values.square().mean().sqrt()
    assert metric.random_value(4) == pytest.approx(float(mean), rel=1e-5)


def test_pairwise_gradient_is_that_of_the_expectation_over_all_masks_but_for_a_documents_own_product():
    rows, budget = unit_rows(10, 4), 4
    x = rows.block(slice(None)).double()

    def at_budget(mask):  # the definition with the budget's denominator
        s = x[mask].sum(0)
        return -float(s @ s - mask.sum()) / (budget * (budget - 1))

    pi = probabilities(10, budget)
    # |x_i|^2 is 1 only to float32
    expected = central_differences(lambda p: bernoulli_expectation(at_budget, p), pi)
    own = 2 * pi / (budget * (budget - 1))
    found = Pairwise(rows).gradient(pi.float()).double() + own
    torch.testing.assert_close(found, expected.double(), rtol=1e-4, atol=1e-5)


def relaxed(metric, moment, budget):
    """F at a moment."""
    return float(metric.of_moment(moment, budget))


@pytest.mark.parametrize("name", NAMES)
def test_gradient_is_that_of_the_metric_at_the_moment(name):
    metric, budget, pi = METRICS[name](unit_rows(14, 4)), 5, probabilities(14, 5)
    expected = central_differences(lambda p: relaxed(metric, metric.moment(p), budget), pi, width=1e-2)
    found = metric.gradient_at(metric.moment(pi), budget, 2.0).double()
    torch.testing.assert_close(found, 2 * expected.double(), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_derivative_along_a_way_is_that_of_the_metric(name):
    metric, budget = METRICS[name](unit_rows(14, 4)), 5
    start, end = (metric.moment(probabilities(14, budget, seed)) for seed in (1, 2))
    derivative = metric.along(start, end - start, budget)
    for share in (0.1, 0.5, 0.9):
        above, below = (relaxed(metric, torch.lerp(start, end, share + step), budget) for step in (1e-4, -1e-4))
        assert derivative(share) == pytest.approx((above - below) / 2e-4, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("d", [4, 16])
def test_swaps_gain_about_what_their_model_says(name, d):
    metric, [mask] = METRICS[name](unit_rows(60, d)), random_masks(60, 10, 1)
    model = metric.swap_model(mask, 2.0)
    inside, outside = mask.nonzero()[:, 0], (~mask).nonzero()[:, 0]
    cross = model.cross(torch.arange(60))
    promised, gained = [], []
    for out in inside.tolist():
        trials = mask.repeat(len(outside), 1)
        trials[:, out] = False
        trials[torch.arange(len(outside)), outside] = True
        gained.append(2 * (metric.value(trials) - metric.value(mask[None])))
        promised.append(model.gains[outside] - model.gains[out] + cross[out, outside])
    promised, gained = torch.cat(promised).double(), torch.cat(gained)
    assert float(torch.corrcoef(torch.stack([promised, gained]))[0, 1]) > 0.98
    assert bool((gained >= promised - 1e-5).all())
