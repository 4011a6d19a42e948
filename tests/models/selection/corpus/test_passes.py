"""A pass finds the exact threshold and exact sums, also where many documents are worth the same."""

import numpy as np
import pytest
import torch

from fineweb_mask.models.selection.corpus.documents import Documents
from fineweb_mask.models.selection.corpus.passes import Margin, Tally, conclude, find_threshold, margin_at
from fineweb_mask.models.selection.corpus.rule import FIRST, LAST, Place
from fineweb_mask.models.selection.corpus.whole import apply
from tests.models.selection.corpus.conftest import CPU, problem_of, settings_of

METRICS = {"pairwise": 1, "disf": 1}


@pytest.fixture(scope="module")
def problem(parts):
    return problem_of(parts, settings_of(metrics=METRICS), rate=0.5)


def tally_of(rule, margin, part):
    return Tally.of(margin, part, rule.measure(part, CPU))


def selected_by(rule, parts):
    return [rule.select(part, CPU)[0] for part in parts]


def test_the_threshold_selects_the_budget_and_the_sums_are_those_of_the_selected(problem, parts):
    learned = problem.learn()
    outcome = apply(lambda: parts, learned.rule, learned.margin, problem.budget, CPU)
    masks = selected_by(outcome.rule, parts)
    assert sum(mask.sum() for mask in masks) == outcome.sums.documents == problem.budget == 340
    chosen = Documents.concatenate([part.take(mask) for part, mask in zip(parts, masks, strict=True)])
    assert outcome.raw["mean_quality"] == pytest.approx(chosen.quality.mean(), rel=1e-5)
    metrics = outcome.rule.measure(chosen, CPU).metrics
    for name, metric in metrics.items():
        everyone = torch.ones((1, len(chosen.quality)), dtype=torch.bool)
        assert outcome.raw[name] == pytest.approx(float(metric.value(everyone)[0]), rel=1e-4)


def test_the_margin_is_small_and_holds_the_threshold(problem, parts):
    learned = problem.learn()
    tallies = [tally_of(learned.rule, learned.margin, part) for part in parts]
    assert find_threshold(learned.margin, [tally.ranking for tally in tallies], problem.budget) is not None
    tally = Tally.total(tallies)
    assert len(tally.margin.quality) < 0.15 * 3400
    assert tally.counts.sum() == 3400


@pytest.mark.parametrize("above", [True, False])
def test_a_margin_in_the_wrong_place_is_moved(problem, parts, above):
    learned = problem.learn()
    right = apply(lambda: parts, learned.rule, learned.margin, problem.budget, CPU)
    worth = learned.margin.levels
    places = (FIRST, Place(float(worth[-2]), 0.0)) if above else (Place(float(worth[2]), 0.0), LAST)
    margin = Margin(*places, worth)
    rankings = [tally_of(learned.rule, margin, part).ranking for part in parts]
    assert find_threshold(margin, rankings, problem.budget) is None
    moved = margin_at(margin, rankings, problem.budget)
    assert len(moved.levels) == len(worth)
    outcome = apply(lambda: parts, learned.rule, margin, problem.budget, CPU)
    assert outcome.rule.threshold == right.rule.threshold
    assert outcome.objective == pytest.approx(right.objective, rel=1e-6)


def test_all_documents_can_be_selected(parts):
    problem = problem_of(parts, settings_of(metrics=METRICS, select_ratio=1.0), rate=0.5)
    learned = problem.learn()
    outcome = apply(lambda: parts, learned.rule, learned.margin, problem.budget, CPU)
    assert all(mask.all() for mask in selected_by(outcome.rule, parts))


def test_of_documents_that_are_worth_the_same_chance_decides(parts):
    parts = [part._replace(quality=np.repeat(np.float32([0, 1]), len(part.quality) // 2)) for part in parts]
    problem = problem_of(parts, settings_of(metrics=METRICS, lamb=1.0, select_ratio=0.2), rate=0.5)
    learned = problem.learn()
    outcome = apply(lambda: parts, learned.rule, learned.margin, problem.budget, CPU)
    masks = selected_by(outcome.rule, parts)
    assert sum(mask.sum() for mask in masks) == 680
    assert outcome.raw["mean_quality"] == 1.0
    for mask in masks:
        best = mask[len(mask) // 2 :]
        assert best.mean() == pytest.approx(0.4, abs=4 * np.sqrt(0.24 / len(best)))
        assert abs(best[: len(best) // 2].mean() - best[len(best) // 2 :].mean()) < 8 * np.sqrt(0.24 / len(best))


def test_a_budget_of_tokens_is_filled_to_less_than_one_document(parts_with_tokens):
    parts = parts_with_tokens
    problem = problem_of(parts, settings_of(metrics=METRICS, budget_by="tokens"), rate=0.5)
    learned = problem.learn()
    outcome = apply(lambda: parts, learned.rule, learned.margin, problem.budget, CPU)
    masks = selected_by(outcome.rule, parts)
    used = sum(int(part.tokens[mask].sum()) for part, mask in zip(parts, masks, strict=True))
    assert used == outcome.sums.tokens
    assert problem.budget - 2000 < used <= problem.budget


def test_parts_without_documents_in_the_margin_count(problem, parts):
    learned = problem.learn()
    everything = [part.take(np.array([index])) for part in parts for index in range(len(part.quality))][:50]
    tally = Tally.total([tally_of(learned.rule, learned.margin, part) for part in everything])
    assert tally.counts.sum() == 50


def test_a_tally_of_all_parts_says_what_those_of_the_parts_do(problem, parts):
    learned = problem.learn()
    tallies = [tally_of(learned.rule, learned.margin, part) for part in parts]
    outcomes = []
    for some in (tallies, [Tally.total(tallies)]):
        threshold = find_threshold(learned.margin, [tally.ranking for tally in some], problem.budget)
        outcomes.append(conclude(learned.rule, threshold, some, problem.budget, CPU))
    assert outcomes[0].objective == pytest.approx(outcomes[1].objective, rel=1e-6)
    assert outcomes[0].rule.threshold == outcomes[1].rule.threshold
