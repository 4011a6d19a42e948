"""Exact duplicates across shards: which copy stays, and what is written again when."""

import random

import pytest

from fineweb_mask.tasks.dedup import comparison, duplicates
from fineweb_mask.tasks.dedup.duplicates import dedup, in_order_of_arrival, no_duplicates, remember_arrivals
from fineweb_mask.tasks.workspace.listing import Listing, update_index
from fineweb_mask.tasks.workspace.references import NO_FILE, digest
from fineweb_mask.tasks.workspace.stage_parquet import duplicate_rows, read_stage_footer
from fineweb_mask.tasks.workspace.workspace import Workspace
from tests.tasks.dedup.hashed import expected, listed, write_documents
from tests.tasks.jobs import dedup_job
from tests.tasks.stage_files import newest

TEXTS = {"a": [1, 2, 3], "b": [4, 2, 5], "c": [5, 6, 1, 4, 7]}


def written(workspace):
    """Return when each file of duplicates was written, and its bytes."""
    folder = workspace.root / "duplicates"
    return {
        path.relative_to(folder).as_posix(): (path.stat().st_mtime_ns, path.read_bytes())
        for path in folder.rglob("*.parquet")
    }


def random_corpus(dice):
    """Return the texts of shards in a random order of arrival; a shard has no text twice."""
    names = dice.sample(["a", "b", "c", "en/a", "en/b", "f", "g", "h", "z"], dice.randint(1, 9))
    few = dice.choice([3, 40, 1_000])  # texts to draw from: nearly all are repeats, or nearly none
    return {name: dice.sample(range(few), dice.randint(0, min(few, 60))) for name in names}


@pytest.mark.parametrize("seed", range(6))
def test_a_plain_loop_over_the_shards_finds_the_same(tmp_path, monkeypatch, seed):
    monkeypatch.setattr(duplicates, "LISTED_ROWS", 60)  # they are listed a few at a time
    monkeypatch.setattr(comparison, "READ_ROWS", 90)
    texts, workspace = random_corpus(random.Random(seed)), Workspace(tmp_path)
    job = dedup_job(workspace, write_documents(workspace, texts))
    file = dedup(job)
    assert listed(job) == expected(texts)
    assert (file.rows, file.cached) == (sum(map(len, expected(texts).values())), False)


def test_a_shard_that_is_added_changes_no_other_file(tmp_path):
    """First, in the middle or last by its name, and with copies of the others' texts."""
    workspace = Workspace(tmp_path)
    texts: dict[str, list[int]] = {}
    for name, added in {"d": [1, 2], "h": [2, 3, 4], "a": [1, 2, 9], "f": [9, 4, 10], "z": [7]}.items():
        before = written(workspace)
        texts[name] = added
        names = in_order_of_arrival(workspace, texts)
        remember_arrivals(workspace, names)
        assert names[-1] == name
        job = dedup_job(workspace, write_documents(workspace, {one: texts[one] for one in names}))
        dedup(job)
        assert listed(job) == expected(texts)
        after = written(workspace)
        new = {path for path in after if path not in before}
        assert {path: after[path] for path in before} == before
        assert {path.split(".")[0] for path in new} == ({name} if expected(texts)[name] else set())


def test_a_list_is_known_by_what_is_in_it_and_a_shard_without_duplicates_has_none(tmp_path):
    workspace = Workspace(tmp_path)
    documents = write_documents(workspace, TEXTS)
    job = dedup_job(workspace, documents)
    dedup(job)
    files = {file.name: file for file in job.shard_files() or []}
    assert files["a"] == no_duplicates("a")
    assert duplicate_rows(workspace, no_duplicates("a")).tolist() == []
    with pytest.raises(FileNotFoundError, match="has no file"):
        duplicate_rows(workspace, NO_FILE)  # nobody looked
    for name, file in files.items():
        assert file.fingerprint == digest([name, expected(TEXTS)[name]])
        if file.path:
            found = read_stage_footer(workspace.root / file.path)
            assert found is not None
            assert workspace.root / file.path == workspace.shard_path("duplicates", name, found.key)
    assert job.paths() == [job.summary, *(workspace.root / file.path for file in files.values() if file.path)]
    before = written(workspace)
    assert {path.split(".")[0] for path in before} == {"b", "c"}
    assert dedup(job).cached
    assert written(workspace) == before
    assert not dedup(job.model_copy(update={"force": True})).cached  # on request all is written again
    after = written(workspace)
    assert all(after[name][1] == before[name][1] and after[name][0] > before[name][0] for name in before)


@pytest.mark.parametrize(("damage", "indexed"), [("delete", True), ("truncate", True), ("truncate", False)])
def test_a_lost_file_is_made_again_and_no_other(tmp_path, damage, indexed, monkeypatch):
    workspace = Workspace(tmp_path)
    job = dedup_job(workspace, write_documents(workspace, TEXTS))
    first = dedup(job)
    if indexed:
        update_index(workspace)
    before, listing = written(workspace), Listing(workspace)
    with monkeypatch.context() as patched:
        patched.setattr(duplicates, "size_of", lambda _: pytest.fail("a file was looked at"))
        assert [file.name for file in job.shard_files(listing) or []] == list(TEXTS)
        assert job.current(listing) is not None
    path = newest(workspace, "duplicates", "c")
    if damage == "delete":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-20])
    assert job.shard_files() is None
    assert job.current(Listing(workspace)) is None
    again = dedup(job)
    assert not again.cached
    assert again.fingerprint == first.fingerprint
    after = written(workspace)
    assert {name: one for name, (_, one) in after.items()} == {name: one for name, (_, one) in before.items()}
    assert {name for name in after if after[name] != before[name]} == {path.name}


def test_at_a_url_another_machine_goes_on_with_what_the_first_one_left(bucket, tmp_path, monkeypatch):
    first = Workspace(f"{bucket.url}/ws")
    job = dedup_job(first, write_documents(first, TEXTS))
    dedup(job)
    monkeypatch.setenv("FINEWEB_MASK_SCRATCH", str(tmp_path / "second"))
    assert job.workspace.root.is_relative_to(tmp_path / "second")
    assert listed(job) == expected(TEXTS)
    assert dedup(job).cached


def test_new_shards_come_after_those_before_them_and_one_that_is_gone_keeps_its_place(tmp_path):
    workspace = Workspace(tmp_path)
    assert in_order_of_arrival(workspace, ["c", "a", "b"]) == ["a", "b", "c"]
    remember_arrivals(workspace, ["d", "b"])
    first = workspace.arrivals.stat().st_mtime_ns
    remember_arrivals(workspace, ["b", "d"])
    assert workspace.arrivals.stat().st_mtime_ns == first
    assert in_order_of_arrival(workspace, ["e", "d", "c", "b", "a"]) == ["d", "b", "a", "c", "e"]
    remember_arrivals(workspace, in_order_of_arrival(workspace, ["a", "b"]))
    assert in_order_of_arrival(workspace, ["a", "b", "c", "d", "0"]) == ["d", "b", "a", "0", "c"]
    for damaged in ("", "{", "3"):
        workspace.arrivals.write_text(damaged)
        assert in_order_of_arrival(workspace, ["b", "a"]) == ["a", "b"]
