"""Blocks of documents that are alike: their sizes, what each gives, and how they add up to the whole objective."""

from itertools import combinations

import numpy as np
import pytest
import torch

from fineweb_mask.models.selection.cells import cells_of, fit_cells, plan_cells, select_from_cell
from fineweb_mask.models.selection.measures import measured
from fineweb_mask.models.selection.selector import select
from fineweb_mask.models.settings.selection import SelectionSettings

CPU = torch.device("cpu")


def clustered(n, seed=0, d=16, clusters=12):
    """Unit rows around some centres, a quality that differs by cluster, and tokens."""
    dice = np.random.default_rng(seed)
    label = dice.integers(0, clusters, n)
    vectors = dice.normal(size=(clusters, d))[label] + 0.6 * dice.normal(size=(n, d))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    quality = dice.random(clusters)[label] + dice.random(n)
    return vectors.astype(np.float32), quality.astype(np.float32), dice.integers(20, 400, n)


def planned(corpus, settings, block_size=200):
    """Cut a corpus into cells, all of it the sample: the cell of each document, and the plan."""
    vectors, quality, tokens = corpus
    cells = cells_of(vectors, fit_cells(vectors, len(vectors), block_size, 0, CPU), CPU)
    costs = tokens if settings.budget_by == "tokens" else np.ones(len(cells))
    sizes = np.bincount(cells, costs).astype(np.int64)
    return cells, plan_cells(vectors, quality, cells, settings, sizes, device=CPU, tokens=tokens)


def chosen_by_cell(corpus, settings, cells, plan):
    """Select from every cell: which documents (n,), and the selections."""
    vectors, quality, tokens = corpus
    mask, found = np.zeros(len(cells), dtype=bool), []
    for cell in range(len(plan.rates)):
        rows = np.flatnonzero(cells == cell)
        held = int(tokens[rows].sum()) if settings.budget_by == "tokens" else len(rows)
        own = settings.model_copy(update={"budget": round(plan.rates[cell] * held)})
        options = {"device": CPU, "tokens": tokens[rows]}
        found.append(select_from_cell(vectors[rows], quality[rows], own, plan, cell, **options))
        mask[rows[found[-1].indices]] = True
    return mask, found


@pytest.mark.parametrize(("n", "block_size"), [(300, 50), (50, 7)])
def test_no_cell_is_larger_than_a_block_and_each_document_is_in_the_nearest(n, block_size):
    vectors, _, _ = clustered(n)
    centres = fit_cells(vectors, n, block_size, 0, CPU)
    cells = cells_of(vectors, centres, CPU)
    np.testing.assert_array_equal(cells, (vectors @ centres.T).argmax(1))
    assert np.bincount(cells, minlength=len(centres)).min() > 0
    assert np.bincount(cells).max() <= block_size
    np.testing.assert_array_equal(centres, fit_cells(vectors, n, block_size, 0, CPU))


def test_equal_documents_are_one_cell_however_many_they_are():
    assert len(fit_cells(np.tile(clustered(1)[0], (90, 1)), 90, 10, 0, CPU)) == 1


def test_a_sample_stands_for_the_corpus():
    """A tenth of the documents is sampled, so that cells of 10 of them have 100."""
    vectors, _, _ = clustered(100)
    cells = cells_of(vectors, fit_cells(vectors, 1_000, 100, 0, CPU), CPU)
    assert np.bincount(cells).max() <= 10


@pytest.mark.parametrize(("by", "metrics"), [("documents", "facility"), ("tokens", {"pairwise": 1, "facility": 1})])
def test_cells_give_the_budget_of_the_corpus_and_most_where_the_sample_selects_most(by, metrics):
    corpus = clustered(200)
    settings = SelectionSettings(metrics=metrics, select_ratio=0.1, budget_by=by)
    cells, plan = planned(corpus, settings, block_size=100)
    tokens = corpus[2]
    costs = tokens if by == "tokens" else np.ones(200)
    given = plan.rates * np.bincount(cells, costs)
    np.testing.assert_allclose(given, given.round(), atol=1e-6)
    assert given.sum() == pytest.approx(0.1 * costs.sum(), abs=0.51)
    whole = select(corpus[0], corpus[1], settings, tokens=tokens)
    kept = np.bincount(cells[whole.indices], costs[whole.indices], minlength=len(plan.rates))
    assert np.corrcoef(kept, given)[0, 1] > 0.95
    mask, _ = chosen_by_cell(corpus, settings, cells, plan)
    assert costs[mask].sum() <= given.sum() + 1e-6
    if by == "documents":
        assert mask.sum() == 20


