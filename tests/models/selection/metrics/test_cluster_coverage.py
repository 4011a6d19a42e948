"""`cluster_coverage` against a plain evaluation, and where there is nothing to cover."""

import math

import numpy as np
import pytest
import torch

from fineweb_mask.models.selection import SelectionSettings, select
from fineweb_mask.models.selection.metrics import cluster_coverage
from fineweb_mask.models.selection.metrics.cluster_coverage import ClusterCoverage
from fineweb_mask.models.selection.rows import Rows
from tests.models.selection.enumerable import every_mask, random_masks, unit_rows


def naive(metric, chosen, masses):
    """Coverage by loops over clusters and documents."""
    clusters = sorted(set(metric.labels.tolist()))
    held = {c: sum(masses[i] for i, label in enumerate(metric.labels.tolist()) if label == c) for c in clusters}
    roots = {c: math.sqrt(held[c] / sum(masses)) for c in clusters}
    total = 0.0
    for c in clusters:
        share = roots[c] / sum(roots.values())
        own = sum(masses[i] for i in chosen if int(metric.labels[i]) == c) / sum(masses[i] for i in chosen)
        total += share * (math.sqrt(own / share + 0.01) - 0.1)
    return total


@pytest.mark.parametrize("weigh", [False, True])
def test_value_is_the_definition(weigh):
    masses = torch.rand(60, generator=torch.Generator().manual_seed(2)) + 0.1 if weigh else None
    metric, masks = ClusterCoverage(unit_rows(60, 5), masses), random_masks(60, 9, 5)
    assert len(metric.shares) > 8
    weights = [1.0] * 60 if masses is None else masses.tolist()
    expected = [naive(metric, mask.nonzero()[:, 0].tolist(), weights) for mask in masks]
    torch.testing.assert_close(metric.value(masks), torch.tensor(expected, dtype=torch.float64), rtol=1e-6, atol=0)


