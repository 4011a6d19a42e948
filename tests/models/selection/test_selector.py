"""`select` from end to end: inputs, refused with row and remedy where they are bad, settings, own metrics, devices."""

import numpy as np
import pytest
import torch

from fineweb_mask.models.errors import SettingsError
from fineweb_mask.models.selection.inputs import SelectionInputError
from fineweb_mask.models.selection.metrics.base import Metric
from fineweb_mask.models.selection.selector import select
from fineweb_mask.models.settings.selection import SelectionSettings
from tests.models.selection.enumerable import METRICS


@pytest.fixture(scope="module")
def few(corpus):
    return tuple(values[:100] for values in corpus)


def test_settings_are_given_as_an_object_a_dictionary_or_by_keyword(few):
    settings = SelectionSettings(select_ratio=0.2, lamb=0.7, metrics="facility")
    expected = select(*few, settings)
    for selection in (
        select(*few, select_ratio=0.2, lamb=0.7, metrics="facility"),
        select(*few, {"metrics": "facility", "lamb": 0.1}, select_ratio=0.2, lamb=0.7),
        select(*few, settings.model_copy(update={"lamb": 0.1}), lamb=0.7),
    ):
        assert (selection.indices == expected.indices).all()
    with pytest.raises(SettingsError, match=r"^select_ration: unknown setting; did you mean 'select_ratio'\?"):
        select(*few, select_ration=0.2)
    with pytest.raises(SettingsError, match=r"^lamb: .*received 3"):
        select(*few, lamb=3)


def test_rows_are_normalised_and_inputs_left_alone_and_their_type_hardly_matters(corpus):
    features, quality = corpus
    scaled = features * np.linspace(0.5, 20, len(features))[:, None].astype(np.float32)
    before = scaled.copy()
    scaled.flags.writeable = False
    expected = select(features, quality, metrics="pairwise")
    for rows in (scaled, torch.from_numpy(features).half()):
        found = select(rows, quality, metrics="pairwise")
        assert len(np.intersect1d(found.indices, expected.indices)) >= 0.9 * len(expected.indices)
        assert found.objective == pytest.approx(expected.objective, abs=0.01)
    assert (scaled == before).all()


def test_lamb_trades_quality_for_diversity(few):
    terms = [select(*few, lamb=lamb).terms for lamb in (0.05, 0.5, 0.95)]
    assert terms[0]["quality"] < terms[1]["quality"] < terms[2]["quality"]
    assert terms[0]["diversity"] > terms[1]["diversity"] > terms[2]["diversity"]


class Spread(Metric):
    """A user's metric: the spread of the first feature."""

    def __init__(self, features):
        self.values = torch.from_numpy(features[:, 0]).double()

    def value(self, masks):
        weights = masks.double() / masks.sum(1, keepdim=True)
        return weights @ self.values.square() - (weights @ self.values).square()


class Undifferentiable(Spread):
    def value(self, masks):
        return torch.tensor([self.values[mask].std() for mask in masks.bool()])


def indicator(selection, n):
    return torch.zeros((1, n), dtype=torch.bool).index_fill(1, torch.from_numpy(selection.indices), value=True)


LEARNED = {
    "solver": "policy_gradient",
    "metrics": {},
    "lamb": 0.0,
    "policy_gradient": {"n_epochs": 60, "n_rollout": 32, "partial": 0.5},
}


@pytest.mark.parametrize(
    ("kind", "chosen", "rise"), [(Undifferentiable, LEARNED, 1), (Spread, LEARNED, 1.5), (Spread, {"lamb": 0.2}, 1)]
)
def test_own_metric_is_maximised_without_a_bound(kind, chosen, rise, few):
    features, quality = few
    selection = select(features, quality, own_metrics={"spread": (kind(features), 1.0)}, **chosen)
    assert Spread(features).value(indicator(selection, 100)) > rise * features[:, 0].var()
    assert (selection.upper_bound, selection.gap) == (None, None)


def test_an_own_metric_that_cannot_be_used_is_refused(few):
    with pytest.raises(SelectionInputError, match=r"'spread' must be of a subclass of fineweb_mask\.Metric"):
        select(*few, own_metrics={"spread": (object(), 1.0)})
    with pytest.raises(SelectionInputError, match=r"Undifferentiable cannot be differentiated: .*'policy_gradient'"):
        select(*few, SelectionSettings(metrics={}), own_metrics={"spread": (Undifferentiable(few[0]), 1.0)})


