"""The code that kernel metrics share, against an enumeration of all subsets."""

import pytest
import torch

from fineweb_mask.models.selection.metrics.disf import Disf
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


@pytest.fixture(params=NAMES)
def both(request):
    """A metric of 8 documents beside 5 others of which 3 are selected, that of all 13, and those 3."""
    rows = unit_rows(13, 4)
    everyone, standard = METRICS[request.param](rows), rows.standard()
    own, others = (METRICS[request.param](rows.only(torch.arange(*ends)), None, standard) for ends in ((8,), (8, 13)))
    taken = torch.tensor([True, False, True, True, False])
    return own.beside(others.moment(taken), 3), everyone, taken


def test_beside_other_documents_a_metric_is_that_of_the_selection_of_both(both):
    beside, everyone, taken = both
    masks = every_mask(8, 4)
    whole = torch.cat([masks, taken.expand(len(masks), -1)], dim=1)
    values = everyone.value(whole)
    torch.testing.assert_close(beside.value(masks), values, rtol=1e-5, atol=1e-6)
    for start in (1, 2):
        height, slopes = beside.tangent(probabilities(8, 4, start), 4, 1.0).evaluate()
        assert bool((height + masks.double() @ slopes >= values - 1e-5).all())
    at_mask = beside.tangent(masks[0].float(), 4, 1.0).evaluate()
    assert at_mask[0] + float(masks[0].double() @ at_mask[1]) == pytest.approx(float(values[0]), rel=1e-4)
    if isinstance(beside, Pairwise):
        assert beside.random_value(4) == pytest.approx(float(values.mean()), rel=1e-4)
        gains = everyone.marginal_gains(whole[0])[:8]
        torch.testing.assert_close(beside.marginal_gains(masks[0]), gains, rtol=1e-4, atol=1e-5)


def test_greedy_gains_begin_with_what_else_is_selected(both):
    beside, everyone, taken = both
    gains = beside.gains(4, 2.0)
    for document in (2, 5):
        mask = torch.zeros(13, dtype=torch.bool)
        mask[8:], mask[[one for one in (2, 5) if one < document]] = taken, True
        expected = []
        for other in range(8):
            added = mask.clone()
            added[other] = True
            v = [everyone.moment(one).square().sum() for one in (mask, added)]
            expected.append(2 * float(everyone.outer(v[1], 7) - everyone.outer(v[0], 7)))
        open_ = [other for other in range(8) if not mask[other]]
        torch.testing.assert_close(gains.gains()[open_], torch.tensor(expected)[open_], rtol=1e-3, atol=1e-4)
        gains.add(document)


def test_the_parts_of_a_metric_beside_others_agree(both):
    beside, _, _ = both
    mask = every_mask(8, 4)[3]
    index = torch.tensor([0, 2, 3, 6, 7])
    moment = beside.moment(mask)
    added = beside.restrict(index).moment(mask[index])
    torch.testing.assert_close(moment - beside.rest, beside.restrict(torch.arange(8)).moment(mask))
    assert added.shape == moment.shape
    if isinstance(beside, Disf):
        inside = every_mask(8, 4)[0]
        focused = beside.focused(inside.nonzero()[:, 0])
        torch.testing.assert_close(focused.value(inside[None]), beside.value(inside[None]), rtol=1e-5, atol=1e-6)
        assert beside.reduced(2, torch.Generator()) is beside
