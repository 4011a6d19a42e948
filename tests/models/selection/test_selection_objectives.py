"""The metrics against their definitions written naively, and their gradients against differences."""

import itertools

import pytest
import torch

from models.selection.certificate import upper_bound
from models.selection.objectives import METRICS, Disf, Facility, Objective, Pairwise, disf_by_selection
from models.selection.rows import Rows


def unit_rows(n, d, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn((n, d), generator=generator) + 0.5
    return Rows(torch.nn.functional.normalize(rows, dim=1).to(dtype))


def random_masks(n, k, groups, seed=1):
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.rand((groups, n), generator=generator).topk(k, dim=1).indices
    return torch.zeros((groups, n), dtype=torch.bool).scatter_(1, chosen, value=True)


def naive_pairwise(x, chosen):
    pairs = [float(x[i] @ x[j]) for i in chosen for j in chosen if i != j]
    return -sum(pairs) / len(pairs)


def naive_facility(x, chosen):
    return sum(max(0.0, *(float(x[v] @ x[i]) for i in chosen)) for v in range(len(x))) / len(x)


def naive_disf(x, chosen):
    z = (x - x.mean(0)) / x.std(0, correction=0)
    moment = sum(torch.outer(z[i], z[i]) for i in chosen) / (len(chosen) - 1)
    return -float(moment.square().sum().sqrt())


NAIVE = {"pairwise": naive_pairwise, "facility": naive_facility, "disf": naive_disf}


@pytest.mark.parametrize("name", NAIVE)
@pytest.mark.parametrize("budget", [2, 5, 9])
def test_value_is_the_definition(name, budget):
    rows = unit_rows(12, 6)
    masks = random_masks(12, budget, 4)
    x = rows.block(slice(None)).double()
    expected = [NAIVE[name](x, mask.nonzero()[:, 0].tolist()) for mask in masks]
    torch.testing.assert_close(
        METRICS[name](rows).value(masks), torch.tensor(expected, dtype=torch.float64), rtol=1e-5, atol=1e-6
    )


def test_facility_is_exact_with_short_lists():
    rows = unit_rows(40, 6)
    short, direct = Facility(rows, 3), Facility(rows)
    masks = random_masks(40, 2, 8)
    expected = direct.value(masks)
    assert short.graph.k == 3
    torch.testing.assert_close(short.value(masks), expected)


@pytest.mark.parametrize("name", METRICS)
def test_batch_is_the_metric_of_the_batch(name):
    rows = unit_rows(30, 5)
    metric, index = METRICS[name](rows), torch.arange(3, 25)
    masks = random_masks(22, 6, 3)
    batch = metric.restrict(index).value(masks)
    if name == "facility":
        expected = Facility(Rows(rows.take(index))).value(masks)
    else:
        whole = torch.zeros((3, 30), dtype=torch.bool)
        whole[:, index] = masks
        expected = metric.value(whole)
    torch.testing.assert_close(batch, expected, rtol=1e-5, atol=1e-6)


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


def test_pairwise_gradient_is_that_of_the_expectation_over_all_masks():
    rows, budget = unit_rows(10, 4), 4
    x = rows.block(slice(None)).double()

    def at_budget(mask):  # the definition with the budget's denominator
        s = x[mask].sum(0)
        return -float(s @ s - mask.sum()) / (budget * (budget - 1))

    pi = probabilities(10, budget)
    # |x_i|^2 is 1 only to float32
    expected = central_differences(lambda p: bernoulli_expectation(at_budget, p), pi)
    torch.testing.assert_close(Pairwise(rows).gradient(pi.float()).double(), expected.double(), rtol=1e-4, atol=1e-5)


def test_facility_gradient_is_that_of_the_expectation_over_all_masks():
    rows = unit_rows(10, 4)
    similarity = (rows.block(slice(None)) @ rows.block(slice(None)).T).clamp(min=0).double()
    metric = Facility(rows, 10)
    last = metric.graph.similarity[-1].double()  # what a document counts with if nothing is selected

    def value(mask):
        best = similarity[:, mask].amax(1) if mask.any() else last
        return float(best.mean())

    pi = probabilities(10, 4)
    assert metric.expected(pi.float()) == pytest.approx(bernoulli_expectation(value, pi), abs=1e-6)
    expected = central_differences(lambda p: bernoulli_expectation(value, p), pi)
    torch.testing.assert_close(metric.gradient(pi.float()).double(), expected.double(), rtol=1e-4, atol=1e-6)


def test_facility_gradient_survives_certain_inclusion():
    metric = Facility(unit_rows(20, 4), 20)
    pi = torch.zeros(20)
    pi[:5] = 1.0  # products of (1 - pi) are zero here
    assert torch.isfinite(metric.gradient(pi)).all()
    assert metric.expected(pi) == pytest.approx(float(metric.value((pi > 0)[None])[0]), abs=1e-6)


def test_disf_gradient_is_that_of_the_norm():
    rows, budget = unit_rows(14, 4), 5
    metric = Disf(rows)
    z = metric.rows.block(slice(None)).double()

    def value(pi):
        return -float((z.T @ (z * pi[:, None]) / (budget - 1)).square().sum().sqrt())

    pi = probabilities(14, budget)
    expected = central_differences(value, pi)
    torch.testing.assert_close(metric.gradient(pi.float()).double(), expected.double(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", METRICS)
def test_relaxation_equals_the_metric_on_masks_and_bounds_it_along_its_gradient(name):
    rows, budget = unit_rows(16, 5), 6
    metric = METRICS[name](rows) if name != "facility" else Facility(rows, 16)
    value, gradient = metric.relaxed(probabilities(16, budget))
    pi = probabilities(16, budget)
    for mask in random_masks(16, budget, 20):
        own = float(metric.value(mask[None])[0])
        assert metric.relaxed(mask.double())[0] == pytest.approx(own, abs=1e-5)
        assert own <= value + float(gradient @ (mask.double() - pi)) + 1e-6


@pytest.mark.parametrize("name", ["pairwise", "disf"])
def test_random_value_is_the_mean_over_all_subsets(name):
    rows, budget = unit_rows(9, 3), 4
    metric = METRICS[name](rows)
    masks = torch.zeros((126, 9), dtype=torch.bool)
    for mask, chosen in zip(masks, itertools.combinations(range(9), budget), strict=True):
        mask[list(chosen)] = True
    values = metric.value(masks)
    mean = values.mean() if name == "pairwise" else -values.square().mean().sqrt()
    assert metric.random_value(budget) == pytest.approx(float(mean), rel=1e-5)


def test_both_forms_of_disf_rank_selections_alike():
    generator = torch.Generator().manual_seed(0)
    scales = torch.linspace(0.1, 3, 8)
    cloud = torch.randn((200, 8), generator=generator) * scales
    rows = Rows(torch.nn.functional.normalize(cloud, dim=1))
    metric = Disf(rows)
    own, published = [], []
    for share in torch.linspace(0, 1, 8):  # from uniform subsets to ones along a single direction
        keys = torch.rand(200, generator=generator) * (1 - share) + share * rows.block(slice(None))[:, -1].abs()
        mask = torch.zeros(200, dtype=torch.bool)
        mask[keys.topk(40).indices] = True
        own.append(float(metric.value(mask[None])[0]))
        published.append(disf_by_selection(rows, mask))
    ranks = torch.tensor([own, published]).argsort(1).argsort(1).double()
    assert float(torch.corrcoef(ranks)[0, 1]) > 0.6


@pytest.mark.parametrize("name", METRICS)
@pytest.mark.parametrize("lamb", [0.0, 0.1, 0.5, 0.9, 1.0])
def test_bound_holds_against_enumeration_from_any_start(name, lamb):
    rows, budget = unit_rows(12, 4, seed=5), 4
    quality = torch.rand(12, generator=torch.Generator().manual_seed(6))
    metric = METRICS[name](rows) if name != "facility" else Facility(rows, 5)
    objective = Objective(quality, budget, {name: metric}, linear_weight=lamb, weights={name: 1 - lamb})
    combinations = list(itertools.combinations(range(12), budget))
    masks = torch.zeros((len(combinations), 12), dtype=torch.bool)
    for mask, chosen in zip(masks, combinations, strict=True):
        mask[list(chosen)] = True
    best = float(objective.value(masks).max())
    for seed in range(5):
        bound = upper_bound(objective, probabilities(12, budget, seed))
        assert bound is not None
        assert bound >= best - 1e-6
