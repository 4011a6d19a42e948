"""A rule judges documents alike wherever they are, and is written exactly."""

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from fineweb_mask.models.selection import SelectionSettings
from fineweb_mask.models.selection.corpus.documents import Documents, flat, made, nested, tree_of
from fineweb_mask.models.selection.corpus.rule import FIRST, LAST, Place, Rule, RuleFileError, load_rule, save_rule
from fineweb_mask.models.selection.corpus.whole import select_corpus

CPU = torch.device("cpu")
METRICS = {"pairwise": 1, "disf": 0.5}


def test_a_place_comes_after_higher_worth_and_lower_ties():
    worth, ties = np.array([3, 2, 2, 1], dtype=np.float32), np.array([0.9, 0.2, 0.7, 0.0])
    assert Place(2.0, 0.5).admits(worth, ties).tolist() == [True, True, False, False]
    assert not FIRST.admits(worth, ties).any()
    assert LAST.admits(worth, ties).all()


@pytest.fixture(scope="module", params=["parts", "parts_with_tokens"])
def learned(request):
    found = request.getfixturevalue(request.param)
    by_tokens = request.param == "parts_with_tokens"
    settings = SelectionSettings(metrics=METRICS, budget_by="tokens" if by_tokens else "documents")
    return found, select_corpus(lambda: found, settings, rate=0.5, passes=1, directions=5)


def test_a_document_is_judged_the_same_in_any_part(learned):
    parts, selection = learned
    whole = Documents.concatenate(parts)
    worth = selection.rule.measure(whole, CPU).worth
    apart = np.concatenate([selection.rule.measure(part, CPU).worth for part in parts])
    np.testing.assert_allclose(worth, apart, rtol=1e-4, atol=1e-6 * np.abs(worth).max())


def test_gains_are_those_of_the_objective(learned):
    """What a document adds to J is its gain, up to the second order."""
    parts, selection = learned
    rule, whole = selection.rule, Documents.concatenate(parts)
    measured, objective = rule.measure(whole, CPU), rule.objective
    masses = np.ones(len(whole.quality)) if measured.masses is None else measured.masses.numpy().astype(np.float64)

    def value(share, document):  # J at the rule's moments, and a share of a document
        weights = torch.zeros(len(masses))
        weights[document] = share
        total = masses[document] * whole.quality[document] * share / objective.size * objective.linear_weight
        for name, metric in measured.metrics.items():
            moment = rule.moments[name] + metric.moment(weights)
            total += objective.weights[name] * float(metric.of_moment(moment, objective.size))
            if metric.credit is not None:
                total += objective.weights[name] * share * float(metric.credit[document]) / objective.size**2
        return total

    for document in (0, 1000, 3000):
        slope = (value(0.01, document) - value(-0.01, document)) / 0.02
        assert float(measured.gains[document]) == pytest.approx(slope, rel=2e-3, abs=1e-7)


def test_inclusion_is_one_half_at_the_threshold_and_higher_above(learned):
    parts, selection = learned
    selected, inclusion = selection.rule.select(parts[2], CPU)
    assert inclusion[selected].min() >= 0.5 >= inclusion[~selected].max()
    order = np.argsort(selection.rule.measure(parts[2], CPU).worth)
    assert (np.diff(inclusion[order]) >= 0).all()


def test_arrays_make_the_same_rule(learned):
    parts, selection = learned
    again = made(Rule, nested(flat(tree_of(selection.rule))), CPU)
    assert again.objective == selection.rule.objective
    for before, after in zip(selection.rule.select(parts[0], CPU), again.select(parts[0], CPU), strict=True):
        np.testing.assert_array_equal(before, after)


CPU = torch.device("cpu")


@pytest.fixture
def documents():
    random = np.random.default_rng(0)
    vectors = random.normal(size=(400, 12)).astype(np.float32)
    tokens = random.integers(10, 200, 400)
    return Documents(vectors, random.random(400).astype(np.float32), random.random(400), tokens)


@pytest.mark.parametrize("metrics", ["pairwise", "disf", {"pairwise": 1.0, "disf": 0.5}])
@pytest.mark.parametrize("budget_by", ["documents", "tokens"])
def test_a_loaded_rule_answers_as_the_saved_one(metrics, budget_by, documents, tmp_path):
    settings = SelectionSettings(metrics=metrics, budget_by=budget_by)
    part = documents if budget_by == "tokens" else documents._replace(tokens=None)
    rule = select_corpus(lambda: [part], settings).rule
    save_rule(tmp_path / "rule.safetensors", rule, {"of": "a test"})
    loaded = load_rule(tmp_path / "rule.safetensors", CPU)
    assert loaded.notes == {"of": "a test"}
    for ours, theirs in zip(rule.select(part, CPU), loaded.rule.select(part, CPU), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert (tmp_path / "rule.safetensors").stat().st_size < 20_000


def test_a_file_that_holds_no_rule_is_refused(tmp_path):
    path = tmp_path / "rule.safetensors"
    with pytest.raises(RuleFileError, match="cannot be read as a rule"):
        load_rule(path, CPU)
    path.write_bytes(b"no tensors at all")
    with pytest.raises(RuleFileError, match="cannot be read as a rule"):
        load_rule(path, CPU)
    save_file({"a": np.ones(3)}, path)
    with pytest.raises(RuleFileError, match="holds no rule of this version: write one with `fineweb-mask rule export`"):
        load_rule(path, CPU)


def test_a_changed_byte_anywhere_is_an_error_in_one_line(documents, tmp_path):
    small = documents._replace(vectors=documents.vectors[:, :3])
    rule = select_corpus(lambda: [small], SelectionSettings(metrics="pairwise")).rule
    path = tmp_path / "rule.safetensors"
    save_rule(path, rule, {"models": "a"})
    whole = path.read_bytes()
    assert len(whole) < 4_000
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << place % 8]) + whole[place + 1 :])
        with pytest.raises(RuleFileError, match=r"is damaged|cannot be read as a rule|holds no rule") as error:
            load_rule(path, CPU)
        assert "\n" not in str(error.value)
    for end in (0, 7, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:end])
        with pytest.raises(RuleFileError):
            load_rule(path, CPU)
    path.write_bytes(whole)
    load_rule(path, CPU)


def test_a_rule_has_the_mode_of_other_files(documents, tmp_path):
    rule = select_corpus(lambda: [documents], SelectionSettings(metrics="pairwise")).rule
    save_rule(tmp_path / "rule.safetensors", rule, {})
    (tmp_path / "other").touch()
    assert (tmp_path / "rule.safetensors").stat().st_mode == (tmp_path / "other").stat().st_mode
