"""Every built-in metric: its value against a naive definition, its gradient, gains, tangent and batches."""

import numpy as np
import pytest
import torch

from tests.models.selection.enumerable import (
    METRICS,
    any_masks,
    central_differences,
    full_masks,
    made,
    of_documents,
    random_budget,
    random_masks,
    random_rows,
    unit_rows,
)

SEEDS = range(4)


def naive_pairwise(x, chosen, costs):
    if costs is None:
        pairs = [float(x[i] @ x[j]) for i in chosen for j in chosen if i != j]
        return -sum(pairs) / len(pairs)
    return -sum(float(x[i] @ x[j]) * costs[i] * costs[j] for i in chosen for j in chosen if i != j)


def naive_facility(x, chosen, costs):
    weights = np.full(len(x), 1 / len(x)) if costs is None else costs / costs.sum()
    return sum(weights[v] * max(0.0, *(float(x[v] @ x[i]) for i in chosen)) for v in range(len(x)))


def naive_disf(x, chosen, costs):
    z = (x - x.mean(0)) / x.std(0, correction=0)
    z = torch.nn.functional.normalize(z, dim=1) * x.shape[1] ** 0.5
    weights = np.full(len(x), 1 / (len(chosen) - 1)) if costs is None else costs
    return -float(sum(weights[i] * torch.outer(z[i], z[i]) for i in chosen).norm())


NAIVE = {"pairwise": naive_pairwise, "facility": naive_facility, "disf": naive_disf}


def metrics(name):
    """The metric of some random documents, with both budgets."""
    for seed in SEEDS:
        random = np.random.default_rng(seed)
        n = int(random.integers(4, 10))
        budget = random_budget(random, n, by_tokens=bool(seed % 2))
        yield budget, made(name, random_rows(random, n, 4), budget)