def test_it_is_highest_where_clusters_have_the_shares_that_they_should():
    metric = ClusterCoverage(unit_rows(60, 5))
    at_best = metric.of_moment(metric.shares * 12, 12)
    assert float(at_best) == pytest.approx(math.sqrt(1.01) - 0.1)
    for seed in range(20):
        other = torch.rand(len(metric.shares), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        assert metric.of_moment(other / other.sum() * 12, 12) < at_best


@pytest.mark.parametrize("weigh", [False, True])
def test_tangents_are_above_it_everywhere_even_below_zero(weigh):
    masses = torch.rand(14, generator=torch.Generator().manual_seed(2)) + 0.1 if weigh else None
    metric = ClusterCoverage(unit_rows(14, 3), masses)
    masks = every_mask(14, 4)
    for shift in (0.0, -0.5):  # as the moments of a sample that are corrected may be
        moment = metric.moment(random_masks(14, 4, 1)[0]) + shift
        size = 4.0 if masses is None else float(metric.size(masks[0]))
        slopes = metric.gradient_at(moment, size).double()
        for mask in masks:
            share = size / float(metric.size(mask))
            line = metric.height(moment, size) + share * float(slopes[mask].sum())
            assert line >= float(metric.value(mask[None])[0]) - 1e-6


def test_the_clusters_are_those_of_the_documents_and_the_same_again():
    random = np.random.default_rng(0)
    topics = np.arange(300) % 4
    features = np.eye(4, 12)[topics] + 0.05 * random.normal(size=(300, 12)) + 1.0
    rows = Rows(torch.nn.functional.normalize(torch.from_numpy(features).float(), dim=1))
    one, again = ClusterCoverage(rows), ClusterCoverage(rows)
    assert one.labels.equal(again.labels)
    assert one.shares.equal(again.shares)
    for cluster in range(len(one.shares)):
        assert len(set(topics[one.labels.numpy() == cluster])) <= 1


def test_it_covers_more_topics_than_quality_alone(corpus):
    features, quality = corpus
    labels = ClusterCoverage(Rows(torch.from_numpy(features))).labels.numpy()
    covered = {
        lamb: len(
            set(labels[select(features, quality, SelectionSettings(metrics="cluster_coverage", lamb=lamb)).indices])
        )
        for lamb in (0.0, 1.0)
    }
    assert covered[0.0] > 1.5 * covered[1.0]


@pytest.mark.parametrize(
    "features",
    [
        pytest.param(np.ones((40, 6)), id="all equal"),
        pytest.param(np.random.default_rng(0).normal(size=(40, 1)), id="one dimension"),
        pytest.param(np.repeat(np.eye(3), [38, 1, 1], axis=0), id="copies"),
        pytest.param(np.eye(3), id="fewer documents than make a cluster"),
    ],
)
@pytest.mark.parametrize("budget_by", ["documents", "tokens"])
def test_documents_of_no_or_few_kinds(features, budget_by):
    n = len(features)
    settings = SelectionSettings(metrics="cluster_coverage", lamb=0.5, select_ratio=0.4, budget_by=budget_by)
    tokens = np.arange(n) % 5 + 1 if budget_by == "tokens" else None
    found = select(features, np.linspace(0, 1, n), settings, tokens=tokens)
    assert len(found.indices) >= 1
    assert found.upper_bound >= found.objective - 1e-6
    assert np.isfinite(found.objective)


def test_more_clusters_than_rows_differ_leave_some_empty(monkeypatch):
    monkeypatch.setattr(cluster_coverage, "PER_CLUSTER", 1)
    metric = ClusterCoverage(Rows(torch.eye(3).repeat(5, 1)))
    assert len(metric.shares) == 15
    assert len(set(metric.labels.tolist())) == 3
    mask = torch.arange(15) < 3
    assert float(metric.value(mask[None])[0]) == pytest.approx(math.sqrt(1.01) - 0.1)
    assert bool(metric.marginal_gains(mask).isfinite().all())


def test_it_is_proven_nearly_best_where_clusters_hold_few_documents(corpus):
    """The bound knows that a selection has whole documents of each cluster."""
    found = select(*corpus, SelectionSettings(metrics="cluster_coverage", lamb=0.3, near_duplicates={"weight": 0}))
    assert found.gap < 0.03


@pytest.mark.parametrize("weigh", [False, True])
def test_spread_tells_what_each_document_adds_after_the_better_of_its_cluster(weigh):
    generator = torch.Generator().manual_seed(4)
    masses = torch.rand(40, generator=generator) + 0.1 if weigh else None
    metric, others = ClusterCoverage(unit_rows(40, 3), masses), torch.randn(40, generator=generator)
    found = metric.spread(others, 9.0, 2.0)
    for document in range(40):
        better = (metric.labels == metric.labels[document]) & (others > others[document])
        with_it = better.clone()
        with_it[document] = True
        added = [float(metric.of_moment(metric.moment(mask), 9.0)) for mask in (better, with_it)]
        assert float(found[document]) == pytest.approx(float(others[document]) + 2.0 * (added[1] - added[0]), abs=1e-6)


def test_the_top_by_spread_is_the_best_of_all_selections():
    metric, quality = ClusterCoverage(unit_rows(12, 3)), torch.rand(12, generator=torch.Generator().manual_seed(5))
    masks = every_mask(12, 4)
    values = metric.value(masks) + (masks.double() @ quality.double()) / 4
    top = metric.spread(quality / 4, 4.0, 1.0).topk(4).indices
    assert sorted(top.tolist()) == masks[int(values.argmax())].nonzero()[:, 0].tolist()


def test_a_block_too_large_for_swaps_is_covered_too():
    """Its documents of a cluster gain the same, and swaps alone would not break up clusters selected whole."""
    rows = unit_rows(100_000, 6)
    quality = torch.rand(100_000, generator=torch.Generator().manual_seed(0))
    settings = SelectionSettings(lamb=0.0, metrics="cluster_coverage", near_duplicates={"weight": 0})
    found = select(rows.block(slice(None)), quality, settings)
    assert found.terms["diversity"] == pytest.approx(1.0)
    assert found.terms["cluster_coverage"] > 0.9  # the most is 0.905
