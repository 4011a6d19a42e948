"""Rows read in blocks and without a copy give the same answers as in the plain case."""

import numpy as np
import pytest
import torch

from fineweb_mask.models.selection import SelectionSettings, select
from fineweb_mask.models.selection.rows import Rows


@pytest.mark.parametrize("metric", ["facility", "disf"])
def test_blocks_and_copies_do_not_change_the_answer(metric, corpus, monkeypatch):
    features, quality = (values[:100] for values in corpus)
    chosen = SelectionSettings(metrics=metric, select_ratio=0.1, lamb=0.3)
    whole = select(features.astype(np.float16), quality, chosen)
    monkeypatch.setattr("fineweb_mask.models.selection.rows.COPY_BYTES", {"cpu": 0})
    monkeypatch.setattr("fineweb_mask.models.selection.rows.BLOCK_BYTES", {"cpu": 4 * 12 * 37})
    monkeypatch.setattr("fineweb_mask.models.selection.neighbours.PRODUCT_ELEMENTS", {"cpu": 40 * 40})
    in_blocks = select(features.astype(np.float16), quality, chosen)
    assert in_blocks.objective == pytest.approx(whole.objective, abs=0.01)
    assert len(np.intersect1d(whole.indices, in_blocks.indices)) > 0.8 * len(whole.indices)


@pytest.fixture(params=["scaled", "standardised"])
def half(request, corpus, monkeypatch):
    """Rows read from float16 in blocks, and the same as a plain matrix in float64."""
    for name in ("COPY_BYTES", "NARROW_BYTES", "BLOCK_BYTES"):
        monkeypatch.setattr(f"fineweb_mask.models.selection.rows.{name}", {"cpu": 0 if name == "COPY_BYTES" else 9000})
    monkeypatch.setattr("fineweb_mask.models.selection.rows.TILE", 6)
    stored = torch.from_numpy(corpus[0][:100]).half()
    plain = stored.double()
    plain /= torch.linalg.vector_norm(plain, dim=1, keepdim=True)
    rows = Rows(stored, (1 / torch.linalg.vector_norm(stored.double(), dim=1)).float())
    if request.param == "standardised":
        plain = (plain - plain.mean(0)) / plain.std(0, correction=0)
        plain *= rows.d**0.5 / torch.linalg.vector_norm(plain, dim=1, keepdim=True)
        return rows.standardised(), plain
    return rows, plain


def test_products_of_float16_rows_are_those_of_the_matrix(half):
    rows, x = half
    generator = torch.Generator().manual_seed(0)
    directions = torch.linalg.qr(torch.rand((rows.d, 5), generator=generator)).Q
    weights, factors = torch.rand((2, rows.n), generator=generator)
    masks, matrix = weights > torch.tensor([[0.2], [0.7]]), torch.rand((rows.d, rows.d), generator=generator)
    index = masks[0].nonzero()[:, 0]
    squares, inside = x.square().sum(1), x @ directions.double()
    rest = (squares - inside.square().sum(1)).clamp(min=0).sqrt() * factors
    for found, expected in (
        (rows.dot(directions[:, 0]), inside[:, 0]),
        (rows.dot(directions), inside),
        (rows.weighted_sum(weights), weights.double() @ x),
        (rows.weighted_sum(masks[0]), masks[0].double() @ x),
        (rows.weighted_sum(masks), masks.double() @ x),
        (rows.second_moment(weights.nonzero()[:, 0], weights), x.T @ (weights.double()[:, None] * x)),
        (rows.second_moment(index), x[index].T @ x[index]),
        (rows.quadratic(matrix), ((x @ matrix.double()) * x).sum(1)),
        (rows.square_norms(), squares),
        (rows.in_directions(directions, squares, factors).block(slice(None)), torch.cat([inside, rest[:, None]], 1)),
    ):
        torch.testing.assert_close(found.double(), expected, rtol=2e-4, atol=2e-4)
