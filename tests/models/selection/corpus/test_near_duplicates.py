"""Charges for near-duplicates: in one cell those of a block; over a corpus they take nearly all near-duplicates out."""

import numpy as np
import pytest

from fineweb_mask.models.selection.corpus import near_duplicates
from fineweb_mask.models.selection.corpus.documents import Documents
from fineweb_mask.models.selection.corpus.near_duplicates import near_duplicate_penalties
from fineweb_mask.models.selection.corpus.whole import select_corpus
from fineweb_mask.models.selection.problem.measures import Measures
from fineweb_mask.models.settings.selection import NearDuplicateSettings
from tests.models.selection.corpus.conftest import CPU, part, problem_of, settings_of


def with_copies(number, n, d=16):
    """Make a part of which a third are nearly copies of documents that all parts have."""
    documents, random = part(number, n, d), np.random.default_rng(number)
    originals = np.random.default_rng(99).normal(size=(40, d))
    copies = originals[random.integers(0, 40, n // 3)] + 0.1 * random.normal(size=(n // 3, d))
    vectors, quality = documents.vectors.copy(), documents.quality.copy()
    vectors[: n // 3] = copies
    quality[: n // 3] += 1
    return documents._replace(vectors=vectors, quality=quality)


@pytest.fixture(scope="module")
def copied():
    return [with_copies(number, n) for number, n in enumerate((900, 300, 1500, 700))]


CHARGED = settings_of(near_duplicates=NearDuplicateSettings())


@pytest.mark.parametrize(("cell", "by"), [(32_768, "documents"), (400, "tokens"), (100, "documents")])
def test_a_selection_has_hardly_any_left(copied, cell, by, monkeypatch):
    monkeypatch.setattr(near_duplicates, "CLUSTER_DOCUMENTS", cell)
    parts = copied
    if by == "tokens":
        parts = [one._replace(tokens=np.full(len(one.quality), 100)) for one in copied]
    everyone = Documents.concatenate(parts)
    measures = Measures(everyone.vectors, everyone.quality)
    shares = []
    for weight in (0, 1):
        settings = settings_of(near_duplicates=NearDuplicateSettings(weight=weight), budget_by=by)
        found = select_corpus(lambda: parts, settings, rate=0.6)
        chosen = np.concatenate(found.masks).nonzero()[0]
        assert len(chosen) == 340
        shares.append(measures.of(chosen)["near_duplicates"])
    assert shares[0] > 0.3
    assert shares[1] < (0.02 if cell > 5_000 else 0.06)  # some copies are in different cells


def test_what_is_paid_is_what_the_objective_says(copied):
    found = select_corpus(lambda: copied, CHARGED, rate=0.6)
    everyone, mask = Documents.concatenate(copied), np.concatenate(found.masks)
    unit = everyone.vectors[mask].astype(np.float64)
    unit /= np.linalg.norm(unit, axis=1, keepdims=True)
    cosine = np.triu(unit @ unit.T, 1)
    over = (cosine - 0.9) / 0.1
    cost = np.where(cosine >= 0.9, np.minimum(0.05 + over, 1), 0).sum() / mask.sum()
    terms = found.ranges.terms(found.raw, CHARGED.metric_weights)
    mixed = CHARGED.lamb * terms["quality"] + (1 - CHARGED.lamb) * terms["diversity"]
    assert found.objective == pytest.approx(mixed - cost, abs=1e-5)
    assert found.objective < found.upper_bound


def test_of_identical_documents_the_best_and_of_equally_good_ones_the_lowest_tie_pays_nothing(copied):
    problem = problem_of(copied, CHARGED)
    learned = problem.learn()
    rule = learned.rule
    one = copied[0].take(np.zeros(5, dtype=int))
    same = one._replace(quality=np.array([1, 5, 3, 2, 4], dtype=np.float32), lots=np.linspace(0.1, 0.5, 5))
    paid = near_duplicate_penalties(learned.rule, NearDuplicateSettings(weight=0.1), same, CPU)
    assert paid[1] == 0
    assert paid.tolist() == pytest.approx((0.1 / rule.objective.size * np.array([4, 0, 2, 3, 1])).tolist(), rel=1e-4)
    lots = np.array([0.3, 0.1, 0.7, 0.9]) / 4096 + 0.5
    equal = copied[0].take(np.zeros(4, dtype=int))._replace(lots=lots)
    paid = near_duplicate_penalties(learned.rule, NearDuplicateSettings(), equal, CPU)
    assert (paid > 0).tolist() == [tie > equal.ties.min() for tie in equal.ties.tolist()]


def test_all_documents_are_candidates_where_the_budget_needs_them(copied):
    problem = problem_of(copied, settings_of(select_ratio=0.9, near_duplicates=NearDuplicateSettings()))
    learned = problem.learn()
    assert learned.search.floor == -np.inf
    part = copied[0]._replace(worth=learned.rule.measure(copied[0], CPU).worth)
    found, cells = learned.search.candidates(part, CPU)
    assert len(found) == len(cells) == 900
    found, cells = learned.search._replace(floor=1e9).candidates(part, CPU)
    assert len(found) == len(cells) == 0
