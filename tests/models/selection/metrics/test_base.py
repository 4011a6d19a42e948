"""Every built-in metric: its value against a naive definition, its batches and its tangent."""

import pytest
import torch

from fineweb_mask.models.selection.metrics.facility import Facility
from fineweb_mask.models.selection.rows import Rows
from tests.models.selection.enumerable import METRICS, every_mask, probabilities, random_masks, unit_rows


def naive_pairwise(x, chosen):
    pairs = [float(x[i] @ x[j]) for i in chosen for j in chosen if i != j]
    return -sum(pairs) / len(pairs)


def naive_facility(x, chosen):
    return sum(max(0.0, *(float(x[v] @ x[i]) for i in chosen)) for v in range(len(x))) / len(x)


def naive_disf(x, chosen):
    z = (x - x.mean(0)) / x.std(0, correction=0)
    z = torch.nn.functional.normalize(z, dim=1) * x.shape[1] ** 0.5
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
    assert METRICS[name](rows).value(masks).tolist() == pytest.approx(expected, rel=1e-5, abs=1e-6)


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


@pytest.mark.parametrize("name", METRICS)
def test_tangent_touches_the_metric_at_its_mask_and_bounds_it_elsewhere(name):
    rows, budget = unit_rows(16, 5), 6
    metric = METRICS[name](rows) if name != "facility" else Facility(rows, 16)
    height, slopes = metric.tangent(probabilities(16, budget), budget, 1.0).evaluate()
    for mask in random_masks(16, budget, 20):
        own = float(metric.value(mask[None])[0])
        at_mask, along = metric.tangent(mask.float(), budget, 1.0).evaluate()
        assert at_mask + float(along[mask].sum()) == pytest.approx(own, abs=1e-5)
        assert own <= height + float(slopes[mask].sum()) + 1e-6


@pytest.mark.parametrize("name", METRICS)
def test_a_tangent_that_is_moved_stays_above_every_selection(name):
    rows, budget = unit_rows(12, 4), 4
    metric = METRICS[name](rows) if name != "facility" else Facility(rows, 5)
    masks = every_mask(12, budget)
    values = metric.value(masks)
    tangent = metric.tangent(torch.full((12,), budget / 12), budget, 2.0)
    for _ in range(20):
        height, slopes = tangent.evaluate()
        above = height + masks.double() @ slopes - 2.0 * values
        assert float(above.min()) >= -1e-6
        highest = masks[int(above.argmax())]
        tangent.descend(highest, 0.1 * float(above.max()))
