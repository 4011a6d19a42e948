"""Several runs use a workspace; what has a fixed name is written by one at a time; nothing is removed while in use."""

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from fineweb_mask.models.errors import WorkspaceError
from fineweb_mask.models.runtime.stopping import StoppedError, clear_stop_request, request_stop
from fineweb_mask.tasks.storage.atomic import tree_files
from fineweb_mask.tasks.workspace.workspace import Workspace
from tests.tasks.stage_files import KEY, write


def test_several_runs_use_a_workspace(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path / "workspace")
    with workspace.in_use() as one, Workspace(workspace.root).in_use() as other:
        assert one.root == other.root


def test_the_only_run_deletes_partial_files(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    kept = write(workspace.shard_path("numbers", "a/shard", KEY))
    (kept.parent / ".shard.parquet.0a.partial").write_bytes(b"half")
    (tmp_path / ".dataset.0a.partial" / "data").mkdir(parents=True)
    (tmp_path / ".dataset.0a.partial" / "data" / "x").write_bytes(b"half")
    with workspace.in_use():
        assert tree_files(tmp_path) == [tmp_path / ".lock", kept]
        assert not (tmp_path / ".dataset.0a.partial").exists()


def test_a_second_run_leaves_the_partial_files_of_the_first(tmp_path: Path) -> None:
    partial = tmp_path / ".x.partial"
    with Workspace(tmp_path).in_use():
        partial.write_bytes(b"being written")
        with Workspace(tmp_path).in_use():
            assert partial.exists()


def test_the_lock_of_a_killed_run_is_free(tmp_path: Path) -> None:
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


def test_what_has_a_fixed_name_is_written_by_one_run_at_a_time(tmp_path: Path) -> None:
    order = []

    def second() -> None:
        with Workspace(tmp_path).alone():
            order.append("second")

    waiting = threading.Thread(target=second)
    with Workspace(tmp_path).alone():
        waiting.start()
        time.sleep(0.3)
        order.append("first")
    waiting.join(10)
    assert order == ["first", "second"]


def test_a_stop_is_heard_while_waiting(tmp_path: Path) -> None:
    found: list[BaseException] = []

    def second() -> None:
        try:
            with Workspace(tmp_path).alone():
                pass
        except StoppedError as error:
            found.append(error)

    waiting = threading.Thread(target=second)
    with Workspace(tmp_path).alone():
        waiting.start()
        time.sleep(0.2)
        request_stop()
        waiting.join(10)
    clear_stop_request()
    assert len(found) == 1


def test_files_of_a_shard_are_found_by_their_keys(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    other = KEY.model_copy(update={"inputs": "j"})
    paths = {
        write(workspace.shard_path("numbers", name, key), key=key) for name in ("a", "[a]") for key in (KEY, other)
    }
    assert set(workspace.shard_paths("numbers", "[a]")) == {path for path in paths if path.name.startswith("[a]")}
    assert len(workspace.sizes("numbers")) == 4
