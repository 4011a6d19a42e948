"""`fineweb-mask status`, `gc` and `migrate`: workspaces that do not exist, URLs, and what is printed."""

import json

import pytest

from fineweb_mask.tasks.storage.atomic import atomic_write
from fineweb_mask.tasks.workspace.workspace import Workspace
from tests.tasks.stage_files import KEY, write


@pytest.mark.parametrize("command", ["status", "gc", "migrate"])
def test_a_url_without_a_run_or_with_credentials_is_refused(invoke, bucket, command):
    done = invoke(command, f"{bucket.url}/nothing")
    assert done.exit_code == 2
    assert f"{bucket.url}/nothing is no workspace in which a run was begun" in done.stderr
    done = invoke(command, "s3://user:hunter2@bucket/x")
    assert done.exit_code == 2
    assert "put credentials in the environment" in done.stderr
    assert "hunter2" not in done.stderr


@pytest.mark.parametrize("where", ["folder", "url"])
def test_old_names_are_told_and_renamed(invoke, bucket, tmp_path, where):
    address = str(tmp_path / "workspace") if where == "folder" else f"{bucket.url}/ws"
    workspace = Workspace(address)
    old = write(workspace.root / "scores" / "en" / "a.parquet")
    with atomic_write(workspace.root / "run.json") as partial:
        partial.write_text('{"settings": {"workspace": "workspaces/old"}, "folder": "/"}')
    done = invoke("migrate", address, "--json")
    assert (done.exit_code, json.loads(done.stdout)) == (0, {"renamed": 1})
    new = workspace.shard_path("scores", "en/a", KEY)
    assert workspace.sizes("scores").keys() == {f"scores/en/a.{KEY.tag}.parquet"}
    assert workspace.local(workspace.relative(new)).is_file()
    assert not old.exists()
    if where == "url":
        assert list(bucket.names("ws/scores/")) == [f"ws/scores/en/a.{KEY.tag}.parquet"]
    assert invoke("migrate", address).stdout == f"{address}: 0 files renamed\n"


def test_a_folder_that_does_not_exist_is_not_made(invoke, tmp_path):
    for command in ("gc", "migrate", "status"):
        done = invoke(command, str(tmp_path / "nothing"))
        assert done.exit_code == 2
        assert "is no workspace in which a run was begun" in done.stderr
    assert not (tmp_path / "nothing").exists()


@pytest.mark.parametrize("command", ["gc", "migrate"])
def test_a_run_json_of_something_else_makes_no_workspace(invoke, tmp_path, command):
    (tmp_path / "run.json").write_text('{"script": "start"}')
    done = invoke(command, str(tmp_path))
    assert done.exit_code == 2
    assert "'run.json'" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]
