"""What is learned on a sample, and what a pass corrects."""

import numpy as np
import pytest
import torch

from fineweb_mask.models.selection import select
from fineweb_mask.models.selection.corpus.documents import Documents
from fineweb_mask.models.selection.corpus.sample import CorpusStatistics
from fineweb_mask.models.selection.corpus.whole import apply
from fineweb_mask.models.selection.inputs import checked_features
from tests.models.selection.corpus.conftest import CPU, problem_of, settings_of


@pytest.mark.parametrize("metric", ["pairwise", "disf"])
def test_a_sample_of_all_documents_has_the_ranges_of_the_block(parts, metric):
    whole = Documents.concatenate(parts)
    settings = settings_of(metrics=metric)
    problem = problem_of(parts, settings)
    found = select(whole.vectors, whole.quality, settings)
    ours = problem.ranges.metrics[metric]
    assert problem.random_objective == pytest.approx(found.random_objective, abs=0.02)
    best = select(whole.vectors, whole.quality, settings_of(metrics=metric, lamb=0.0))
    assert ours.random + 1 / ours.factor == pytest.approx(best.terms[metric], rel=0.02)


def test_what_an_earlier_problem_found_is_not_sought_again(parts):
    settings = settings_of(metrics={"pairwise": 1, "disf": 1})
    first = problem_of(parts, settings, rate=0.5, directions=5)
    again = problem_of(parts, settings, rate=0.5, directions=5, ranges=first.ranges, frame=first.frame)
    assert again.objective == first.objective
    one, other = (problem.learn().rule for problem in (first, again))
    assert one.threshold == other.threshold
    np.testing.assert_array_equal(*(rule.measure(parts[0], CPU).worth for rule in (one, other)))


def test_a_correction_brings_the_moments_of_the_rule_to_those_it_selects(parts):
    """The sample alone errs in the moments; the next rule knows by how much."""
    problem = problem_of(parts, settings_of(metrics="disf"), rate=0.3)
    learned, errors, reached = problem.learn(), [], []
    for _ in range(3):
        outcome = apply(lambda: parts, learned.rule, learned.margin, problem.budget, CPU)
        selected = outcome.sums.moments["disf"]
        errors.append(float((selected - learned.rule.moments["disf"]).norm() / selected.norm()))
        reached.append(outcome.objective)
        learned = problem.corrected(learned, outcome)
    assert errors[1] < errors[0]
    assert reached[1] > reached[0]


def test_surveys_of_parts_add_up(parts_with_tokens):
    whole = Documents.concatenate(parts_with_tokens)
    total = CorpusStatistics.total([CorpusStatistics.of(part, CPU) for part in parts_with_tokens])
    assert (total.documents, total.tokens) == (3400, int(whole.tokens.sum()))
    rows = checked_features(whole.vectors, CPU)
    for one, other in zip(total.standard, rows.standard(), strict=True):
        torch.testing.assert_close(one, other)


def test_a_dimension_that_does_not_vary_counts_nothing():
    vectors = np.ones((10, 3))
    standard = CorpusStatistics.of(Documents(vectors, np.zeros(10), np.zeros(10)), CPU).standard
    assert standard.inverse_deviation.tolist() == [0, 0, 0]
