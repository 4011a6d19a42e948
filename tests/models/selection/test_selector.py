"""`select` from end to end: types of inputs, settings, metrics of one's own, devices."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from fineweb_mask.models.errors import SettingsError
from fineweb_mask.models.selection import (
    SelectionInputError,
    SelectionSettings,
    select,
)
from tests.models.selection.enumerable import METRICS


@pytest.mark.parametrize(
    ("ratio", "n", "expected"), [(0.1, 25, 2), (0.1, 35, 4), (0.5, 5, 2), (0.001, 7, 1), (1.0, 9, 9)]
)
def test_budget_is_pythons_rounding_and_at_least_one(ratio, n, expected):
    random = np.random.default_rng(0)
    selection = select(random.normal(size=(n, 4)), random.random(n), SelectionSettings(select_ratio=ratio))
    assert len(selection.indices) == expected


def test_settings_are_given_as_an_object_a_dictionary_or_by_keyword(corpus):
    settings = SelectionSettings(select_ratio=0.2, lamb=0.7, metrics="facility")
    expected = select(*corpus, settings)
    for selection in (
        select(*corpus, select_ratio=0.2, lamb=0.7, metrics="facility"),
        select(*corpus, {"metrics": "facility", "lamb": 0.1}, select_ratio=0.2, lamb=0.7),
        select(*corpus, settings.model_copy(update={"lamb": 0.1}), lamb=0.7),
    ):
        assert (selection.indices == expected.indices).all()
    with pytest.raises(SettingsError, match=r"^select_ration: unknown setting; did you mean 'select_ratio'\?"):
        select(*corpus, select_ration=0.2)
    with pytest.raises(SettingsError, match=r"^lamb: .*received 3"):
        select(*corpus, lamb=3)


def test_progress_receives_the_history(corpus):
    seen = []
    selection = select(*corpus, SelectionSettings(), progress=lambda *entry: seen.append(entry))
    assert seen == selection.history
    assert selection.history[-1][2] == pytest.approx(selection.objective, abs=1e-6)


@pytest.mark.parametrize("metric", METRICS)
def test_float16_and_torch_inputs_select_nearly_the_same(metric, corpus):
    features, quality = corpus
    chosen = SelectionSettings(metrics=metric, select_ratio=0.2)
    whole = select(features, quality, chosen)
    half = select(torch.from_numpy(features).half(), torch.from_numpy(quality), chosen)
    assert len(np.intersect1d(whole.indices, half.indices)) > 0.9 * len(whole.indices)
    assert half.objective == pytest.approx(whole.objective, abs=0.01)


def test_rows_are_normalised_and_inputs_left_alone(corpus):
    features, quality = corpus
    scaled = features * np.linspace(0.5, 20, len(features))[:, None].astype(np.float32)
    before = scaled.copy()
    scaled.flags.writeable = False
    found = [select(rows, quality, metrics="pairwise").indices for rows in (scaled, features)]
    assert (found[0] == found[1]).mean() > 0.95
    assert (scaled == before).all()


def test_lamb_trades_quality_for_diversity(corpus):
    terms = [select(*corpus, SelectionSettings(lamb=lamb)).terms for lamb in (0.05, 0.5, 0.95)]
    assert terms[0]["quality"] < terms[1]["quality"] < terms[2]["quality"]
    assert terms[0]["diversity"] > terms[1]["diversity"] > terms[2]["diversity"]


class Spread:
    """A user's metric: the spread of the first feature."""

    def __init__(self, features):
        self.values = torch.from_numpy(features[:, 0]).double()

    def value(self, masks):
        weights = masks.double() / masks.sum(1, keepdim=True)
        return weights @ self.values.square() - (weights @ self.values).square()


class DifferentiableSpread(Spread):
    def gradient(self, inclusion):
        k, pi = inclusion.sum(), inclusion.double()
        return (self.values.square() - 2 * self.values * (pi @ self.values) / k) / k


@pytest.mark.parametrize("normalize", ["none", "range"])
def test_own_metric_works_with_policy_gradient_at_once(normalize, corpus):
    features, quality = corpus
    chosen = SelectionSettings(
        solver="policy_gradient",
        metrics={},
        lamb=0.0,
        normalize=normalize,
        policy_gradient={"n_epochs": 100, "n_rollout": 32, "partial": 0.5},
    )
    selection = select(features, quality, chosen, own_metrics={"spread": (Spread(features), 1.0)})
    assert selection.terms["spread"] > 1.5 * features[:, 0].var()
    assert selection.upper_bound is None


def test_own_metric_with_a_gradient_works_with_mean_field(corpus):
    features, quality = corpus
    chosen = SelectionSettings(lamb=0.2)
    selection = select(features, quality, chosen, own_metrics={"spread": (DifferentiableSpread(features), 1.0)})
    assert selection.terms["spread"] > features[:, 0].var()
    assert selection.upper_bound is None
    assert selection.gap is None


def test_own_metric_without_gradient_is_refused_by_mean_field(corpus):
    with pytest.raises(SelectionInputError, match=r"gradient\(inclusion\).*policy_gradient"):
        select(*corpus, SelectionSettings(metrics={}), own_metrics={"spread": (Spread(corpus[0]), 1.0)})


@pytest.mark.parametrize(
    "unfit",
    [
        {"select_ratio": 0.0},
        {"select_ratio": 1.1},
        {"budget": 0},
        {"lamb": 1.5},
        {"solver": "best"},
        {"metrics": {"pairwise": -1.0}},
        {"metrics": {"pairwse": 1.0}},
        {"budget": 10, "unknown": 1},
    ],
)
def test_unfit_settings_are_refused(unfit):
    with pytest.raises(ValidationError):
        SelectionSettings(**unfit)


def test_settings_alone_import_no_torch():
    code = "import sys, fineweb_mask.models.settings.selection; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("metric", METRICS)
def test_cuda_is_deterministic_and_as_good_as_the_cpu(metric, corpus):
    chosen = SelectionSettings(metrics=metric)
    first, second = (select(*corpus, chosen, device="cuda") for _ in range(2))
    assert first.indices.tobytes() == second.indices.tobytes()
    assert first.objective == pytest.approx(select(*corpus, chosen).objective, abs=0.01)