def spoiled(array, row, value):
    array = array.copy()
    array[row] = value
    return array


FEATURES = [
    (lambda f: spoiled(f, 7, np.nan), r"features row 7 .*embed"),
    (lambda f: spoiled(f.astype(np.float64), (9, 2), 1e300), r"features row 9 .*infinite"),
    (lambda f: spoiled(f, 3, 0.0), r"features row 3 is a zero vector"),
    (lambda f: f[:, 0], r"features must have shape"),
    (lambda f: f.astype(str), r"features must hold numbers, received dtype <U"),
    (lambda f: f[:-1], r"quality must have one value per row of features \(99\)"),
]
QUALITY = [
    (lambda q: spoiled(q, 11, -np.inf), r"quality row 11 .*score"),
    (lambda q: [*q[:-1], None], r"quality must hold numbers, received dtype object"),
]


@pytest.mark.parametrize(
    ("place", "change", "message"), [(place, *one) for place, bad in enumerate((FEATURES, QUALITY)) for one in bad]
)
def test_bad_input_is_named_with_row_and_remedy(place, change, message, few):
    given = list(few)
    given[place] = change(given[place])
    with pytest.raises(SelectionInputError, match=message):
        select(*given)


@pytest.mark.parametrize(
    ("chosen", "tokens", "message"),
    [
        ({"budget": 101}, None, r"budget is 101 documents, but there are only 100"),
        ({"metrics": {}}, None, r"metrics is empty"),
        ({"budget_by": "tokens"}, None, r"pass tokens"),
        ({"budget_by": "tokens"}, np.ones(3), r"tokens must have one value"),
        ({"budget_by": "tokens"}, np.zeros(100), r"tokens row 0"),
        ({"budget_by": "tokens", "budget": 3}, np.full(100, 9), r"below the shortest document's 9"),
    ],
)
def test_settings_that_do_not_fit_the_data_are_refused(chosen, tokens, message, few):
    with pytest.raises(SelectionInputError, match=message):
        select(*few, SelectionSettings(**chosen), tokens=tokens)


def test_zeros_for_quality_select_by_diversity_alone(few):
    selection = select(few[0], np.zeros(100), select_ratio=0.1)
    assert selection.terms["mean_quality"] == 0
    assert selection.objective > selection.random_objective


def test_float16_sums_do_not_overflow():
    random = np.random.default_rng(0)
    features = np.full((300, 8), 60_000, dtype=np.float16)
    features[:, 0] = random.integers(-60_000, 60_000, 300)
    assert np.isfinite(select(features, random.random(300).astype(np.float32)).objective)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("metric", METRICS)
def test_cuda_is_deterministic_and_as_good_as_the_cpu(metric, corpus):
    chosen = SelectionSettings(metrics=metric)
    first, second = (select(*corpus, chosen, device="cuda") for _ in range(2))
    assert first.indices.tobytes() == second.indices.tobytes()
    assert first.objective == pytest.approx(select(*corpus, chosen).objective, abs=0.01)


def test_quality_columns_are_standardised_and_weighted(few):
    features, quality = few
    other = np.random.default_rng(1).random(len(quality)).astype(np.float32)
    columns = np.stack([quality * 1000, other, np.ones_like(quality)], axis=1)
    found = select(features, columns, solver="top_quality", quality_weights=[1.0, 0.0, 5.0])
    assert (found.indices == select(features, quality, solver="top_quality").indices).all()
    with pytest.raises(SelectionInputError, match="quality_weights must be a finite number for each column"):
        select(features, quality, quality_weights=[1.0, 2.0])


def test_a_column_of_vectors_is_read_as_one_array(few):
    features, quality = few
    column = np.empty(len(features), dtype=object)
    column[:] = list(features)
    assert (select(column, quality, metrics="pairwise").indices == select(*few, metrics="pairwise").indices).all()
    column[1] = features[1][:-1]
    with pytest.raises(SelectionInputError, match="features: every document needs a vector of equal length"):
        select(column, quality, metrics="pairwise")


@pytest.mark.parametrize(("ratio", "n", "expected"), [(0.1, 25, 2), (0.1, 35, 4), (0.001, 7, 1)])
def test_budget_is_pythons_rounding_and_at_least_one(ratio, n, expected):
    random = np.random.default_rng(0)
    selection = select(random.normal(size=(n, 4)), random.random(n), select_ratio=ratio)
    assert len(selection.indices) == expected
