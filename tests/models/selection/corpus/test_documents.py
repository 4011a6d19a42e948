"""Documents of a part: what is taken, put together, and drawn for each."""

import numpy as np
import pytest

from fineweb_mask.models.selection.corpus.documents import Documents, prefixed, without_prefix


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
    again = Documents.of_arrays(without_prefix("a", prefixed("a", first.arrays()) | prefixed("b", {"vectors": 0})))
    for before, after in zip(first, again, strict=True):
        np.testing.assert_array_equal(before, after)


def test_ties_and_signs_do_not_depend_on_who_is_in_the_sample():
    drawn = np.random.default_rng(0).random(100_000)
    documents = Documents(np.empty((len(drawn), 1)), np.empty(len(drawn)), drawn)
    sample = drawn < 0.1
    for values in (documents.ties, documents.signs):
        error = values.std() / np.sqrt(sample.sum())
        assert values[sample].mean() == pytest.approx(values.mean(), abs=4 * error)
    assert set(documents.signs) == {-1.0, 1.0}
    assert abs(np.corrcoef(documents.ties, documents.signs)[0, 1]) < 0.02
    assert len(np.unique(documents.ties)) > 0.999 * len(drawn)


def test_a_document_costs_one_or_its_tokens(parts, parts_with_tokens):
    assert set(parts[0].costs) == {1}
    np.testing.assert_array_equal(parts_with_tokens[0].costs, parts_with_tokens[0].tokens)
