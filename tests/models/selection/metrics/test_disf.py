"""`disf` against differences of its norm, and against its published form."""

import torch

from fineweb_mask.models.selection.metrics.disf import Disf, disf_by_selection
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
