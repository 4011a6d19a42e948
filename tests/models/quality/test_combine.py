"""Scores combined into one quality, compared with numpy."""

import numpy as np
import pytest

from fineweb_mask.models.quality.combine import combine_scores, fit_group_statistics, fit_statistics

RANDOM = np.random.default_rng(0)
SCORES = {
    "edu": RANDOM.normal(3, 2, 200).astype(np.float32),
    "fasttext": RANDOM.random(200, dtype=np.float32),
}
WEIGHTS = {"edu": 0.5, "fasttext": -2.0}


def standardised(column):
    values = column.astype(np.float64)
    return (values - values.mean()) / values.std()


def test_statistics_are_mean_and_deviation_in_double_precision_and_a_constant_column_counts_for_nothing():
    scores = {**SCORES, "constant": np.full(200, 0.7, np.float32)}
    statistics = fit_statistics(scores)
    for name, column in SCORES.items():
        assert statistics[name] == (np.mean(column, dtype=np.float64), np.std(column.astype(np.float64)))
    assert statistics["constant"] == (pytest.approx(0.7), 1.0)
    with_it = combine_scores(scores, {**WEIGHTS, "constant": 5.0}, statistics, "weighted_sum")
    np.testing.assert_allclose(with_it, combine_scores(SCORES, WEIGHTS, statistics, "weighted_sum"), atol=1e-6)


EDU, FASTTEXT = map(standardised, SCORES.values())
COMBINED = {
    "weighted_sum": 0.5 * EDU - 2.0 * FASTTEXT,
    "minimum": np.minimum(EDU, FASTTEXT),  # without weights
    "maximum": np.maximum(EDU, FASTTEXT),
}


@pytest.mark.parametrize("how", COMBINED)
def test_standardised_scores_are_combined_and_one_of_weight_zero_is_left_out(how):
    scores = {**SCORES, "low": np.linspace(-9, -5, 200, dtype=np.float32)}
    quality = combine_scores(scores, {**WEIGHTS, "low": 0.0}, fit_statistics(scores), how)
    assert quality.dtype == np.float32
    np.testing.assert_allclose(quality, COMBINED[how], rtol=1e-5, atol=1e-6)
    shard = {name: column[7:] for name, column in SCORES.items()}
    assert combine_scores(shard, WEIGHTS, fit_statistics(SCORES), how).tolist() == quality[7:].tolist()
    assert combine_scores({}, {}, {}, how, documents=3).tolist() == [0, 0, 0]


def test_groups_are_standardised_by_themselves_and_small_ones_as_the_corpus_is():
    groups = ["en"] * 120 + ["de"] * 70 + ["is"] * 10
    of_groups = fit_group_statistics(SCORES, groups, least=50)
    assert set(of_groups) == {"en", "de"}
    quality = combine_scores(
        SCORES, {"edu": 1.0, "fasttext": 0.0}, fit_statistics(SCORES), "weighted_sum", groups, of_groups
    )
    edu = SCORES["edu"]
    parts = [standardised(edu[:120]), standardised(edu[120:190]), standardised(edu)[190:]]
    np.testing.assert_allclose(quality, np.concatenate(parts), rtol=1e-5, atol=1e-6)
