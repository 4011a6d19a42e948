"""A file is found by what its footer says, from the index or opened, and never if it is damaged or of another key."""

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fineweb_mask.tasks.workspace import listing as listings
from fineweb_mask.tasks.workspace.listing import Listing, find_file, update_index
from fineweb_mask.tasks.workspace.references import StageFile
from fineweb_mask.tasks.workspace.workspace import Workspace
from tests.tasks.stage_files import KEY, write

OTHER = replace(KEY, inputs="j")


@pytest.fixture
def workspace(tmp_path):
    workspace = Workspace(tmp_path)
    for name in ("a", "b/c"):
        write(workspace.shard_path("scores", name, KEY))
    return workspace


@pytest.fixture
def opened(monkeypatch):
    """The files whose footers are read."""
    found = []
    read = listings.read_footer
    monkeypatch.setattr(listings, "read_footer", lambda path, *size: (found.append(path), read(path, *size))[1])
    return found


@pytest.mark.parametrize("indexed", [False, True])
def test_a_listing_finds_what_the_footer_says(workspace, opened, indexed):
    if indexed:
        update_index(workspace)
        opened.clear()
    listing = Listing(workspace)
    assert len(opened) == (0 if indexed else 2)
    for name in ("a", "b/c"):
        path = workspace.shard_path("scores", name, KEY)
        facts = {"rows": 3, "bytes": path.stat().st_size, "details": {"a": [1, None], "b": 2}, "cached": True}
        names = {"stage": "numbers", "name": name, "path": f"scores/{name}.{KEY.tag}.parquet"}
        for where in (listing, None):
            file = find_file(workspace, "scores", name, KEY, where)
            assert file == StageFile(**names, fingerprint=KEY.fingerprint, **facts)
            assert workspace.resolve(file) == path
            assert find_file(workspace, "scores", name, OTHER, where) is None
    assert find_file(workspace, "masks", "a", KEY, listing) is None


def test_a_file_that_lost_bytes_or_has_the_name_of_another_key_is_not_found(workspace):
    update_index(workspace)
    path = workspace.shard_path("scores", "a", KEY)
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    assert find_file(workspace, "scores", "a", KEY, Listing(workspace)) is None
    assert find_file(workspace, "scores", "b/c", KEY, Listing(workspace)) is not None
    # Only the first half of the fingerprint is in the name; the footer has the key whole.
    changes: list[dict[str, Any]] = [{"stage": "other"}, {"version": 2}, {"settings": "other"}, {"inputs": "other"}]
    for other in (replace(KEY, **change) for change in changes):
        workspace.shard_path("scores", "a", other).write_bytes(whole)
        for listing in (Listing(workspace), None):
            assert find_file(workspace, "scores", "a", other, listing) is None


def test_missing_truncated_and_foreign_files_are_not_found(workspace):
    path = workspace.shard_path("scores", "a", KEY)
    whole = path.read_bytes()
    for damaged in (whole[:-1], whole[: len(whole) // 2], b"", b"not parquet at all"):
        path.write_bytes(damaged)
        assert find_file(workspace, "scores", "a", KEY) is None
    table = pa.table({"row": [1]})
    for foreign in (table, table.replace_schema_metadata({"fineweb_mask": '{"key": 1}'})):
        pq.write_table(foreign, path)
        assert find_file(workspace, "scores", "a", KEY) is None
    path.unlink()
    assert find_file(workspace, "scores", "a", KEY) is None
    path.mkdir()
    assert find_file(workspace, "scores", "a", KEY) is None


def test_the_index_is_as_the_files_are(workspace):
    update_index(workspace)
    written = workspace.index.stat().st_mtime_ns
    update_index(workspace)
    assert workspace.index.stat().st_mtime_ns == written  # nothing changed
    workspace.shard_path("scores", "a", KEY).unlink()
    write(workspace.shard_path("masks", "d", KEY))
    update_index(workspace)
    names = [f"{name}.{KEY.tag}.parquet" for name in ("masks/d", "scores/b/c")]
    assert pq.read_table(workspace.index)["path"].to_pylist() == names


def test_a_damaged_index_costs_reading_footers(workspace, opened):
    update_index(workspace)
    for content in (b"", b"PAR1 not at all PAR1"):
        workspace.index.write_bytes(content)
        opened.clear()
        assert len(Listing(workspace)) == len(opened) == 2


def test_other_files_are_no_stage_files(workspace, opened, tmp_path):
    (tmp_path / "scores" / ".partial.parquet").write_bytes(b"half")
    (tmp_path / "scores" / "notes.txt").write_text("mine")
    mine = write(tmp_path / "scores" / "mine.parquet")  # its name tells no key
    assert set(Listing(workspace)) == {f"scores/{name}.{KEY.tag}.parquet" for name in ("a", "b/c")}
    assert mine not in opened
