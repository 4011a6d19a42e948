"""The code that kernel metrics share, against an enumeration of all subsets."""

import itertools

import numpy as np
import pytest
import torch

from fineweb_mask.models.selection import SelectionSettings, select
from fineweb_mask.models.selection.metrics.base import SwapModel
from fineweb_mask.models.selection.metrics.kernel import MomentMetric
from fineweb_mask.models.selection.rows import Rows
from fineweb_mask.models.selection.solvers import mean_field, swaps
from tests.models.selection.enumerable import METRICS, central_differences, probabilities, random_masks, unit_rows


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


class Volume(MomentMetric):
    """A newcomer: log det(I + d rho), rho = sum_i m_i x_i x_i^T / K, which is no function of a norm."""

    swap_pool, swaps_as_promised = 4096, False

    def __init__(self, rows, masses=None):
        self.rows, self.masses, self.eye = rows, masses, torch.eye(rows.d, dtype=torch.float64)

    def value(self, masks):
        return torch.stack([self.of_moment(self.moment(mask), float(mask.sum())) for mask in masks])

    def moment(self, weights):
        return self.rows.second_moment(weights.nonzero()[:, 0], weights)

    def of_moment(self, moment, budget):
        return torch.logdet(self.eye + moment * (self.rows.d / budget))

    def slopes(self, moment, budget):
        return torch.linalg.inv(self.eye + moment * (self.rows.d / budget)) * (self.rows.d / budget)

    def gradient_at(self, moment, budget, weight=1.0):
        return self.rows.quadratic(self.slopes(moment, budget)).mul_(weight)

    def along(self, moment, way, budget):
        return lambda share: float((self.slopes(moment + share * way, budget) * way).sum())

    def height(self, moment, budget):
        return float(self.of_moment(moment, budget) - (self.slopes(moment, budget) * moment).sum())

    def swap_model(self, mask, weight):
        slopes = self.slopes(self.moment(mask), float(mask.sum()))
        q = self.rows.quadratic(slopes)
        worth = torch.where(mask, -torch.log1p(-q.clamp(max=1 - 1e-6)), torch.log1p(q))

        def cross(pool):
            x = self.rows.take(pool)
            return (x @ slopes.float() @ x.T).square_().mul_(weight)

        return SwapModel(worth.mul_(weight), cross)


KINDS = {name: kind for name, kind in METRICS.items() if issubclass(kind, MomentMetric)} | {"volume": Volume}
NAMES = list(KINDS)


def relaxed(metric, moment, budget):
    """F at a moment."""
    return float(metric.of_moment(moment, budget))


@pytest.mark.parametrize("name", NAMES)
def test_gradient_is_that_of_the_metric_at_the_moment(name):
    metric, budget, pi = KINDS[name](unit_rows(14, 4)), 5, probabilities(14, 5)
    expected = central_differences(lambda p: relaxed(metric, metric.moment(p), budget), pi, width=1e-2)
    found = metric.gradient_at(metric.moment(pi), budget, 2.0).double()
    torch.testing.assert_close(found, 2 * expected.double(), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_derivative_along_a_way_is_that_of_the_metric(name):
    metric, budget = KINDS[name](unit_rows(14, 4)), 5
    start, end = (metric.moment(probabilities(14, budget, seed)) for seed in (1, 2))
    derivative = metric.along(start, end - start, budget)
    for share in (0.1, 0.5, 0.9):
        above, below = (relaxed(metric, torch.lerp(start, end, share + step), budget) for step in (1e-4, -1e-4))
        assert derivative(share) == pytest.approx((above - below) / 2e-4, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("d", [4, 16])
def test_swaps_gain_about_what_their_model_says(name, d):
    metric, [mask] = KINDS[name](unit_rows(60, d)), random_masks(60, 10, 1)
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
    if metric.swaps_as_promised:
        assert bool((gained >= promised - 1e-5).all())


def test_a_newcomer_that_is_smooth_is_solved_as_the_built_in_ones_are(monkeypatch, corpus):
    """By line searches, and by swaps inside a pool, without a word about its class."""
    features, quality = (values[:200] for values in corpus)
    rounds, pool_round = [], swaps.pool_round
    monkeypatch.setattr(swaps, "pool_round", lambda *given: rounds.append(given) or pool_round(*given))
    monkeypatch.setattr(swaps, "batch_round", None)
    volume = Volume(unit_rows_of(features))
    settings = SelectionSettings(metrics={}, lamb=0.3, normalize="none")
    own = {"volume": (volume, 1.0)}
    found = select(features, quality, settings, own_metrics=own)
    assert rounds
    path = mean_field.Annealing(rounds[0][0])
    assert path.schedule == mean_field.LINE_SEARCH
    assert not path.others
    learning = {"n_epochs": 200, "partial": 1.0}
    other = SelectionSettings(
        metrics={}, lamb=0.3, normalize="none", solver="policy_gradient", policy_gradient=learning
    )
    learned = select(features, quality, other, own_metrics=own)
    assert found.objective > learned.objective


def unit_rows_of(features):
    return Rows(torch.nn.functional.normalize(torch.from_numpy(np.asarray(features)).float(), dim=1))
