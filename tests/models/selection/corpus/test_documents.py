"""Documents of a part: what is taken, put together, and drawn for each."""

import numpy as np
import pytest

from fineweb_mask.models.selection.corpus.documents import Documents, flat, made, nested, sampled, tree_of
from fineweb_mask.models.selection.corpus.passes import Tally
from fineweb_mask.models.selection.corpus.rule import Rule
from fineweb_mask.models.selection.corpus.sample import CorpusStatistics
from tests.models.selection.corpus.conftest import CPU, problem_of, settings_of


@pytest.mark.parametrize("name", ["parts", "parts_with_tokens"])
def test_parts_are_cut_and_put_together_again(name, request):
    whole = Documents.concatenate(request.getfixturevalue(name))
    half = np.arange(len(whole.quality)) < 1000
    together = Documents.concatenate([whole.take(half), whole.take(~half)])
    for before, after in zip(whole, together, strict=True):
        np.testing.assert_array_equal(before, after)


@pytest.mark.parametrize("name", ["parts", "parts_with_tokens"])
def test_what_is_kept_as_arrays_is_made_again_from_them(name, request):
    parts = request.getfixturevalue(name)
    by = "tokens" if name == "parts_with_tokens" else "documents"
    learned = problem_of(parts, settings_of(metrics={"pairwise": 1, "disf": 1}, budget_by=by), rate=0.5).learn()
    tally = Tally.of(learned.margin, parts[0], learned.rule.measure(parts[0], CPU))
    kept = {
        "documents": (parts[0], ()),
        "survey": (CorpusStatistics.of(parts[0], CPU), ()),
        "margin": (learned.margin, ()),
        "tally": (tally, ()),
        "rule": (learned.rule, (CPU,)),
        "learned": (learned, (CPU,)),
    }
    for one, device in kept.values():
        arrays = flat(tree_of(one))
        again = flat(tree_of(made(type(one), nested(arrays), *device)))
        assert again.keys() == arrays.keys()
        for key, array in arrays.items():
            np.testing.assert_array_equal(again[key], array)
    again = made(Rule, nested(flat(tree_of(learned.rule))), CPU)
    assert again.objective == learned.rule.objective
    for before, after in zip(learned.rule.select(parts[0], CPU), again.select(parts[0], CPU), strict=True):
        np.testing.assert_array_equal(before, after)


def test_ties_do_not_depend_on_who_is_in_the_sample():
    drawn = np.random.default_rng(0).random(100_000)
    documents = Documents(np.empty((len(drawn), 1)), np.empty(len(drawn)), drawn)
    sample = drawn < 0.1
    values = documents.ties
    error = values.std() / np.sqrt(sample.sum())
    assert values[sample].mean() == pytest.approx(values.mean(), abs=4 * error)
    assert len(np.unique(documents.ties)) > 0.999 * len(drawn)


def test_a_document_costs_one_or_its_tokens(parts, parts_with_tokens):
    assert set(parts[0].costs) == {1}
    np.testing.assert_array_equal(parts_with_tokens[0].costs, parts_with_tokens[0].tokens)


def test_the_sample_grows_with_its_rate(parts):
    counts = [len(sampled(parts[2], rate).quality) for rate in (0.0, 0.1, 0.5, 1.0)]
    assert counts[0] == 0
    assert counts[3] == 1500
    assert abs(counts[1] - 150) < 60
    smaller, larger = sampled(parts[2], 0.1), sampled(parts[2], 0.5)
    assert set(smaller.lots) < set(larger.lots)
