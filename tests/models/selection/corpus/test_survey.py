"""The survey of parts adds up to that of the corpus, and the sample is a random one."""

import numpy as np
import torch

from fineweb_mask.models.selection.corpus.documents import Documents
from fineweb_mask.models.selection.corpus.survey import Survey, sampled
from fineweb_mask.models.selection.inputs import checked_features

CPU = torch.device("cpu")


def test_surveys_of_parts_add_up(parts_with_tokens):
    whole = Documents.concatenate(parts_with_tokens)
    total = Survey.total([Survey.of(part, CPU) for part in parts_with_tokens])
    assert (total.documents, total.tokens) == (3400, int(whole.tokens.sum()))
    rows = checked_features(whole.vectors, CPU)
    for one, other in zip(total.standard, rows.standard(), strict=True):
        torch.testing.assert_close(one, other)


def test_arrays_make_the_same_survey(parts):
    survey = Survey.of(parts[0], CPU)
    again = Survey.of_arrays(survey.arrays())
    assert (again.documents, again.tokens) == (survey.documents, survey.tokens)
    assert again.sums.equal(survey.sums)
    assert again.squares.equal(survey.squares)


def test_a_dimension_that_does_not_vary_counts_nothing():
    vectors = np.ones((10, 3))
    standard = Survey.of(Documents(vectors, np.zeros(10), np.zeros(10)), CPU).standard
    assert standard.inverse_deviation.tolist() == [0, 0, 0]


def test_the_sample_grows_with_its_rate(parts):
    counts = [len(sampled(parts[2], rate).quality) for rate in (0.0, 0.1, 0.5, 1.0)]
    assert counts[0] == 0
    assert counts[3] == 1500
    assert abs(counts[1] - 150) < 60
    smaller, larger = sampled(parts[2], 0.1), sampled(parts[2], 0.5)
    assert set(smaller.lots) < set(larger.lots)
