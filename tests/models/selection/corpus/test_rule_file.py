"""A rule as a file: the same answers after it is saved and loaded."""

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from fineweb_mask.models.selection import SelectionSettings
from fineweb_mask.models.selection.corpus.documents import Documents
from fineweb_mask.models.selection.corpus.rule_file import RuleFileError, load_rule, save_rule
from fineweb_mask.models.selection.corpus.whole import select_corpus

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
    with pytest.raises(RuleFileError, match="holds no rule: write one with `fineweb-mask rule export`"):
        load_rule(path, CPU)
