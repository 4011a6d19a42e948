"""The workspace: the keys of what lies in it, and the one run that holds it."""

import hashlib
from pathlib import Path

import pytest

from fineweb_mask.models.errors import WorkspaceError
from fineweb_mask.tasks.storage.atomic import tree_files
from fineweb_mask.tasks.workspace.references import digest
from fineweb_mask.tasks.workspace.workspace import Workspace
from tests.tasks.stage_files import KEY, write


def test_digest_is_stable_and_canonical() -> None:
    canonical = rb'{"a":"\u00e9","b":[1,2.5,null]}'
    assert digest({"b": [1, 2.5, None], "a": "é"}) == hashlib.sha256(canonical).hexdigest()[:32]
    assert digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1})
    assert digest(["1"]) != digest([1])


def test_a_key_s_fingerprint_depends_on_every_part() -> None:
    changes: list[dict[str, object]] = [{}, {"stage": "t"}, {"version": 2}, {"settings": "t"}, {"inputs": "t"}]
    keys = [KEY.model_copy(update=change) for change in changes]
    assert len({key.fingerprint for key in keys}) == len(keys)
    assert KEY.cache_key == f"numbers/{KEY.fingerprint}"


def test_a_workspace_is_held_by_one_run(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path / "workspace")
    with (
        workspace.exclusive(),
        pytest.raises(WorkspaceError, match="another run"),
        Workspace(workspace.root).exclusive(),
    ):
        pass
    with workspace.exclusive() as again:
        assert again is workspace


def test_holding_a_workspace_clears_what_was_left_half_written(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    kept = write(workspace.shard_path("numbers", "a/shard"))
    (kept.parent / ".shard.parquet.0a.partial").write_bytes(b"half")
    (tmp_path / ".dataset.0a.partial" / "data").mkdir(parents=True)
    (tmp_path / ".dataset.0a.partial" / "data" / "x").write_bytes(b"half")
    with workspace.exclusive():
        assert tree_files(tmp_path) == [tmp_path / ".lock", kept]
        assert not (tmp_path / ".dataset.0a.partial").exists()


def test_a_run_that_is_refused_clears_nothing(tmp_path: Path) -> None:
    partial = tmp_path / ".x.partial"
    with Workspace(tmp_path).exclusive():
        partial.write_bytes(b"being written")
        with pytest.raises(WorkspaceError), Workspace(tmp_path).exclusive():
            pass
        assert partial.exists()
