"""A listing finds what is current without opening files, and never what is damaged or of another key."""

from dataclasses import replace

import pyarrow.parquet as pq
import pytest

from fineweb_mask.tasks.workspace import listing as listings
from fineweb_mask.tasks.workspace.listing import Listing, update_index
from fineweb_mask.tasks.workspace.stage_parquet import current_parquet
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
    read = listings.read_stage_footer
    monkeypatch.setattr(listings, "read_stage_footer", lambda path: (found.append(path), read(path))[1])
    return found


@pytest.mark.parametrize("indexed", [False, True])
def test_a_listing_finds_what_the_footer_says(workspace, opened, indexed):
    if indexed:
        update_index(workspace)
        opened.clear()
    listing = Listing(workspace)
    for name in ("a", "b/c"):
        path = workspace.shard_path("scores", name, KEY)
        assert listing.find("scores", name, KEY) == current_parquet(workspace, path, name, KEY)
        assert listing.find("scores", name, OTHER) is None
    assert listing.find("masks", "a", KEY) is None
    assert len(opened) == (0 if indexed else 2)


def test_a_file_that_lost_bytes_or_has_the_name_of_another_key_is_not_found(workspace):
    update_index(workspace)
    path = workspace.shard_path("scores", "a", KEY)
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    assert Listing(workspace).find("scores", "a", KEY) is None
    assert Listing(workspace).find("scores", "b/c", KEY) is not None
    # Only the first half of the fingerprint is in the name; the footer has it whole.
    workspace.shard_path("scores", "a", OTHER).write_bytes(whole)
    assert Listing(workspace).find("scores", "a", OTHER) is None


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
        assert Listing(workspace).find("scores", "a", KEY) is not None
        assert len(opened) == 2


def test_other_files_are_no_stage_files(workspace, opened, tmp_path):
    (tmp_path / "scores" / ".partial.parquet").write_bytes(b"half")
    (tmp_path / "scores" / "notes.txt").write_text("mine")
    mine = write(tmp_path / "scores" / "mine.parquet")  # its name tells no key
    listing = Listing(workspace)
    assert all(listing.size_of(f"scores/{name}.{KEY.tag}.parquet") for name in ("a", "b/c"))
    assert [listing.size_of(f"scores/{name}") for name in (".partial.parquet", "notes.txt", "mine.parquet")] == [
        None
    ] * 3
    assert mine not in opened