def in_cell(vectors, quality, settings, plan, cell_rate, cell=0):
    """Return the function that computes a cell's objective by its definition, for documents of a cell."""
    x, q = vectors.astype(float), quality.astype(float)
    similarity, ranges, lamb = np.maximum(x @ x.T, 0), plan.ranges, settings.lamb
    relative = cell_rate / plan.rate

    def objective(chosen):
        chosen = list(chosen)
        value = relative * lamb * ranges["quality"].scaled(q[chosen].mean())
        for name, weight in settings.metric_weights.items():
            term, share = ranges[name], (1 - lamb) * weight
            if name == "facility":
                value += share * term.scaled(similarity[:, chosen].max(1).mean())
            else:  # pairwise: D = -(|s|^2 - K) / (K (K - 1)) for the sum s of the K documents of all cells
                k, own = plan.total, len(chosen)
                others = plan.vectors[plan.cells != cell].astype(float).mean(0)

                def pairwise(total, k=k):
                    return -(total @ total - k) / (k * (k - 1))

                together = pairwise((k - own) * others + x[chosen].sum(0))
                typical = pairwise(k * plan.vectors.astype(float).mean(0))
                value += share * term.factor * (typical + (together - typical) * relative / (own / k) - term.base)
        return value

    return objective


@pytest.mark.parametrize("metrics", ["facility", "pairwise", {"pairwise": 1, "facility": 0.5}])
@pytest.mark.parametrize("solver", ["mean_field", "greedy"])
def test_the_objective_of_a_cell_is_its_definition_and_no_selection_of_it_exceeds_the_bound(metrics, solver):
    settings = SelectionSettings(metrics=metrics, lamb=0.4, select_ratio=0.2, solver=solver, near_duplicates=None)
    _, plan = planned(clustered(120), settings, block_size=60)
    for seed in range(2):
        vectors, quality, tokens = clustered(11, seed=seed + 1)
        own = settings.model_copy(update={"budget": 3})
        found = select_from_cell(vectors, quality, own, plan, 0, device=CPU, tokens=tokens)
        objective = in_cell(vectors, quality, settings, plan, 3 / 11)
        assert found.objective == pytest.approx(objective(found.indices), abs=1e-4)
        everyone = [objective(chosen) for chosen in combinations(range(11), 3)]
        assert found.upper_bound is not None
        assert max(everyone) <= found.upper_bound + 1e-4
        assert found.objective <= found.upper_bound + 1e-6
        terms = found.terms
        assert found.objective == pytest.approx(0.4 * terms["quality"] + 0.6 * terms["diversity"], rel=1e-6)
        if "facility" not in found.terms:
            assert found.random_objective == pytest.approx(np.mean(everyone), abs=1e-4)
        assert found.random_objective < found.objective


def test_the_cells_add_up_to_the_objective_of_the_whole_with_documents_covered_inside_of_them():
    corpus = clustered(200)
    settings = SelectionSettings(lamb=0.3, near_duplicates=None)
    cells, plan = planned(corpus, settings, block_size=80)
    mask, found = chosen_by_cell(corpus, settings, cells, plan)
    vectors, quality = corpus[0].astype(float), corpus[1]
    similarity = np.maximum(vectors @ vectors[mask].T, 0) * (cells[:, None] == cells[mask])
    expected = 0.3 * plan.ranges["quality"].scaled(quality[mask].mean())
    expected += 0.7 * plan.ranges["facility"].scaled(similarity.max(1).mean())
    sizes = np.bincount(cells)
    assert np.average([one.objective for one in found], weights=sizes) == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("metrics", [{"pairwise": 1, "facility": 1}, "disf"])
def test_blocks_of_alike_documents_lose_little_of_one_block(metrics):
    corpus = clustered(300)
    settings = SelectionSettings(metrics=metrics, near_duplicates=None)
    cells, plan = planned(corpus, settings, block_size=110)
    mask, _ = chosen_by_cell(corpus, settings, cells, plan)
    one = select(corpus[0], corpus[1], settings)

    def value(chosen):
        found = measured(corpus[0], corpus[1], chosen)
        given = [plan.ranges[name].scaled(found[name]) for name in settings.metric_weights]
        return 0.3 * plan.ranges["quality"].scaled(corpus[1][chosen].mean()) + 0.7 * sum(given)

    share = (value(np.flatnonzero(mask)) - one.random_objective) / (value(one.indices) - one.random_objective)
    assert share > 0.9


def test_a_number_of_documents_is_divided_too():
    corpus = clustered(300)
    cells, plan = planned(corpus, SelectionSettings(budget=37))
    assert (plan.rates * np.bincount(cells)).sum() == pytest.approx(37)
