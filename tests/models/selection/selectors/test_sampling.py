"""Random, top quality, quality sampling and DSIR against their definitions."""

import numpy as np
import pytest

from fineweb_mask.models.selection.inputs import SelectionInputError, SelectorInputs


def test_quality_sampling_goes_from_top_to_random_with_its_temperature(corpus, selected):
    def mean_quality(temperature):
        return selected("quality_sampling", *corpus, temperature=temperature).terms["quality"]

    assert mean_quality(1e-3) > 0.99
    assert mean_quality(0.7) > mean_quality(1e3) + 0.1
    assert abs(mean_quality(1e3)) < 0.3


def test_random_differs_by_seed(corpus, selected):
    first, second = (selected("random", *corpus, seed=seed).indices for seed in (0, 1))
    assert set(first) != set(second)


def test_dsir_draws_in_proportion_to_the_weights(selected):
    group, weights = np.arange(800) % 4, np.log([0.1, 0.2, 0.3, 0.4])
    also, features = SelectorInputs(log_weights=weights[group]), np.random.default_rng(0).normal(size=(800, 2))
    few = {"budget": 20, "normalize": "none", "metrics": "pairwise"}  # so few that none is missed
    drawn = [selected("dsir", features, np.zeros(800), also=also, seed=seed, **few).indices for seed in range(15)]
    shares = np.bincount(group[np.concatenate(drawn)], minlength=4) / 300
    np.testing.assert_allclose(shares, np.exp(weights), atol=0.085)  # three deviations


def test_dsir_takes_short_documents_last(selected):
    also = SelectorInputs(log_weights=np.array([-np.inf, -900.0, -np.inf, 5.0]))
    assert selected("dsir", np.eye(4), np.zeros(4), budget=2, also=also).indices.tolist() == [1, 3]
    assert len(selected("dsir", np.eye(4), np.zeros(4), budget=3, also=also).indices) == 3


@pytest.mark.parametrize(
    ("also", "message"),
    [
        (SelectorInputs(log_weights=[0.0, np.nan]), "log_weights"),
        (SelectorInputs(log_weights=[0.0]), "log_weights"),
        (None, r"solver dsir: it reads target examples: set selection\.targets"),
    ],
)
def test_weights_that_are_missing_or_not_numbers_are_refused(also, message, selected):
    with pytest.raises(SelectionInputError, match=message):
        selected("dsir", np.eye(2), np.zeros(2), budget=1, also=also)
