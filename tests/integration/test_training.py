"""Training as a user and as Prefect does it: the flow and the command."""

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from click.testing import Result
from typer.testing import CliRunner

from fineweb_mask.flows.cli import app
from fineweb_mask.flows.deployed import train
from fineweb_mask.models.settings.quality import LabelSettings, TrainQualitySettings

pytestmark = pytest.mark.long  # a server, a worker or a browser, or whole runs, some of which are killed

ROOT = Path(__file__).resolve().parents[2]
LABELS = ROOT / "data_samples" / "labels.parquet"


def command(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["train-quality", *arguments])


def test_the_flow_trains(server, tmp_path):
    settings = TrainQualitySettings(labels=LabelSettings(path=str(LABELS)))
    output = tmp_path / "models" / "model.bin"
    first = train(str(output), settings)
    assert first.held_out > 0
    assert train(str(output), settings, force=True) == first
    assert output.is_file()


def test_a_trained_model_scores_in_a_recipe(tmp_path, run_sample):
    model = tmp_path / "model.bin"
    done = command("--input", str(LABELS), "--output", str(model))
    assert done.exit_code == 0, done.stderr
    assert "ROC-AUC" in done.stdout
    assert "exists: add --force to replace it" in command("--input", str(LABELS), "--output", str(model)).stderr
    workspace = tmp_path / "workspace"
    summary = run_sample(workspace, f"quality.scorers=[{{name: own, kind: fasttext, model: {model}}}]", until="score")
    assert summary.status == "done"
    scores = pq.read_table(next((workspace / "scores").rglob("*.parquet")))
    assert np.isfinite(scores["own"].to_numpy()).all()
