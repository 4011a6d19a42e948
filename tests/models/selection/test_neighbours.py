"""Neighbours against a full sort, and their sums in both forms."""

import pytest
import torch

from fineweb_mask.models.selection import neighbours
from fineweb_mask.models.selection.neighbours import Neighbours, _largest, nearest
from fineweb_mask.models.selection.rows import Rows


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


@pytest.mark.parametrize("n", [1, 70])
def test_identical_and_few_documents_get_full_lists(n):
    found = nearest(Rows(torch.nn.functional.normalize(torch.ones((n, 4)), dim=1)), 5)
    assert found.index.shape == (min(n, 5), n)
    torch.testing.assert_close(found.similarity, torch.ones(min(n, 5), n))


def test_sums_over_sorted_segments_equal_scattered_ones():
    generator = torch.Generator().manual_seed(0)
    index = torch.randint(0, 30, (6, 30), generator=generator)
    values = torch.rand((6, 30), generator=generator)
    graph = Neighbours(index, values)
    order, lengths = graph.segments
    by_segments = torch.segment_reduce(values.reshape(-1)[order], "sum", lengths=lengths)
    torch.testing.assert_close(graph.sum_back(values), by_segments)


@pytest.mark.parametrize("transposed", [False, True])
def test_largest_of_wide_blocks_are_those_of_one_sort(transposed):
    products = torch.randn((30, 40 * neighbours.BUNDLE), generator=torch.Generator().manual_seed(0))
    products[:, 5] = products[:, 13] = 3.0  # equal values
    products = products.T.contiguous().T if transposed else products
    values, columns = _largest(products, 9)
    assert torch.equal(values, products.topk(9, dim=1).values)
    assert torch.equal(products.gather(1, columns), values)
    assert all(len(set(row)) == 9 for row in columns.tolist())
