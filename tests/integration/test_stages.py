"""Runs stage by stage, again on request, and shard by shard; and what a workspace holds of their stages."""

import json
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml
from prefect.settings import PREFECT_API_URL
from typer.testing import CliRunner

from fineweb_mask.flows.cli import app
from fineweb_mask.flows.status.garbage import collect_garbage
from fineweb_mask.flows.status.inspection import StatusError, inspect_workspace, status_of
from fineweb_mask.tasks.workspace.records.runs import LastRun
from fineweb_mask.tasks.workspace.workspace import Workspace
from tests.integration.conftest import built


def state(workspace):
    return {
        stage.stage: (stage.done, stage.missing, stage.stale)
        for stage in status_of(inspect_workspace(workspace)).stages
    }


def settings_of(workspace):
    settings = LastRun.load(Workspace(workspace)).settings
    return settings.model_copy(update={"workspace": str(workspace)})


DONE = {
    "ingest": (4, 0, 0),
    "dedup": (1, 0, 0),
    "fit": (3, 0, 0),
    "score": (4, 0, 0),
    "embed": (4, 0, 0),
    "select": (4, 0, 0),
    "materialize": (1, 0, 0),
    "report": (2, 0, 0),
}


REACHED = {  # stage: what a run that stops after it builds, and the one before did not
    "embed": {"ingest": 4, "dedup": 1, "fit": 3, "score": 4, "embed": 4},
    "materialize": {"dedup": 1, "select": 1, "materialize": 2},  # the losses by group
    "report": {"report": 2},
}


@pytest.mark.long
def test_a_run_stops_after_a_stage_and_goes_on_from_there(finished, run_sample, tmp_path):
    workspace, seen = tmp_path / "workspace", {}
    for stage in REACHED:
        summary = run_sample(workspace, until=stage)
        seen[stage] = built(summary)
        if stage != "report":
            assert (summary.status, summary.until, summary.workspace) == ("done", stage, str(workspace))
            assert not (workspace / "reports").exists()
            assert (workspace / "dataset").exists() == (stage == "materialize")
    assert seen == REACHED
    assert summary.documents_kept == 473
    assert state(workspace) == DONE
    for folder in ("masks", "embeddings", "scores"):
        for path in (finished / folder).glob("*.parquet"):
            assert (workspace / folder / path.name).read_bytes() == path.read_bytes()


def test_the_command_says_where_a_run_stopped(workspace, server, small_sample, monkeypatch):
    monkeypatch.setenv("PREFECT_API_URL", str(PREFECT_API_URL.value()))  # else it starts a server of its own
    arguments = ["run", "sample", "--workspace", str(workspace), *(f"--set={one}" for one in small_sample)]
    result = CliRunner().invoke(app, [*arguments, "--until", "embed"])
    assert result.exit_code == 0, result.output
    *stages, last = result.stdout.splitlines()
    assert [line.partition(":")[0] for line in stages] == ["ingest", "dedup", "fit", "score", "embed"]
    assert stages[-1] == "embed: 4 files, 4 of them cached, 0.0 s"
    assert last == "stopped after embed; run without --until to go on"
    result = CliRunner().invoke(app, [*arguments, "--until", "ingest", "--json"])
    found = json.loads(result.stdout.splitlines()[-1])
    assert list(found) == ["status", "workspace", "until", "quarantined", "stages"]
    assert (found["until"], [stage["stage"] for stage in found["stages"]]) == ("ingest", ["ingest"])
    assert state(workspace) == DONE


def test_status_tells_done_missing_and_stale(workspace, server):
    assert state(workspace) == DONE
    scores = sorted((workspace / "scores").glob("*.parquet"))
    scores[0].unlink()
    assert state(workspace) == DONE | {"score": (3, 1, 0)}
    scores[1].write_bytes(scores[1].read_bytes()[:-9])
    assert state(workspace) == DONE | {"score": (2, 2, 0)}
    shutil.rmtree(workspace / "masks")
    found = state(workspace)
    assert found["select"] == (0, 4, 0)
    assert found["materialize"] == (0, 1, 1)
    assert found["report"] == (0, 2, 1)


def test_status_follows_the_settings_of_the_last_run(workspace):
    opened = Workspace(workspace)
    last = LastRun.load(opened)
    changed = last.settings.model_copy(update={"ingest": last.settings.ingest.model_copy(update={"min_chars": 3})})
    LastRun(settings=changed, folder=last.folder).save(opened)
    found = state(workspace)
    assert found["score"] == found["embed"] == found["select"] == (0, 4, 4)
    assert found["ingest"] == (0, 4, 4 + 4)  # documents, and the rows that were dropped
    assert found["dedup"] == (0, 1, 1)


