"""A rule judges documents alike wherever they are, and is made again from its arrays."""

import numpy as np
import pytest
import torch

from fineweb_mask.models.selection import SelectionSettings
from fineweb_mask.models.selection.corpus.documents import Documents
from fineweb_mask.models.selection.corpus.rule import FIRST, LAST, Place
from fineweb_mask.models.selection.corpus.whole import select_corpus
from tests.models.selection.corpus.conftest import CPU

METRICS = {"pairwise": 1, "disf": 0.5}


def test_a_place_comes_after_higher_worth_and_lower_ties():
    worth, ties = np.array([3, 2, 2, 1], dtype=np.float32), np.array([0.9, 0.2, 0.7, 0.0])
    assert Place(2.0, 0.5).admits(worth, ties).tolist() == [True, True, False, False]
    assert not FIRST.admits(worth, ties).any()
    assert LAST.admits(worth, ties).all()


@pytest.fixture(scope="module", params=["parts", "parts_with_tokens"])
def learned(request):
    found = request.getfixturevalue(request.param)
    by_tokens = request.param == "parts_with_tokens"
    settings = SelectionSettings(metrics=METRICS, budget_by="tokens" if by_tokens else "documents")
    return found, select_corpus(lambda: found, settings, rate=0.5, passes=1, directions=5)


def test_a_document_is_judged_the_same_in_any_part(learned):
    parts, selection = learned
    whole = Documents.concatenate(parts)
    worth = selection.rule.measure(whole, CPU).worth
    apart = np.concatenate([selection.rule.measure(part, CPU).worth for part in parts])
    np.testing.assert_allclose(worth, apart, rtol=1e-4, atol=1e-6 * np.abs(worth).max())


def test_gains_are_those_of_the_objective(learned):
    """What a document adds to J is its gain, up to the second order."""
    parts, selection = learned
    rule, whole = selection.rule, Documents.concatenate(parts)
    measured, objective = rule.measure(whole, CPU), rule.objective
    masses = np.ones(len(whole.quality)) if measured.masses is None else measured.masses.numpy().astype(np.float64)

    def value(share, document):  # J at the rule's moments, and a share of a document
        weights = torch.zeros(len(masses))
        weights[document] = share
        total = masses[document] * whole.quality[document] * share / objective.size * objective.linear_weight
        for name, metric in measured.metrics.items():
            moment = rule.moments[name] + metric.moment(weights)
            total += objective.weights[name] * float(metric.of_moment(moment, objective.size))
            if metric.credit is not None:
                total += objective.weights[name] * share * float(metric.credit[document]) / objective.size**2
        return total

    for document in (0, 1000, 3000):
        slope = (value(0.01, document) - value(-0.01, document)) / 0.02
        assert float(measured.gains[document]) == pytest.approx(slope, rel=2e-3, abs=1e-7)


def test_inclusion_is_one_half_at_the_threshold_and_higher_above(learned):
    parts, selection = learned
    selected, inclusion = selection.rule.select(parts[2], CPU)
    assert inclusion[selected].min() >= 0.5 >= inclusion[~selected].max()
    order = np.argsort(selection.rule.measure(parts[2], CPU).worth)
    assert (np.diff(inclusion[order]) >= 0).all()
