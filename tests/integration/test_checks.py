"""`fineweb-mask score-check` and `audit` in whole runs over the sample, and what they end with."""

import json

import pytest
from typer.testing import CliRunner

from fineweb_mask.flows.cli import app
from fineweb_mask.flows.commands._common import QUARANTINED, WRONG_USAGE


@pytest.fixture
def call(server):
    def run(*arguments):
        return CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "200"})

    return run


def printed(done, page):
    """Return what was printed as JSON; its exit status says whether it warns."""
    found = json.loads(done.stdout.splitlines()[-1])
    assert done.exit_code == (QUARANTINED if found["warnings"] else 0), done.output
    assert found["page"] == str(page)
    text = page.read_text(encoding="utf-8")
    assert all(warning.split(":")[0] in text for warning in found["warnings"])
    assert json.loads(page.with_name("metrics.json").read_text())["warnings"] == found["warnings"]
    return found


def test_scores_of_a_finished_workspace_are_checked_and_nothing_is_built(call, workspace):
    before = {
        path: path.stat().st_mtime_ns for folder in ("documents", "scores") for path in (workspace / folder).iterdir()
    }
    found = printed(call("score-check", workspace, "--by", "dump", "--json"), workspace / "score-check" / "index.html")
    assert sum(group["documents"] for group in found["groups"]) == found["documents"] == 1905
    assert {name for group in found["groups"] for name in group["scores"]} == {"quality"}
    assert found["scores"]["quality"]["between_groups"] < 0.05  # dumps of the sample do not differ
    after = {
        path: path.stat().st_mtime_ns for folder in ("documents", "scores") for path in (workspace / folder).iterdir()
    }
    assert after == before
    refused = call("score-check", workspace, "--by", "url")
    assert refused.exit_code == WRONG_USAGE
    assert "which are no groups" in refused.stderr


def test_an_unfinished_workspace_has_no_scores_to_check(call, workspace):
    for path in (workspace / "scores").iterdir():
        path.unlink()
    done = call("score-check", workspace, "--by", "dump")
    assert done.exit_code == WRONG_USAGE
    assert "has no scores: run its recipe first" in done.stderr


def test_a_recipe_is_audited_and_only_the_page_stays(call, small_sample, tmp_path):
    pytest.importorskip("rensa")
    options = [argument for one in (*small_sample, "ingest.near_dedup=minhash") for argument in ("--set", one)]
    root = tmp_path / "workspace"
    done = call("audit", "sample", "--workspace", root, *options, "--by", "dump", "--json")
    found = printed(done, root / "audit" / "index.html")
    steps = {step["step"]: step for step in found["steps"]}
    assert list(steps) == ["filters", "exact", "near"]
    assert found["documents"] == steps["filters"]["came"] == 2000
    assert 10 <= steps["exact"]["dropped"] <= 60
    assert steps["exact"]["alike"][0] == 1
    assert steps["exact"]["planted"]["copy"][0] == 1
    assert steps["near"]["planted"]["edited 1.5%"][0] >= 0.9
    assert steps["near"]["planted"]["edited 20%"][0] <= 0.1
    assert all(step["planted"]["clean"][0] == 0 for step in steps.values())
    assert sum(group["documents"] for group in found["groups"]) == found["documents"]
    assert not [path for path in (root / "cache").rglob("*") if "partial" in path.name]
    assert not (root / "documents").exists()


def test_a_flow_that_fails_leaves_no_drawn_source(call, small_sample, tmp_path):
    options = [argument for one in small_sample for argument in ("--set", one)]
    done = call("audit", "sample", "--workspace", tmp_path / "workspace", *options, "--by", "url")
    assert done.exit_code == 1
    assert "which are no groups" in done.stderr
    assert not [path for path in (tmp_path / "workspace" / "cache").rglob("*") if "partial" in path.name]