@pytest.mark.long
def test_what_no_recipe_reaches_is_removed_on_request(workspace, run_sample, tmp_path):
    run_sample(workspace, "selection.lamb=0.9", refit=["encoder"])  # of the same sample: the same encoder
    run_sample(workspace, "selection.lamb=0.9", "embedding.prompt='about: '")
    stale = {stage: counts[2] for stage, counts in state(workspace).items() if counts[2]}
    assert stale == {"embed": 4, "select": 8}
    files = {path: path.read_bytes() for path in workspace.rglob("*") if path.is_file()}

    def gc(*arguments):
        result = CliRunner().invoke(app, ["gc", str(workspace), "--json", *arguments])
        assert result.exit_code == 0, result.output
        removed = json.loads(result.stdout.splitlines()[-1])["removed"]
        assert not any(one["undecided"] for one in removed)
        return {one["folder"]: one["files"] for one in removed}

    recipe = tmp_path / "first.yaml"
    recipe.write_text(yaml.safe_dump(settings_of(workspace).model_dump(mode="json", exclude_unset=True)))
    stale = {"embeddings": 4, "losses": 1, "masks": 8, "fitted": 2}
    assert gc("--dry-run") == stale
    assert gc("--dry-run", "--recipe", str(recipe)) == stale
    assert {path: path.read_bytes() for path in workspace.rglob("*") if path.is_file()} == files
    with Workspace(workspace).in_use():
        result = CliRunner().invoke(app, ["gc", str(workspace)])
    assert result.exit_code == 2
    assert "a run is using the workspace" in result.output
    assert gc() == stale
    assert gc() == {}
    assert not any(missing or left for _, missing, left in state(workspace).values())


@pytest.mark.long
def test_without_a_comparison_no_shard_waits_and_nothing_is_left_out(workspace, run_sample):
    compared = json.loads((workspace / "dataset" / "provenance.json").read_text())["details"]["counts"]
    [lists] = (workspace / "duplicates").glob("*.parquet")
    repeated = len(set(pq.read_table(lists)["shard"].to_pylist()))
    summary = run_sample(workspace, "ingest.exact_dedup=shard")
    made = built(summary)
    assert made.keys() == {"dedup", "score", "embed", "select", "materialize", "report"}  # "dedup": the losses by group
    assert made["score"] == made["embed"] == repeated  # other shards have the same documents as before
    assert summary.counts.documents_eligible > compared["documents_eligible"]
    found = state(workspace)
    assert found["dedup"][:2] == (0, 0)
    assert found["select"] == (4, 0, 4)
    collect_garbage(str(workspace), [])
    assert not [*workspace.glob("duplicates/*")]


def test_status_is_a_command(finished):
    result = CliRunner().invoke(app, ["status", str(finished), "--json"])
    assert result.exit_code == 0, result.output
    stages = {stage["stage"]: stage for stage in json.loads(result.stdout.splitlines()[-1])["stages"]}
    assert stages["embed"]["done"] == 4
    assert stages["embed"]["rows"] == 1892
    assert stages["embed"]["seconds"] > 0
    assert stages["embed"]["documents_per_second"] == pytest.approx(1892 / stages["embed"]["seconds"], rel=0.01)
    shown = CliRunner().invoke(app, ["status", str(finished)]).output
    assert "embed" in shown
    assert "1,892" in shown


def test_status_says_when_the_source_is_gone(workspace, tmp_path):
    opened = Workspace(workspace)
    last = LastRun.load(opened)
    source = last.settings.source.model_copy(update={"path": str(tmp_path / "gone")})
    LastRun(settings=last.settings.model_copy(update={"source": source}), folder=last.folder).save(opened)
    with pytest.raises(StatusError, match="out of reach"):
        status_of(inspect_workspace(Path(workspace)))


@pytest.mark.long
def test_the_report_is_a_command(workspace, server):
    page = workspace / "reports" / "index.html"
    before = page.read_text(encoding="utf-8")
    assert "Share selected by file_path" not in before
    arguments = ["report", str(workspace), "--by", "file_path", "--json"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    summary = json.loads(result.stdout.splitlines()[-1])
    assert summary["report"] == str(page)
    assert len(summary["plots"]) == 1
    assert all(Path(path).is_file() for path in [*summary["plots"], summary["metrics"]])
    after = page.read_text(encoding="utf-8")
    assert "Share selected by file_path" in after
    assert "Measured on 1,892 of 1,892 eligible and 473 of 473 selected" in after
    assert state(workspace) == DONE  # the settings given are kept
    result = CliRunner().invoke(app, ["report", str(workspace), "--by", "genre"])
    assert result.exit_code == 2, result.output
    assert "report.by.0: no document will have a column 'genre'" in result.output
