"""Neighbours against a full sort, and their sums in both forms."""

import pytest
import torch

from fineweb_mask.models.selection.graphs.neighbours import Neighbours, nearest
from fineweb_mask.models.selection.rows import Rows


@pytest.mark.parametrize("side", [7, 20, 1000])
def test_neighbours_are_the_exact_nearest(side, corpus, monkeypatch):
    monkeypatch.setattr("fineweb_mask.models.selection.graphs.neighbours.PRODUCT_ELEMENTS", {"cpu": side * side})
    x = torch.from_numpy(corpus[0][:150])
    found = nearest(Rows(x), 12)
    similarity = (x @ x.T).clamp(min=0)
    expected = similarity.topk(12, dim=1).values.T
    torch.testing.assert_close(found.similarity, expected, rtol=0, atol=1e-5)
    gathered = similarity.gather(1, found.index.T).T
    torch.testing.assert_close(gathered, expected, rtol=0, atol=1e-5)
    assert (found.index[0] == torch.arange(150)).all()


def test_sums_over_sorted_segments_equal_scattered_ones():
    generator = torch.Generator().manual_seed(0)
    index = torch.randint(0, 30, (6, 30), generator=generator)
    values = torch.rand((6, 30), generator=generator)
    graph = Neighbours(index, values)
    order, lengths = graph._segments
    by_segments = torch.segment_reduce(values.reshape(-1)[order], "sum", lengths=lengths)
    torch.testing.assert_close(graph.sum_back(values), by_segments)
