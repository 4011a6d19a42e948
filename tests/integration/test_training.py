"""Training as a user does it, and a recipe with the model."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

pytestmark = pytest.mark.long  # a server, a worker or a browser, or whole runs, some of which are killed

ROOT = Path(__file__).resolve().parents[2]
LABELS = ROOT / "data_samples" / "labels.parquet"


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    call = [sys.executable, "-m", "fineweb_mask.flows.cli", "train-quality", *arguments]
    return subprocess.run(call, cwd=ROOT, env={**os.environ}, capture_output=True, text=True, timeout=300, check=False)


def test_a_trained_model_scores_in_a_recipe(tmp_path, run_sample):
    model = tmp_path / "model.bin"
    small = ("--set", "dimensions=8", "--set", "buckets=1000")
    done = command("--input", str(LABELS), "--output", str(model), *small)
    assert done.returncode == 0, done.stderr
    assert "training on " in done.stderr
    assert "ROC-AUC" in done.stdout
    again = command("--input", str(LABELS), "--output", str(model), *small)
    assert "model cached, from the same labels and settings" in again.stdout
    workspace = tmp_path / "workspace"
    summary = run_sample(workspace, f"quality.scorers=[{{name: own, kind: fasttext, model: {model}}}]", until="score")
    assert summary.status == "done"
    scores = pq.read_table(next((workspace / "scores").rglob("*.parquet")))
    assert np.isfinite(scores["own"].to_numpy()).all()
