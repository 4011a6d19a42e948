"""A run is recorded however it ended, the recipe of the last is read, and what built a product."""

import json
import platform
import subprocess
from importlib.metadata import version

import pytest

from fineweb_mask.models.runtime.stopping import clear_stop_request, request_stop
from fineweb_mask.models.settings import PipelineSettings
from fineweb_mask.tasks.storage.parquet import DamagedFileError
from fineweb_mask.tasks.workspace.records import runs
from fineweb_mask.tasks.workspace.records.runs import (
    RECORDED_PACKAGES,
    LastRun,
    RunRecord,
    code_and_packages,
    code_commit,
)
from fineweb_mask.tasks.workspace.workspace import Workspace

RECIPE = {"workspace": "w", "source": {"path": "p"}, "quality": {"scorers": [{"name": "a", "model": "m.bin"}]}}
UNKNOWN = {"commit": None, "dirty": None}


@pytest.fixture
def record():
    """The record of a run that failed, and has asked its threads to stop."""
    request_stop()
    yield RunRecord(flow="curate", status="failed", select_ratio=0.1, lamb=0.5, solver="auto", recipe={}, version="1")
    clear_stop_request()


def test_the_record_of_a_failed_run_is_uploaded(record, bucket):
    record.end(Workspace(f"{bucket.url}/ws"))
    [name] = bucket.names("ws/runs/")
    assert json.loads(bucket.read(name))["status"] == "failed"


def test_packages_and_python_are_those_that_run():
    found = code_and_packages()
    assert found["packages"] == {name: version(name) for name in RECORDED_PACKAGES}
    assert found["python"] == platform.python_version()
    assert found["code"] == {"version": version("fineweb-mask"), **code_commit()}


def commit_all(folder):
    git = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@example.org"]
    for arguments in (["init"], ["add", "."], ["commit", "--message", "first"], ["rev-parse", "HEAD"]):
        said = subprocess.run([*git, *arguments], check=True, capture_output=True, text=True).stdout
    return said.strip()


def test_a_checkout_has_its_commit_and_whether_it_is_dirty_and_other_code_has_none(tmp_path, monkeypatch):
    checkout = tmp_path / "checkout"
    code = checkout / "tasks" / "workspace" / "records" / "runs.py"
    code.parent.mkdir(parents=True)
    code.touch()
    monkeypatch.setattr(runs, "__file__", str(code))
    assert code_commit() == UNKNOWN
    commit_all(tmp_path)  # of something else, below which the code was installed
    assert code_commit() == UNKNOWN
    commit = commit_all(checkout)
    assert len(commit) == 40
    assert code_commit() == {"commit": commit, "dirty": False}
    code.write_text("changed")
    assert code_commit() == {"commit": commit, "dirty": True}
    monkeypatch.setenv("PATH", "")  # without git
    assert code_commit() == UNKNOWN


@pytest.mark.parametrize(("before", "after"), [('"w"', '"v"'), ("{", "[")])
def test_a_changed_recipe_of_the_last_run_is_damaged(tmp_path, before, after):
    workspace = Workspace(tmp_path)
    expected = LastRun(settings=PipelineSettings.model_validate(RECIPE), folder="f")
    expected.save(workspace)
    assert LastRun.load(workspace) == expected
    text = (tmp_path / "run.json").read_text()
    assert before in text
    (tmp_path / "run.json").write_text(text.replace(before, after, 1))
    with pytest.raises(DamagedFileError, match=r"run\.json is damaged: .*: run the recipe again"):
        LastRun.load(workspace)
