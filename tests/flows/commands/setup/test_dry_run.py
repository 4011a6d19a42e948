"""What a run would take, before it is begun."""

import json
import shutil
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fineweb_mask.flows.cli import app
from fineweb_mask.flows.commands.setup import dry_run
from tests.flows.pipeline.run_here import write_shard

ROOT = Path(__file__).resolve().parents[4]
SMALL = ("selection.metrics=pairwise", "embedding.static_dimensions=16")
SCORE = "quality.scorers=[{kind: column, column: token_count}]"


@pytest.fixture
def corpus(tmp_path):
    folder = tmp_path / "corpus"
    folder.mkdir()
    write_shard(folder, ROOT / "data_samples", "a", range(400))
    return folder


def run(workspace, corpus, *arguments, code=0):
    sets = [f"--set={one}" for one in (*SMALL, SCORE, f"source.path={corpus}")]
    result = CliRunner().invoke(app, ["run", "sample", f"--workspace={workspace}", *sets, *arguments])
    assert result.exit_code == code, result.output
    return result.stdout


def estimated(workspace, corpus, *arguments):
    found: dict[str, Any] = json.loads(run(workspace, corpus, "--dry-run", "--json", *arguments).splitlines()[-1])
    return found


@pytest.mark.long
def test_what_is_missing_costs_time_and_what_is_done_does_not(tmp_path, corpus):
    workspace = tmp_path / "workspace"

    def rates(found):
        return {stage["stage"]: stage["rate"] for stage in found["stages"] if stage["missing"]}

    before = estimated(workspace, corpus)
    assert not workspace.exists()
    assert rates(before)["ingest"] == "measured now"
    assert min(stage["seconds"] for stage in before["stages"]) > 0
    run(workspace, corpus)
    after = estimated(workspace, corpus)
    assert after["seconds"] == after["disk"] == 0
    assert rates(after) == {}
    assert rates(estimated(workspace, corpus, "--set=selection.solver=greedy"))["select"] == "benchmarks"
    written = sum(path.stat().st_size for path in workspace.rglob("*.parquet"))
    assert before["disk"] / 4 < written < 4 * before["disk"]
    shutil.copy(corpus / "a.parquet", corpus / "b.parquet")
    more = estimated(workspace, corpus)
    assert rates(more)["ingest"] == "this workspace"
    assert more["documents"] == 2 * before["documents"]


def test_the_table_says_what_is_short(tmp_path, corpus, monkeypatch):
    usage = namedtuple("usage", "free")
    monkeypatch.setattr(dry_run.shutil, "disk_usage", lambda _: usage(free=1_000))
    lines = run(tmp_path / "workspace", corpus, "--dry-run").splitlines()
    assert lines[0].startswith("reads      1 file, ")
    run(tmp_path / "workspace", tmp_path / "none", "--dry-run", code=2)
    [at] = [place for place, line in enumerate(lines) if "1 source file, about" in line]
    assert lines[at + 1].split() == ["stage", "done", "missing", "about", "rate"]
    assert [line.split()[0] for line in lines[-3:]] == ["time", "memory", "disk"]
    assert lines[-1].endswith("0.0 MiB are free: too few")


def test_filters_are_timed_on_the_first_documents(tmp_path, corpus):
    pytest.importorskip("datatrove")
    without = estimated(tmp_path / "workspace", corpus)
    filters = "--set=ingest.filters=[{kind: gopher_repetition}]"
    slower = estimated(tmp_path / "workspace", corpus, filters)
    assert slower["stages"][0]["seconds"] > 2 * without["stages"][0]["seconds"]
    assert slower["memory_stage"] == "ingest"
