"""`disf`: its gradient against differences of its norm, its ranking against the published form."""

import torch

from fineweb_mask.models.selection.metrics.disf import Disf
from fineweb_mask.models.selection.rows import Rows
from tests.models.selection.enumerable import central_differences, probabilities, unit_rows


def test_disf_gradient_is_that_of_the_norm():
    rows, budget = unit_rows(14, 4), 5
    metric = Disf(rows)
    z = metric.rows.block(slice(None)).double()

    def value(pi):
        return -float((z.T @ (z * pi[:, None]) / (budget - 1)).square().sum().sqrt())

    pi = probabilities(14, budget)
    expected = central_differences(value, pi)
    torch.testing.assert_close(metric.gradient(pi.float()).double(), expected.double(), rtol=1e-4, atol=1e-5)


def disf_by_selection(rows, mask):
    """DiSF as its published code evaluates it: standardised by the selected documents themselves."""
    z = Rows(rows.take(mask.nonzero()[:, 0])).standardised().block(slice(None))
    gram = z @ z.T if len(z) < rows.d else z.T @ z
    return -float(torch.linalg.vector_norm(gram, dtype=torch.float64)) / max(len(z) - 1, 1)


def test_both_forms_of_disf_rank_selections_alike():
    generator = torch.Generator().manual_seed(0)
    scales = torch.linspace(0.1, 3, 8)
    cloud = torch.randn((200, 8), generator=generator) * scales
    rows = Rows(torch.nn.functional.normalize(cloud, dim=1))
    metric = Disf(rows)
    own, published = [], []
    for share in torch.linspace(0, 1, 8):  # from uniform subsets to ones along a single direction
        keys = torch.rand(200, generator=generator) * (1 - share) + share * rows.block(slice(None))[:, -1].abs()
        mask = torch.zeros(200, dtype=torch.bool)
        mask[keys.topk(40).indices] = True
        own.append(float(metric.value(mask[None])[0]))
        published.append(disf_by_selection(rows, mask))
    ranks = torch.tensor([own, published]).argsort(1).argsort(1).double()
    assert float(torch.corrcoef(ranks)[0, 1]) > 0.6
