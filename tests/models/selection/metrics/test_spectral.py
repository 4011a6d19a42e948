"""What `logdet` and `vendi` share, against differences and where the spectrum has zeros."""

import pytest
import torch

from fineweb_mask.models.selection.metrics.logdet import LogDet
from fineweb_mask.models.selection.metrics.vendi import Vendi
from fineweb_mask.models.selection.rows import Rows
from tests.models.selection.enumerable import probabilities, random_masks, unit_rows

KINDS = [LogDet, Vendi]


@pytest.mark.parametrize("kind", KINDS)
def test_curvature_is_the_second_difference(kind):
    metric, budget = kind(unit_rows(14, 4)), 5
    start, end = (metric.moment(probabilities(14, budget, seed)) for seed in (1, 2))
    derivative = metric.along(start, end - start, budget)
    expected = (derivative(-1e-4) - derivative(1e-4)) / 2e-4
    assert metric.curvature(start, end - start, budget) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("d", [6, 20])
def test_greedy_gains_are_the_differences(kind, d):
    metric, budget, mask = kind(unit_rows(40, d)), 9, torch.zeros(40)
    gains = metric.gains(budget, 3.0)
    for document in (4, 17, 17, 0, 31):  # one of them twice, as near-duplicates are
        before = metric.of_matrix(metric.moment(mask) / budget)
        more = mask.repeat(40, 1) + torch.eye(40)
        expected = 3 * torch.stack([metric.of_matrix(metric.moment(one) / budget) - before for one in more])
        tolerance = 1e-5 if kind is LogDet else 5e-3 / budget
        torch.testing.assert_close(gains.gains().double(), expected, rtol=0, atol=tolerance)
        gains.add(document)
        mask[document] += 1


@pytest.mark.parametrize("kind", KINDS)
def test_fewer_directions_are_exact_where_the_others_are_even(kind):
    generator = torch.Generator().manual_seed(0)
    main = torch.randn((30, 3), generator=generator)
    others = torch.cat([torch.eye(16), -torch.eye(16)]).repeat(30, 1)  # each main part with each other direction
    rows = Rows(torch.nn.functional.normalize(torch.cat([main.repeat_interleave(32, 0), others], dim=1), dim=1))
    metric = kind(rows)
    reduced = metric.reduced(4, generator)
    assert reduced.copies == 16
    assert reduced.dimensions == metric.dimensions == 19
    weights = torch.rand(30, generator=generator).repeat_interleave(32)
    for probability in (weights, 1 - weights):
        pi = probability * 60 / probability.sum()
        moments = metric.moment(pi), reduced.moment(pi)
        whole, fewer = (one.gradient_at(moment, 60) for one, moment in zip((metric, reduced), moments, strict=True))
        torch.testing.assert_close(whole, fewer, rtol=1e-3, atol=1e-6)
    ends = [(one.moment(weights), one.moment(1 - weights)) for one in (metric, reduced)]
    along = [one.along(a, b - a, 60) for one, (a, b) in zip((metric, reduced), ends, strict=True)]
    assert along[0](0.3) == pytest.approx(along[1](0.3), rel=1e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_there_is_nothing_to_reduce_in_few_directions(kind):
    metric = kind(unit_rows(10, 7))
    assert metric.reduced(4, torch.Generator()) is metric


@pytest.mark.parametrize("kind", KINDS)
def test_selections_of_few_directions_have_finite_worths_and_tangents(kind):
    rows = Rows(unit_rows(4, 12).block(slice(None)).repeat(5, 1))  # each document five times, and 4 of 12 directions
    metric = kind(rows)
    for mask in random_masks(20, 3, 5):
        height, slopes = metric.tangent(mask.float(), 3, 1.0).evaluate()
        assert torch.isfinite(slopes).all()
        assert height + float(slopes[mask].sum()) == pytest.approx(float(metric.value(mask[None])[0]), abs=1e-5)
        model = metric.swap_model(mask, 1.0)
        assert torch.isfinite(model.worth).all()
        assert torch.isfinite(model.cross(torch.arange(20))).all()
    duplicates = torch.arange(20) % 4 == 1
    assert float(metric.value(duplicates[None])[0]) == pytest.approx({LogDet: 2.564949, Vendi: 0.0}[kind], abs=1e-5)
