"""The selector `vendi`: the objective with the Vendi score, whatever the recipe's metrics are."""

import numpy as np
import pytest


@pytest.mark.parametrize("budget", [{"budget": 30}, {"budget": 600, "budget_by": "tokens"}])
def test_it_selects_what_mean_field_does_with_that_metric(corpus, selected, budget):
    features, quality = corpus
    tokens = np.random.default_rng(0).integers(5, 40, len(quality))
    plain = selected("mean_field", features, quality, tokens=tokens, metrics="vendi", lamb=0.3, **budget)
    found = selected("vendi", features, quality, tokens=tokens, metrics="pairwise", lamb=0.3, **budget)
    assert set(found.indices) == set(plain.indices)
    assert found.upper_bound is None  # none on the recipe's objective
    other = selected("mean_field", features, quality, tokens=tokens, metrics="pairwise", lamb=0.3, **budget)
    assert set(found.indices) != set(other.indices)
    assert found.terms.keys() == other.terms.keys()
