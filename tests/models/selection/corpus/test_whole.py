"""One selection over a corpus: near the optimum, bounded, the same in any order of parts."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fineweb_mask.models.selection.block import BlockSolver
from fineweb_mask.models.selection.corpus.documents import Documents
from fineweb_mask.models.selection.corpus.whole import select_corpus
from fineweb_mask.models.selection.inputs import checked_features
from fineweb_mask.models.selection.solvers.problem import History
from tests.models.selection.corpus.conftest import CPU, problem_of, settings_of

SUMS = {"pairwise": 1.0, "disf": 0.5}


def optimum(parts, found, settings):
    """Select from all documents as one block, on the same scale."""
    whole = Documents.concatenate(parts)
    rows = checked_features(whole.vectors, CPU)
    metrics = {
        name: (metric, settings.metric_weights[name]) for name, metric in found.rule.frame.metrics(whole, rows).items()
    }
    solver = BlockSolver(rows, torch.from_numpy(whole.quality), settings.model_copy(update={"metrics": {}}), metrics)
    solver.take_ranges(found.ranges)
    history = History()
    return solver.selection(*solver.solve(history, settings.lamb), history, settings.lamb)


@pytest.mark.parametrize("metrics", ["pairwise", "disf", SUMS])
def test_it_is_near_the_optimum_and_bounded(parts, metrics):
    settings = settings_of(metrics=metrics, lamb=0.5)
    found = select_corpus(lambda: parts, settings, rate=0.5, passes=3)
    best = optimum(parts, found, settings)
    span = best.objective - found.random_objective
    assert (found.objective - found.random_objective) / span > 0.98
    assert found.upper_bound >= best.objective - 1e-6 * span
    assert found.upper_bound >= found.objective
    assert found.gap < 0.05
    assert sum(int(mask.sum()) for mask in found.masks) == 340


def test_the_objective_is_that_of_the_selected_and_better_than_a_block_for_each_part(parts):
    settings = settings_of(metrics=SUMS, lamb=0.5)
    found = select_corpus(lambda: parts, settings, rate=0.5)
    whole = problem_of(parts, settings, ranges=found.ranges, frame=found.rule.frame)
    mask = torch.from_numpy(np.concatenate(found.masks))
    assert whole.scaled.objective.value_of(mask) == pytest.approx(found.objective, rel=1e-5)
    masks = [torch.zeros(len(part.quality), dtype=torch.bool) for part in parts]
    for part, mask in zip(parts, masks, strict=True):
        mask[optimum([part], found, settings).indices] = True
    assert whole.scaled.objective.value_of(torch.cat(masks)) < found.objective - 0.02


def test_the_order_of_the_parts_does_not_matter(parts):
    settings = settings_of(metrics="pairwise", lamb=0.5)
    one = select_corpus(lambda: parts, settings, rate=1.0)
    other = select_corpus(lambda: parts[::-1], settings, rate=1.0)
    same = np.mean(np.concatenate(one.masks) == np.concatenate(other.masks[::-1]))
    assert same > 0.99
    assert one.objective == pytest.approx(other.objective, rel=1e-3)


def test_equal_inputs_give_equal_selections(parts):
    settings = settings_of(metrics=SUMS, lamb=0.5)
    one, other = (select_corpus(lambda: parts, settings, rate=0.3) for _ in range(2))
    np.testing.assert_array_equal(np.concatenate(one.masks), np.concatenate(other.masks))
    assert one.upper_bound == other.upper_bound


@pytest.mark.long
@pytest.mark.parametrize("weigh", [True, False])
@given(data=st.data())
def test_no_selection_is_above_the_bound(weigh, data):
    """All selections of small corpora are evaluated."""
    seed, n = data.draw(st.integers(0, 10**6)), data.draw(st.integers(4, 12))
    random = np.random.default_rng(seed)
    documents = Documents(
        random.normal(size=(n, 3)).astype(np.float32),
        random.normal(size=n).astype(np.float32),
        random.random(n),
        random.integers(2, 5, n) if weigh else None,
    )
    metric = data.draw(st.sampled_from(["pairwise", "disf"]))
    settings = settings_of(
        metrics=metric,
        lamb=data.draw(st.sampled_from([0.0, 0.3, 0.8, 1.0])),
        select_ratio=0.4,
        normalize="none",
        budget_by="tokens" if weigh else "documents",
    )
    cut = data.draw(st.integers(1, n - 1))
    pieces = [documents.take(np.arange(n) < cut), documents.take(np.arange(n) >= cut)]
    found = select_corpus(lambda: pieces, settings)
    problem = problem_of([documents], settings, ranges=found.ranges)
    budget, costs = problem.budget, documents.costs
    masks = [np.array(mask, dtype=bool) for mask in itertools.product([False, True], repeat=n)]
    used = sum(piece.costs[mask].sum() for piece, mask in zip(pieces, found.masks, strict=True))
    if used:
        full = np.array([mask for mask in masks if used <= costs[mask].sum() <= budget])
        best = float(problem.scaled.objective.value(torch.from_numpy(full)).max())
        assert found.upper_bound >= best - 1e-5 * max(1.0, abs(best))