@pytest.mark.parametrize("name", NAIVE)
def test_value_is_the_definition(name):
    for k in (2, 5, 9):
        rows, masks = unit_rows(12, 6), random_masks(12, k, 4)
        x = rows.matrix.double()
        expected = [NAIVE[name](x, mask.nonzero()[:, 0].tolist(), None) for mask in masks]
        found = made(name, rows, of_documents(12, k)).value(masks)
        assert found.tolist() == pytest.approx(expected, rel=1e-5, abs=1e-6)
        budget = random_budget(np.random.default_rng(k), 12, by_tokens=True)
        shares = budget.costs.numpy() / (budget.limit if name != "facility" else 1)
        expected = [NAIVE[name](x, mask.nonzero()[:, 0].tolist(), shares) for mask in masks]
        assert made(name, rows, budget).value(masks).tolist() == pytest.approx(expected, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("name", METRICS)
def test_gains_are_what_adding_or_dropping_each_document_changes(name):
    for budget, metric in metrics(name):
        mask = random_masks(budget.n, budget.n // 2, 1)[0]
        others = mask.repeat(budget.n, 1)
        others[range(budget.n), range(budget.n)] ^= True
        sign = torch.where(mask, -1.0, 1.0)
        changes = (metric.value(others) - metric.value(mask[None])) * sign
        torch.testing.assert_close(metric.gains(mask).double(), changes, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["pairwise", "disf"])
def test_gradient_is_that_of_the_value_at_the_moment_of_the_probabilities(name):
    for budget, metric in metrics(name):
        pi = torch.rand(budget.n, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

        def value(at, metric=metric):
            return float(metric.outer(metric.moment(at).square().sum()) + at @ metric.credit.double())

        expected = central_differences(value, pi, 1e-3)
        torch.testing.assert_close(metric.gradient(pi).double(), expected, rtol=1e-2, atol=2e-3)


def test_facilitys_gradient_is_that_of_the_expectation_over_all_masks():
    for seed in SEEDS:
        random = np.random.default_rng(seed)
        n, budget = 8, random_budget(random, 8, by_tokens=bool(seed % 2))
        rows = random_rows(random, n, 4)
        metric, masks = made("facility", rows, budget), any_masks(n)
        values = torch.cat([metric.value(masks), metric.demand.double()[None] @ metric.lists.similarity[-1].double()])
        masks = torch.cat([masks, torch.zeros((1, n), dtype=torch.bool)])  # with nothing, the last of each list counts

        def expected(pi, masks=masks, values=values):
            return float(torch.where(masks, pi, 1 - pi).prod(1) @ values)

        pi = torch.from_numpy(random.random(n))
        torch.testing.assert_close(
            metric.gradient(pi).double(), central_differences(expected, pi), rtol=1e-4, atol=1e-6
        )
        even = torch.full_like(pi, min(budget.size / n, 1.0))
        assert metric.random_value(budget) == pytest.approx(expected(even), abs=1e-6)


@pytest.mark.parametrize("name", METRICS)
def test_tangents_touch_the_metric_bound_it_elsewhere_and_are_differentiated_by_pull(name):
    for budget, metric in metrics(name):
        masks = any_masks(budget.n)
        values = metric.value(masks)
        for mask in masks[:: max(1, len(masks) // 2)]:
            height, slopes = metric.tangent(metric.place(mask.float()))
            own = float(metric.value(mask[None])[0])
            assert height + float(slopes[mask].sum()) == pytest.approx(own, abs=1e-5)
            taken = torch.rand(budget.n, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
            place = (
                metric.place(taken)
                if name != "facility"
                else metric.moved(torch.rand(budget.n), torch.tensor(0.2), taken)
            )
            height, slopes = metric.tangent(place)
            assert float((height + masks.double() @ slopes - values).min()) >= -1e-5

            def at(place, taken=taken, metric=metric):
                height, slopes = metric.tangent(place)
                return height + float(slopes @ taken)

            if name == "facility":
                continue  # not smooth: its pull is checked where it lowers bounds
            expected = central_differences(at, place, 1e-3)
            torch.testing.assert_close(metric.pull(place, taken).double(), expected, rtol=2e-2, atol=5e-3)


@pytest.mark.parametrize("name", METRICS)
def test_a_batch_is_the_metric_of_the_batch(name):
    rows, index = unit_rows(30, 5), torch.arange(3, 25)
    metric, batch = made(name, rows, of_documents(30, 8)), of_documents(22, 6)
    masks = random_masks(22, 6, 3)
    whole = torch.zeros((3, 30), dtype=torch.bool)
    whole[:, index] = masks
    expected = made(name, rows, of_documents(30, 6)).value(whole)
    if name == "facility":
        expected = made(name, rows.only(index), batch).value(masks)
    torch.testing.assert_close(
        metric.among(index, batch, of_documents(30, 8)).value(masks), expected, rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("name", ["pairwise", "disf"])
def test_random_value_is_the_value_at_the_mean_square_over_all_selections(name):
    for seed in SEEDS:
        rows, budget = random_rows(np.random.default_rng(seed), 5 + seed, 4), of_documents(5 + seed, 3)
        metric = made(name, rows, budget)
        masks = full_masks(budget)
        squares = torch.stack([metric.moment(mask).square().sum() for mask in masks])
        expected = float(metric.outer(squares.mean()) + (masks.double() @ metric.credit.double()).mean())
        assert metric.random_value(budget) == pytest.approx(expected, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("length", [1, 3, 5])
def test_gains_of_facility_read_off_short_lists(length):
    """A document without a selected neighbour in its list counts with the last one's similarity, as documents move."""
    metric = made("facility", unit_rows(14, 3), of_documents(14, 4), length)
    lists = metric.lists

    def on_lists(mask):
        found = torch.where(mask[lists.index.long()], lists.similarity, lists.similarity[-1]).amax(0)
        return float(metric.demand @ found)

    for mask in random_masks(14, 4, 20):
        moved = [mask.clone().index_fill(0, torch.tensor([i]), value=not mask[i]) for i in range(14)]
        expected = torch.tensor([abs(on_lists(one) - on_lists(mask)) for one in moved])
        torch.testing.assert_close(metric.gains(mask), expected, rtol=1e-4, atol=1e-6)
