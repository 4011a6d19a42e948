"""`fineweb-mask tune` in whole runs: its options select as was found, and targets of no use say why."""

import json
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fineweb_mask.flows.cli import app
from fineweb_mask.flows.deployed import curate
from fineweb_mask.flows.recipe import load_recipe

pytestmark = pytest.mark.long  # a server, a worker or a browser, or whole runs, some of which are killed


@pytest.fixture
def tune(workspace, small_sample):
    """Run the command on a copy of the finished workspace."""

    def call(*options):
        changes = [argument for one in small_sample for argument in ("--set", one)]
        return CliRunner().invoke(app, ["tune", "sample", "--workspace", str(workspace), *changes, *map(str, options)])

    return call


def test_the_options_that_it_prints_select_as_the_best_trial_did(tune, workspace, small_sample):
    done = tune("--trials", 3, "--set", "selection.lamb=0.99", "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout.splitlines()[-1])
    options = shlex.split(found["said"][0].partition("trials: ")[2])
    assert options[::2] == ["--set"] * len(found["best"])

    summary = curate(load_recipe("sample", [*small_sample, *options[1::2]], str(workspace)))
    changed = {stage.stage for stage in summary.stages if stage.cached < stage.files}
    assert changed == {"select", "materialize", "report"}
    written = json.loads((Path(summary.dataset) / "provenance.json").read_text())["details"]["recipe"]["selection"]
    assert {f"selection.{name}": written[name] for name in ("lamb", "metrics", "budget_by")}.items() <= found[
        "best"
    ].items()
    [block] = json.loads((workspace / "reports" / "metrics.json").read_text())["blocks"]
    assert block["tokens_selected"] == pytest.approx(written["select_ratio"] * block["tokens"], rel=0.02)
