"""Exact neighbours against a full sort, approximate ones against the exact, and their sums in both forms."""

import pytest
import torch

from fineweb_mask.models.selection import neighbours
from fineweb_mask.models.selection.neighbours import (
    LARGE,
    Neighbours,
    _largest,
    find_neighbours,
    missed_by,
    nearest,
    nearest_in_groups,
)
from fineweb_mask.models.selection.rows import Rows


@pytest.fixture(scope="module")
def grouped_rows():
    """1,000 documents in 40 groups, with a large common mean and some exact duplicates."""
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn((40, 32), generator=generator)
    noise = torch.randn((1000, 32), generator=generator)
    x = 2.0 + centres[torch.randint(0, 40, (1000,), generator=generator)] + 0.5 * noise
    x[100:110] = x[0]
    return Rows(torch.nn.functional.normalize(x, dim=1))


@pytest.mark.parametrize("side", [7, 20, 1000])
def test_neighbours_are_the_exact_nearest(side, corpus, monkeypatch):
    monkeypatch.setattr("fineweb_mask.models.selection.neighbours.PRODUCT_ELEMENTS", {"cpu": side * side})
    x = torch.from_numpy(corpus[0][:150])
    found = nearest(Rows(x), 12)
    similarity = (x @ x.T).clamp(min=0)
    expected = similarity.topk(12, dim=1).values.T
    torch.testing.assert_close(found.similarity, expected, rtol=0, atol=1e-5)
    gathered = similarity.gather(1, found.index.T).T
    torch.testing.assert_close(gathered, expected, rtol=0, atol=1e-5)
    assert (found.index[0] == torch.arange(150)).all()
    assert found.missed is None


def test_lists_found_in_groups_hold_most_of_the_nearest(grouped_rows):
    exact, found = nearest(grouped_rows, 20), nearest_in_groups(grouped_rows, 20)
    x = grouped_rows.block(slice(None))
    assert found.missed is not None
    assert found.index.dtype == torch.int32
    assert (found.index[0] == torch.arange(1000)).all()
    assert all(len(set(row)) == 20 for row in found.index.T.tolist())
    assert (found.similarity.diff(dim=0) <= 0).all()
    torch.testing.assert_close(found.similarity, (x @ x.T).gather(1, found.index.T).T, rtol=0, atol=1e-5)
    recall = float((found.similarity >= exact.similarity[-1] - 1e-6).float().mean())
    assert recall > 0.97
    assert found.missed.recall == pytest.approx(recall, abs=0.01)  # from 256 documents of 1,000


def test_approximate_lists_are_the_same_on_every_run_and_of_the_recall_asked_for(grouped_rows):
    one, same, other = (nearest_in_groups(grouped_rows, 20, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(one.index, same.index)
    assert torch.equal(one.similarity, same.similarity)
    assert torch.equal(one.missed.largest, same.missed.largest)
    assert not torch.equal(one.missed.documents, other.missed.documents)
    few, many = (nearest_in_groups(grouped_rows, 20, recall).missed.recall for recall in (0.6, 0.99))
    assert 0.6 < few < many


def test_lists_are_full_where_groups_are_smaller(monkeypatch):
    monkeypatch.setattr(neighbours, "WORTH_IT", 1.0)
    monkeypatch.setattr(neighbours, "MOST_PROBES", 2)
    generator = torch.Generator().manual_seed(0)
    rows = Rows(torch.nn.functional.normalize(torch.randn((300, 16), generator=generator), dim=1))
    found = nearest_in_groups(rows, 60)  # two groups of about 9 each: all lists are searched among all documents
    torch.testing.assert_close(found.similarity, nearest(rows, 60).similarity, rtol=0, atol=1e-5)


def test_vectors_without_groups_get_exact_lists():
    generator = torch.Generator().manual_seed(0)
    rows = Rows(torch.nn.functional.normalize(torch.randn((500, 64), generator=generator), dim=1))
    found, expected = nearest_in_groups(rows, 16), nearest(rows, 16)
    assert found.missed is None
    assert torch.equal(found.similarity, expected.similarity)


@pytest.mark.parametrize("n", [1, 70])
def test_identical_and_few_documents_get_full_lists(n):
    found = nearest_in_groups(Rows(torch.nn.functional.normalize(torch.ones((n, 4)), dim=1)), 5)
    assert found.index.shape == (min(n, 5), n)
    torch.testing.assert_close(found.similarity, torch.ones(min(n, 5), n))


def test_missed_is_the_nearest_document_outside_the_list():
    generator = torch.Generator().manual_seed(0)
    x = torch.nn.functional.normalize(torch.randn((60, 5), generator=generator), dim=1)
    exact = nearest(Rows(x), 10)
    cut = Neighbours(exact.index[[0, *range(2, 10)]], exact.similarity[[0, *range(2, 10)]])  # without the nearest other
    documents = torch.tensor([3, 50, 7])
    missed = missed_by(Rows(x), cut, documents)
    torch.testing.assert_close(missed.largest, exact.similarity[1, documents])
    assert missed.recall == pytest.approx(8 / 9)  # the ninth nearest has moved up one place
    whole = missed_by(Rows(x), exact, documents)
    assert whole.recall == 1
    assert (whole.largest <= exact.similarity[-1, documents] + 1e-6).all()


def test_the_size_decides_between_exact_and_approximate(grouped_rows, monkeypatch):
    assert find_neighbours(grouped_rows, 5).missed is None
    assert find_neighbours(grouped_rows, 5, "approximate").missed is not None
    monkeypatch.setitem(LARGE, "cpu", 999)
    assert find_neighbours(grouped_rows, 5).missed is not None
    assert find_neighbours(grouped_rows, 5, "exact").missed is None


def test_sums_over_sorted_segments_equal_scattered_ones():
    generator = torch.Generator().manual_seed(0)
    index = torch.randint(0, 30, (6, 30), generator=generator)
    values = torch.rand((6, 30), generator=generator)
    graph = Neighbours(index, values)
    order, lengths = graph._segments
    by_segments = torch.segment_reduce(values.reshape(-1)[order], "sum", lengths=lengths)
    torch.testing.assert_close(graph.sum_back(lambda part: values[:, part]), by_segments)


@pytest.mark.parametrize("transposed", [False, True])
def test_largest_of_wide_blocks_are_those_of_one_sort(transposed):
    products = torch.randn((30, 40 * neighbours.BUNDLE), generator=torch.Generator().manual_seed(0))
    products[:, 5] = products[:, 13] = 3.0  # equal values
    products = products.T.contiguous().T if transposed else products
    values, columns = _largest(products, 9)
    assert torch.equal(values, products.topk(9, dim=1).values)
    assert torch.equal(products.gather(1, columns), values)
    assert all(len(set(row)) == 9 for row in columns.tolist())
