"""Several runs use a workspace; what has a fixed name is written by one at a time; nothing is removed while in use."""

import subprocess
import sys
import threading
import time

import pytest

from fineweb_mask.models.errors import WorkspaceError
from fineweb_mask.models.runtime.stopping import StoppedError, clear_stop_request, request_stop
from fineweb_mask.tasks.storage.atomic import tree_files
from fineweb_mask.tasks.workspace.workspace import Workspace
from tests.tasks.conftest import snapshot
from tests.tasks.stage_files import KEY, write

PARTIAL = f".{'0a' * 16}.partial"


def test_the_only_run_deletes_partial_files_of_runs(tmp_path):
    workspace, users = Workspace(tmp_path / "workspace"), tmp_path / "mine"
    users.mkdir()
    with workspace.in_use():
        kept = write(workspace.shard_path("numbers", "a/shard", KEY))
    (kept.parent / f".shard.parquet{PARTIAL}").write_bytes(b"half")
    (workspace.root / f".dataset{PARTIAL}" / "data").mkdir(parents=True)
    (workspace.root / f".dataset{PARTIAL}" / "data" / "x").write_bytes(b"half")
    (workspace.root / PARTIAL).mkdir()
    theirs = {".notes.partial", f".link{PARTIAL}"}
    (workspace.root / ".notes.partial").write_bytes(b"the user's")
    (workspace.root / f".link{PARTIAL}").symlink_to(users)
    with workspace.in_use():
        assert {path.name for path in workspace.root.iterdir()} == {".fineweb-mask", ".lock", "numbers"} | theirs
        assert tree_files(workspace.root / "numbers") == [kept]
    assert users.is_dir()


def test_several_runs_use_a_workspace_and_none_deletes_the_partial_files_of_another(tmp_path):
    partial = tmp_path / f".x{PARTIAL}"
    with Workspace(tmp_path).in_use() as one:
        partial.write_bytes(b"being written")
        with Workspace(tmp_path).in_use() as other:
            assert one.root == other.root
            assert partial.exists()


@pytest.mark.parametrize("name", ["dataset/f", "run.json", "data/x.parquet"])
def test_a_folder_that_holds_something_else_is_refused_as_it_is(tmp_path, name):
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_bytes(b'{"settings": []}')
    before = snapshot(tmp_path)
    message = f"holds '{name.partition('/')[0]}', and is not a workspace: .* make an empty file"
    for opened in (Workspace(tmp_path).in_use, Workspace(tmp_path).idle):
        with pytest.raises(WorkspaceError, match=message), opened():
            pass
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize("name", ["lost+found/", ".gitignore", ".lock"])
def test_a_folder_without_anything_to_lose_becomes_a_workspace(tmp_path, name):
    (tmp_path / name).mkdir() if name.endswith("/") else (tmp_path / name).touch()
    with Workspace(tmp_path).in_use():
        write(tmp_path / "numbers" / "x")
    Workspace(tmp_path).check_is_ours()


def test_no_lock_is_opened_through_a_link(tmp_path):
    (tmp_path / ".lock").symlink_to(tmp_path / "target")
    with pytest.raises(WorkspaceError, match="Too many levels of symbolic links"), Workspace(tmp_path).idle():
        pass
    assert not (tmp_path / "target").exists()


@pytest.mark.parametrize(
    ("place", "message"),
    [
        *((place, "give a folder that can be written") for place in ("file", "file/below", "/proc/below")),
        *((place, "holds a question mark or a backslash") for place in ("what?/ws", "back\\slash/ws")),  # for DuckDB
    ],
)
def test_what_cannot_be_a_workspace_is_an_error_that_says_why(tmp_path, place, message):
    (tmp_path / "file").touch()
    with pytest.raises(WorkspaceError, match=f"^workspace: .* {message}"), Workspace(tmp_path / place).in_use():
        pass


def test_the_lock_of_a_killed_run_is_free(tmp_path):
    script = (
        "import sys, time; from fineweb_mask.tasks.workspace.workspace import Workspace\n"
        "with Workspace(sys.argv[1]).in_use(), Workspace(sys.argv[1]).alone(): print('in', flush=True); time.sleep(60)"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == b"in\n"
        with pytest.raises(WorkspaceError, match="a run is using the workspace"), Workspace(tmp_path).idle():
            pass
        run.kill()
    with Workspace(tmp_path).idle() as idle:
        assert idle.root == tmp_path


@pytest.mark.parametrize("is_stopped", [False, True])
def test_what_has_a_fixed_name_is_written_by_one_run_at_a_time_and_a_stop_is_heard_while_waiting(tmp_path, is_stopped):
    order = []

    def second():
        try:
            with Workspace(tmp_path).alone():
                order.append("second")
        except StoppedError:
            order.append("stopped")

    waiting = threading.Thread(target=second)
    with Workspace(tmp_path).alone():
        waiting.start()
        time.sleep(0.1)
        if is_stopped:
            request_stop()
            waiting.join(10)
        order.append("first")
    waiting.join(10)
    clear_stop_request()
    assert order == (["stopped", "first"] if is_stopped else ["first", "second"])
