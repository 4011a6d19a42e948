"""`facility` with short lists, against the expectation over all masks, at certain inclusion, and with missing edges."""

import numpy as np
import pytest
import torch

from fineweb_mask.models.selection import SelectionSettings, select
from fineweb_mask.models.selection.graphs.neighbours import PART, Missed, Neighbours, missed_by, nearest
from fineweb_mask.models.selection.metrics.facility import Facility
from fineweb_mask.models.selection.problem.measures import FalseBoundError
from fineweb_mask.models.selection.problem.objective import Objective
from fineweb_mask.models.selection.problem.upper_bound import Bound, tightened_bound
from fineweb_mask.models.selection.rows import Rows
from tests.models.selection.enumerable import (
    bernoulli_expectation,
    central_differences,
    every_mask,
    probabilities,
    random_masks,
    unit_rows,
)


def test_facility_is_exact_with_short_lists_of_eight_bytes_a_place():
    rows, masks = unit_rows(40, 6), random_masks(40, 2, 8)
    short = Facility(rows, 3)
    assert short.graph.k == 3
    assert short.graph.index.element_size() + short.graph.similarity.element_size() == 8
    torch.testing.assert_close(short.value(masks), Facility(rows).value(masks))


@pytest.mark.parametrize("n_neighbours", [None, 3])
def test_a_selection_after_another_is_evaluated_as_if_it_were_the_first(n_neighbours):
    rows = unit_rows(60, 4)
    metric = Facility(rows, n_neighbours or 60)
    if n_neighbours:
        _ = metric.graph
    similarity = rows.block(slice(None)) @ rows.block(slice(None)).T
    generator = torch.Generator().manual_seed(0)
    mask = random_masks(60, 6, 1)[0]
    for swaps in (0, 1, 2, 5, 0, 1, 6, 1):
        inside, outside = mask.nonzero()[:, 0], (~mask).nonzero()[:, 0]
        mask[inside[torch.randperm(len(inside), generator=generator)[:swaps]]] = False
        mask[outside[torch.randperm(len(outside), generator=generator)[:swaps]]] = True
        expected = similarity[:, mask].amax(1).clamp(0, 1).mean()
        assert float(metric.value(mask[None])[0]) == pytest.approx(float(expected), abs=1e-6)


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
    certain = (torch.arange(10) < 5).float()  # products of (1 - pi) are zero here
    assert torch.isfinite(metric.gradient(certain)).all()
    assert metric.expected(certain) == pytest.approx(float(metric.value(certain.bool()[None])[0]), abs=1e-6)


def test_marginal_gains_are_what_adding_or_dropping_each_document_changes():
    rows = unit_rows(40, 5)
    metric, mask = Facility(rows, 40), random_masks(40, 6, 1)[0]
    others = mask.repeat(40, 1)
    others[range(40), range(40)] ^= True
    changes = (metric.value(others) - metric.value(mask[None])).abs()
    torch.testing.assert_close(metric.marginal_gains(mask).double(), changes, rtol=0, atol=1e-6)


def test_the_bound_holds_where_lists_miss_the_nearest_selected_document():
    """Without what the sample adds, the tangent of lists with edges removed is below the best selection."""
    rows, n_selected = unit_rows(12, 3), 3
    lists = nearest(rows, 4)
    keep = torch.tensor([0, 2, 3])  # every document's nearest other document is missing
    cut = Neighbours(lists.index[keep], lists.similarity[keep])
    exact, metric, naive = Facility(rows), Facility(rows), Facility(rows)
    metric._graph = Neighbours(cut.index, cut.similarity, missed_by(rows, cut, torch.arange(12)))
    naive._graph = cut
    masks = every_mask(12, n_selected)
    best = float(exact.value(masks).max())
    bounds = []
    for one in (naive, metric):
        objective = Objective(torch.zeros(12), n_selected, {"f": one}, linear_weight=0.0, weights={"f": 1.0})
        for inclusion in (torch.full((12,), 0.25), masks[int(exact.value(masks).argmax())].float()):
            bound = Bound(objective, inclusion)
            for _ in range(30):
                height, mask = bound.evaluate()
                bounds.append((one is metric, height))
                bound.descend(0.3 * (height - best), mask)
    assert min(height for proven, height in bounds if proven) >= best - 1e-6
    assert min(height for proven, height in bounds if not proven) < best - 1e-3
    assert (metric.value(masks) <= exact.value(masks) + 1e-6).all()
    assert metric.bound_assumes is None  # the sample is all documents


