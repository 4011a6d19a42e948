"""QuaDMix and ODiS against their definitions."""

import numpy as np
import pytest
import torch

from fineweb_mask.models.selection.inputs import SelectorInputs
from fineweb_mask.models.selection.selectors.scores import (
    components,
    ranks,
    wanted_at,
)
from fineweb_mask.models.settings.selection import QuadmixSettings

SCORES = "fineweb_mask.models.selection.selectors.scores"


@pytest.fixture
def step(monkeypatch):
    """Let no document be wanted that is not among the best."""
    monkeypatch.setattr(f"{SCORES}.STEEPNESS", 1e9)
    monkeypatch.setattr(f"{SCORES}.FLOOR", 1e-30)


@pytest.fixture
def many():
    random = np.random.default_rng(0)
    return random.normal(size=(200, 4)), random.normal(size=200)


def best(score, n):
    return np.argsort(-score)[:n]


@pytest.mark.parametrize(
    ("options", "of_first", "of_second"),
    [
        ({"omega": 0.0999}, 10, 10),
        ({"omega": 0.1999, "by_group": {"b": {"omega": 0.0999}, "c": {"omega": 0.5}}}, 20, 10),
    ],
)
def test_quadmix_with_a_step_takes_the_top_share_of_every_group_by_its_curve(
    many, selected, step, options, of_first, of_second
):
    also, [first, second] = SelectorInputs(groups=np.repeat(["a", "b"], 100)), np.split(many[1], 2)
    budget = {"budget": of_first + of_second, "normalize": "none"}
    found = selected("quadmix", *many, also=also, options={"eta": 0.0, **options}, **budget).indices
    assert set(found) == {*best(first, of_first), *(100 + best(second, of_second))}


def test_what_is_wanted_falls_with_the_rank_by_the_paper_s_formula(monkeypatch):
    monkeypatch.setattr(f"{SCORES}.STEEPNESS", 40)
    monkeypatch.setattr(f"{SCORES}.FLOOR", 0.01)
    places = torch.linspace(0, 1, 50, dtype=torch.float64)
    found = wanted_at(places, QuadmixSettings(omega=0.3, eta=0.7))
    assert (found.diff() <= 1e-12).all()
    formula = (2 / (1 + np.exp(-40 * (0.3 - places.numpy())))) ** 0.7 + 0.01
    np.testing.assert_allclose(found.numpy(), np.where(places.numpy() <= 0.3, formula, 0.01))


def test_ranks_are_shares_of_the_tokens_in_better_documents():
    found = ranks(torch.tensor([3.0, 1, 2]), torch.tensor([10, 20, 30]))
    np.testing.assert_allclose(found, [0, 40 / 60, 10 / 60])


def test_quadmix_samples_in_proportion_to_what_is_wanted(selected, monkeypatch):
    monkeypatch.setattr(f"{SCORES}.STEEPNESS", 0.0)  # twice 1/2, and the floor
    monkeypatch.setattr(f"{SCORES}.FLOOR", 0.5)
    few, options = {"budget": 20, "normalize": "none"}, {"omega": 0.5}
    drawn = [
        selected("quadmix", np.eye(800, 2) + 1, -np.arange(800.0), seed=seed, options=options, **few)
        for seed in range(15)
    ]
    good = np.mean([found.indices < 400 for found in drawn])
    assert good == pytest.approx(1.5 / (1.5 + 0.5), abs=0.075)  # three deviations


def test_odis_with_one_score_is_top_quality(many, selected):
    features, score = many
    found = selected("odis", features, np.zeros(200), budget=15, also=SelectorInputs(scores={"one": score}))
    assert set(found.indices) == set(np.argsort(-score)[:15])


def test_components_are_uncorrelated_and_point_to_better_scores():
    random = np.random.default_rng(2)
    base = random.normal(size=500)
    scores = [base + 0.3 * random.normal(size=500) for _ in range(3)]
    columns = torch.from_numpy(np.stack([*scores, random.normal(size=500)]))
    columns = (columns - columns.mean(1, keepdim=True)) / columns.std(1, correction=0, keepdim=True)
    found = components(columns, 0.95)
    np.testing.assert_allclose(np.corrcoef(found), np.eye(len(found)), atol=1e-5)
    assert np.corrcoef(found[0], base)[0, 1] > 0.9


def test_quadmix_fills_a_budget_of_tokens_though_the_best_documents_are_larger_than_it(many, selected):
    features, score = many
    tokens = np.random.default_rng(0).integers(3, 60, 200)
    tokens[np.argsort(-score)[:5]] = 10_000
    budget = {"budget": 600, "budget_by": "tokens"}
    found = selected("quadmix", features, score, tokens=tokens, options={"omega": 0.2}, **budget)
    left_out = np.setdiff1d(np.arange(200), found.indices)
    assert 600 - tokens[left_out].min() < int(tokens[found.indices].sum()) <= 600


@pytest.mark.parametrize("by_tokens", [False, True])
def test_each_ranking_takes_its_best_document_that_is_left(by_tokens, selected):
    scores = {"a": np.array([5.0, 4, 3, 2, 1, 0]), "b": np.array([0.0, 5, 1, 2, 3, 4])}
    tokens = np.array([10, 10, 30, 10, 10, 10]) if by_tokens else None
    settings = {"budget": 40, "budget_by": "tokens"} if by_tokens else {"budget": 4}
    also = SelectorInputs(scores=scores)
    found = selected("odis", np.eye(6), np.zeros(6), also=also, tokens=tokens, constants={"variance": 1.0}, **settings)
    first = found.indices[np.argsort(-found.inclusion[found.indices])]
    assert len(first) == 4
    if by_tokens:
        assert tokens[first].sum() == 40
