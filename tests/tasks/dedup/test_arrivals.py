"""The order in which shards came into a workspace."""

from pathlib import Path

import pytest

from fineweb_mask.tasks.dedup.arrivals import in_order_of_arrival, remember_arrivals
from fineweb_mask.tasks.workspace.workspace import Workspace


def test_without_a_memory_the_order_of_shards_is_that_of_the_names(tmp_path: Path) -> None:
    assert in_order_of_arrival(Workspace(tmp_path), ["c", "a", "b"]) == ["a", "b", "c"]


def test_new_shards_come_after_those_before_them(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    remember_arrivals(workspace, ["b", "d"])
    assert in_order_of_arrival(workspace, ["e", "d", "c", "b", "a"]) == ["b", "d", "a", "c", "e"]
    remember_arrivals(workspace, in_order_of_arrival(workspace, ["a", "b", "c", "d"]))
    assert in_order_of_arrival(workspace, ["a", "b", "c", "d", "0"]) == ["b", "d", "a", "c", "0"]


def test_a_shard_that_is_gone_keeps_its_place(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    remember_arrivals(workspace, ["b", "a"])
    remember_arrivals(workspace, ["a"])
    assert in_order_of_arrival(workspace, ["a"]) == ["a"]
    assert in_order_of_arrival(workspace, ["a", "b"]) == ["b", "a"]


def test_what_is_remembered_is_written_only_if_it_grows(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    remember_arrivals(workspace, ["a", "b"])
    first = workspace.arrivals.stat().st_mtime_ns
    remember_arrivals(workspace, ["b", "a"])
    assert workspace.arrivals.stat().st_mtime_ns == first


@pytest.mark.parametrize("content", ["", "{", "3", "null"])
def test_a_damaged_memory_of_arrivals_is_none(tmp_path: Path, content: str) -> None:
    workspace = Workspace(tmp_path)
    workspace.fitted.mkdir(parents=True)
    workspace.arrivals.write_text(content)
    assert in_order_of_arrival(workspace, ["b", "a"]) == ["a", "b"]
