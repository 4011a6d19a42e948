"""`fineweb-mask train-quality`: errors before training, and a classifier of real pages."""

import json
from pathlib import Path

import pytest

START = ("train-quality", "--input", Path(__file__).resolve().parents[3] / "data_samples" / "labels.parquet")


def test_labels_of_one_class_fail_before_training(invoke, tmp_path):
    result = invoke(*START, "--output", tmp_path / "m.bin", "--threshold", "9")
    assert result.exit_code == 1
    assert "same side of the threshold: set threshold, now 9, between the scores" in result.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_real_pages_reach_a_roc_auc_of_0_95(invoke, real_data, tmp_path):
    labels = ("--input", str(real_data / "fineweb_legal_annotated.parquet"), "--score-column", "legal_score")
    done = invoke("train-quality", *labels, "--threshold", "3", "--output", str(tmp_path / "model.bin"), "--json")
    assert done.exit_code == 0, done.stderr
    answer = json.loads(done.stdout.splitlines()[-1])
    assert (answer["labels"], answer["held_out"]) == (2_800, 560)
    assert answer["roc_auc"] >= 0.95
    assert answer == json.loads((tmp_path / "model.metrics.json").read_text()) | {"model": str(tmp_path / "model.bin")}
