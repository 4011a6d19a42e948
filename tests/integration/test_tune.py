"""`fineweb-mask tune` in whole runs: the recipe that it writes selects as was found, and targets of no use say why."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from fineweb_mask.flows.cli import app
from fineweb_mask.flows.curate import curate
from fineweb_mask.flows.recipe import load_recipe
from fineweb_mask.tasks.workspace.manifest import read_manifest


@pytest.fixture
def tune(workspace, small_sample):
    """Run the command on a copy of the finished workspace."""

    def call(*options):
        changes = [argument for one in small_sample for argument in ("--set", one)]
        return CliRunner().invoke(app, ["tune", "sample", "--workspace", str(workspace), *changes, *map(str, options)])

    return call


def test_the_recipe_that_it_writes_selects_as_the_best_trial_did(tune, workspace, tmp_path):
    output = tmp_path / "tuned.yaml"
    done = tune("--trials", 3, "--output", output, "--json")
    assert done.exit_code == 0, done.output
    [manifest] = workspace.glob("tune*/manifest.json")
    best = read_manifest(manifest).details["best"]

    settings = load_recipe(output, [], str(workspace))
    summary = curate(settings)
    assert {stage.stage for stage in summary.stages if stage.cached < stage.files} == {
        "select",
        "materialize",
        "report",
    }
    written = json.loads((Path(summary.dataset) / "provenance.json").read_text())["details"]["recipe"]["selection"]
    assert (written["lamb"], written["metrics"]) == (best["lamb"], best["metrics"])
    [block] = json.loads((workspace / "reports" / "metrics.json").read_text())["blocks"]
    terms, lamb = block["terms"], best["lamb"]
    expected = lamb * terms["quality"] + (1 - lamb) * terms["diversity"] - terms["near_duplicate_cost"]
    assert block["objective"] == pytest.approx(expected, abs=1e-4)
    assert {name for name, weight in best["metrics"].items() if weight} <= terms.keys()
    assert block["tokens_selected"] == pytest.approx(settings.selection.select_ratio * block["tokens"], rel=0.02)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"body": ["a text"] * 50}, "it has no column 'text'"),
        ({"text": [f"word {place}" for place in range(50)]}, "at least 1,000 are needed to measure anything"),
    ],
)
def test_a_target_of_no_use_ends_with_1_and_leaves_no_recipe(tune, tmp_path, table, message):
    pq.write_table(pa.table(table), tmp_path / "theirs.parquet")
    done = tune("--trials", 2, "--target", tmp_path / "theirs.parquet", "--output", tmp_path / "tuned.yaml")
    assert done.exit_code == 1
    assert message in done.output
    assert not (tmp_path / "tuned.yaml").exists()
