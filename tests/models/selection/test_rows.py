"""Rows read in blocks give the same answers as in the plain case."""

import pytest
import torch

from fineweb_mask.models.selection.rows import Rows


@pytest.mark.parametrize("standardised", [False, True])
def test_products_in_blocks_are_those_of_the_matrix(standardised, corpus, monkeypatch):
    for name, size in (("BLOCK_BYTES", {"cpu": 1200}), ("GATHERED_BYTES", {"cpu": 1200}), ("TILE", 6)):
        monkeypatch.setattr(f"fineweb_mask.models.selection.rows.{name}", size)
    stored = torch.from_numpy(corpus[0][:100]).half()
    x = torch.nn.functional.normalize(stored.double(), dim=1)
    rows = Rows(stored, (1 / torch.linalg.vector_norm(stored.double(), dim=1)).float())
    if standardised:
        rows = rows.standardised(rows.standard())
        x = (x - x.mean(0)) / x.std(0, correction=0)
        x *= rows.d**0.5 / torch.linalg.vector_norm(x, dim=1, keepdim=True)
    generator = torch.Generator().manual_seed(0)
    weights = torch.rand(rows.n, generator=generator)
    masks, matrix = weights > torch.tensor([[0.2], [0.7]]), torch.rand((rows.d, rows.d), generator=generator)
    index = masks[1].nonzero()[:, 0]
    for found, expected in (
        (rows.matrix, x),
        (rows.only(index).matrix, x[index]),
        (rows.products(slice(3, 20), index), x[3:20] @ x[index].T),
        (rows.weighted_sum(weights), weights.double() @ x),
        (rows.weighted_sum(masks[1]), masks[1].double() @ x),
        (rows.weighted_sum(masks), masks.double() @ x),
        (rows.second_moment(weights), x.T @ (weights.double()[:, None] * x)),
        (rows.quadratic(matrix), ((x @ matrix.double()) * x).sum(1)),
        (rows.square_norms(), x.square().sum(1)),
    ):
        torch.testing.assert_close(found.double(), expected, rtol=2e-4, atol=2e-4)