def test_a_sample_estimates_from_above_what_lists_miss():
    rows = unit_rows(400, 6)
    lists = nearest(rows, 8)
    keep = torch.tensor([0, *range(2, 8)])
    cut = Neighbours(lists.index[keep], lists.similarity[keep])
    inclusion = torch.full((400,), 0.1)

    def missing(documents):
        metric = Facility(rows)
        metric._graph = Neighbours(cut.index, cut.similarity, missed_by(rows, cut, documents))
        return metric.tangent(inclusion, 40, 1.0).missing()

    whole = missing(torch.arange(400))
    samples = [missing(torch.randperm(400, generator=torch.Generator().manual_seed(i))[:60]) for i in range(20)]
    assert whole > 0.01
    assert sum(sample >= whole for sample in samples) >= 19
    assert np.mean(samples) < 2 * whole


@pytest.mark.long
def test_a_selection_from_approximate_lists_says_what_its_bound_assumes(monkeypatch):
    monkeypatch.setitem(Facility.__init__.__kwdefaults__, "recall", 0.95)
    random = np.random.default_rng(0)
    centres = 2 * random.normal(size=(20, 16))
    features = centres[random.integers(0, 20, 1500)] + random.normal(size=(1500, 16))
    quality = random.random(1500)
    found = {}
    for graph in ("exact", "approximate"):
        settings = SelectionSettings(metrics="facility", lamb=0.2, mean_field={"graph": graph})
        found[graph] = select(features, quality, settings)
    exact, approximate = found["exact"], found["approximate"]
    assert exact.bound_assumes is None
    assert approximate.bound_assumes.endswith("was estimated from 256 documents")
    assert exact.upper_bound <= approximate.upper_bound
    assert approximate.objective <= approximate.upper_bound
    assert approximate.gap < exact.gap + 0.05
    true = Facility(Rows(torch.nn.functional.normalize(torch.from_numpy(features).float(), dim=1)))
    mask = torch.zeros((1, 1500), dtype=torch.bool)
    mask[0, approximate.indices] = True
    value = float(true.value(mask)[0])
    assert value - 1e-3 < approximate.terms["facility"] <= value + 1e-6
    assert value > 0.995 * exact.terms["facility"]
    same = select(features, quality, settings)
    assert np.array_equal(same.indices, approximate.indices)
    assert same.upper_bound == approximate.upper_bound


def test_an_estimated_bound_below_the_objective_is_raised_to_it():
    rows = unit_rows(30, 4)
    metric = Facility(rows, 5)
    objective = Objective(torch.zeros(30), 5, {"f": metric}, linear_weight=0.0, weights={"f": 1.0})
    mask = torch.arange(30) < 5
    last = torch.full((1, 30), 29)  # lists that hold one document, of similarity 0: the tangent is 0
    unseen = Missed(torch.tensor([0]), torch.tensor([0.0]), 1.0)
    metric._graph = Neighbours(last, torch.zeros(1, 30), unseen)
    bound = tightened_bound(objective, torch.full((30,), 5 / 30), mask, 0.0)
    assert bound == objective.value_of(mask) > 0
    metric._graph = Neighbours(last, torch.zeros(1, 30))
    with pytest.raises(FalseBoundError):
        tightened_bound(objective, torch.full((30,), 5 / 30), mask, 0.0)


@pytest.mark.parametrize("weighed", [False, True])
def test_lists_read_in_parts_give_the_same_and_hold_little(weighed, monkeypatch):
    n, k = 600, 20
    masses = torch.linspace(0.5, 2, n) if weighed else None
    metric = Facility(unit_rows(n, 8), k, masses)
    pi, mask = torch.rand(n, generator=torch.Generator().manual_seed(0)), torch.arange(n) % 7 == 0
    assert metric.graph.k == k

    def everything():
        tangent = metric.tangent(pi * (n / 8 / pi.sum()), n // 8, 1.0)
        tangent.descend(mask, 0.01)
        height, slopes = tangent.evaluate()
        return metric.value(mask[None]), metric.gradient(pi), metric.marginal_gains(mask), slopes, torch.tensor(height)

    whole = everything()
    monkeypatch.setitem(PART, "cpu", 20 * k)
    take, sizes = Neighbours.take, []

    def noted(graph, values, part):
        taken = take(graph, values, part)
        sizes.append(taken.numel())
        return taken

    monkeypatch.setattr(Neighbours, "take", noted)
    in_parts = everything()
    for one, other in zip(whole, in_parts, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-7)
    assert max(sizes) == 20 * k  # nothing is as large as the lists
