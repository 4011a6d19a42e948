"""Documents of a part: what is taken, put together, and drawn for each."""

import numpy as np
import pytest

from fineweb_mask.models.selection.corpus.documents import Documents, flat, made, nested, sampled


@pytest.mark.parametrize("name", ["parts", "parts_with_tokens"])
def test_parts_are_cut_and_put_together_again(name, request):
    whole = Documents.concatenate(request.getfixturevalue(name))
    half = np.arange(len(whole.quality)) < 1000
    together = Documents.concatenate([whole.take(half), whole.take(~half)])
    for before, after in zip(whole, together, strict=True):
        np.testing.assert_array_equal(before, after)


@pytest.mark.parametrize("name", ["parts", "parts_with_tokens"])
def test_arrays_make_the_same_documents(name, request):
    [first, *_] = request.getfixturevalue(name)
    again = made(Documents, nested(flat({"a": first, "b": {"vectors": 0}}))["a"])
    for before, after in zip(first, again, strict=True):
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
