"""The list of what was removed is written as a whole, grows, and is not taken for an empty one when it is damaged."""

import numpy as np
import pytest

from fineweb_mask.models.errors import WorkspaceError
from fineweb_mask.models.ledger.removal import digest_of, in_order
from fineweb_mask.tasks.workspace.removals import NAME, Removals, removed_of_shards, unwanted_of
from fineweb_mask.tasks.workspace.workspace import Workspace


def digests(kind, *names):
    return in_order(digest_of(kind, name) for name in names)


@pytest.fixture
def workspace(tmp_path):
    workspace = Workspace(tmp_path)
    removals = Removals.read(workspace).with_found(
        "url", digests("url", "a.org", "b.org"), {"url": digests("url", "a.org"), "text": digests("text", "t")}, "now"
    )
    removals._replace(shards={"s": "hits"}, pending={"receipt": "r"}).write(workspace)
    return workspace


def test_it_is_read_as_it_was_written(workspace):
    removals = Removals.read(workspace)
    assert removals.digests("url").tolist() == digests("url", "a.org", "b.org").tolist()
    assert removals.digests("text").tolist() == digests("text", "t").tolist()
    assert removals.was_found("url", digests("url", "a.org")).tolist() == [True]
    assert removals.was_found("url", digests("url", "b.org", "c.org")).tolist() == [False, False]
    assert removed_of_shards(workspace) == removals.shards == {"s": "hits"}
    assert removals.pending == {"receipt": "r"}
    assert unwanted_of(workspace)(["1"], ["https://b.org/"], [bytes(16)]).tolist() == [True]


def test_it_grows_and_remembers_when(workspace):
    later = Removals.read(workspace).with_found(
        "url", digests("url", "b.org", "c.org"), {"url": digests("url", "b.org")}, "later"
    )
    rows = {(row["kind"], row["digest"]): (row["found"], row["time"]) for row in later.entries.to_pylist()}
    expected = {"a.org": (True, "now"), "b.org": (True, "later"), "c.org": (False, "later")}
    assert rows == {("url", digest_of("url", name)): value for name, value in expected.items()} | {
        ("text", digest_of("text", "t")): (True, "now")
    }


def test_no_text_or_name_is_in_it(workspace):
    values = {value for row in Removals.read(workspace).entries.to_pylist() for value in row.values()}
    strings = {value for value in values if isinstance(value, str)}
    assert strings == {"url", "text", "now"}
    assert all(len(value) == 16 for value in values if isinstance(value, bytes))
    assert b"a.org" not in (workspace.root / NAME).read_bytes()


def test_without_a_list_nothing_is_removed(tmp_path):
    assert unwanted_of(Workspace(tmp_path)) is None
    assert removed_of_shards(Workspace(tmp_path)) == {}
    assert Removals.read(Workspace(tmp_path)).entries.num_rows == 0


@pytest.mark.parametrize("damage", ["cut", "flip"])
@pytest.mark.parametrize("read", [Removals.read, removed_of_shards, unwanted_of])
def test_a_damaged_list_is_an_error_that_no_run_mends(workspace, damage, read):
    path = workspace.root / NAME
    content = bytearray(path.read_bytes())
    content[len(content) // 2 if damage == "cut" else -300] ^= 1
    path.write_bytes(content[: len(content) // 2] if damage == "cut" else content)
    with pytest.raises(WorkspaceError, match="is damaged, the list of what was removed"):
        read(workspace)
    assert path.exists()


def test_a_million_names_are_a_few_bytes_each(tmp_path):
    asked = np.unique(np.random.default_rng(0).integers(0, 256, (1_000_000, 16), np.uint8).view("S16").ravel())
    Removals.read(Workspace(tmp_path)).with_found("url", asked, {}, "now").write(Workspace(tmp_path))
    assert (tmp_path / NAME).stat().st_size < 20_000_000
    assert len(Removals.read(Workspace(tmp_path)).digests("url")) == len(asked)
