"""`pairwise` against the expectation over all masks."""

import torch

from fineweb_mask.models.selection.metrics.pairwise import Pairwise
from tests.models.selection.enumerable import bernoulli_expectation, central_differences, probabilities, unit_rows


def test_pairwise_gradient_is_that_of_the_expectation_over_all_masks_but_for_a_documents_own_product():
    rows, budget = unit_rows(10, 4), 4
    x = rows.block(slice(None)).double()

    def at_budget(mask):  # the definition with the budget's denominator
        s = x[mask].sum(0)
        return -float(s @ s - mask.sum()) / (budget * (budget - 1))

    pi = probabilities(10, budget)
    # |x_i|^2 is 1 only to float32
    expected = central_differences(lambda p: bernoulli_expectation(at_budget, p), pi)
    own = 2 * pi / (budget * (budget - 1))
    found = Pairwise(rows).gradient(pi.float()).double() + own
    torch.testing.assert_close(found, expected.double(), rtol=1e-4, atol=1e-5)
