"""Exact duplicates across shards: which copy stays, and what is written again when."""

import random

import pytest

from fineweb_mask.tasks.dedup import comparison, duplicates
from fineweb_mask.tasks.dedup.duplicates import dedup, no_duplicates
from fineweb_mask.tasks.workspace.listing import Listing, update_index
from fineweb_mask.tasks.workspace.references import NO_FILE
from fineweb_mask.tasks.workspace.stage_parquet import duplicate_rows
from fineweb_mask.tasks.workspace.workspace import Workspace
from tests.tasks.dedup.hashed import expected, listed, write_documents
from tests.tasks.jobs import dedup_job

TEXTS = {"a": [1, 2, 3], "b": [4, 2, 5], "c": [5, 6, 1, 4, 7]}


def random_corpus(dice):
    """Return the texts of shards in a random order; a shard has no text twice."""
    names = dice.sample(["a", "b", "c", "en/a", "en/b", "f", "g", "h", "z"], dice.randint(1, 9))
    few = dice.choice([3, 40, 1_000])  # texts to draw from: nearly all are repeats, or nearly none
    return {name: dice.sample(range(few), dice.randint(0, min(few, 60))) for name in names}


@pytest.mark.parametrize("seed", range(6))
def test_a_plain_loop_over_the_shards_finds_the_same(tmp_path, monkeypatch, seed):
    monkeypatch.setattr(duplicates, "ROW_GROUP_ROWS", 60)  # they are listed a few at a time
    monkeypatch.setattr(comparison, "READ_ROWS", 90)
    texts, workspace = random_corpus(random.Random(seed)), Workspace(tmp_path)
    job = dedup_job(workspace, write_documents(workspace, texts))
    file = dedup(job)
    assert listed(job) == expected(texts)
    assert (file.rows, file.cached) == (sum(map(len, expected(texts).values())), False)


def test_a_shard_that_is_added_after_the_others_changes_no_other_list(tmp_path):
    workspace = Workspace(tmp_path)
    texts: dict[str, list[int]] = {}
    before: list[str] = []
    for name, added in {"d": [1, 2], "h": [2, 3, 4], "i": [1, 2, 9], "j": [9, 4, 10], "z": [7]}.items():
        texts[name] = added
        job = dedup_job(workspace, write_documents(workspace, texts))
        dedup(job)
        assert listed(job) == expected(texts)
        after = [file.fingerprint for file in job.shard_files() or []]
        assert after[:-1] == before
        before = after


def test_a_list_is_known_by_its_rows_and_a_shard_without_duplicates_has_none(tmp_path):
    workspace = Workspace(tmp_path)
    job = dedup_job(workspace, write_documents(workspace, TEXTS))
    dedup(job)
    files = {file.name: file for file in job.shard_files() or []}
    assert files["a"] == no_duplicates("a")
    assert duplicate_rows(workspace, no_duplicates("a")).tolist() == []
    with pytest.raises(FileNotFoundError, match="has no file"):
        duplicate_rows(workspace, NO_FILE)  # nobody looked
    assert len({file.fingerprint for file in files.values()}) == 3
    assert {file.path for file in files.values()} == {"", workspace.relative(job.output)}
    before = job.output.read_bytes()
    assert dedup(job).cached
    assert not dedup(job.model_copy(update={"force": True})).cached  # on request all is written again
    assert job.output.read_bytes() == before


@pytest.mark.parametrize(("damage", "indexed"), [("delete", True), ("truncate", True), ("truncate", False)])
def test_a_lost_file_is_made_again(tmp_path, damage, indexed):
    workspace = Workspace(tmp_path)
    job = dedup_job(workspace, write_documents(workspace, TEXTS))
    first = dedup(job)
    if indexed:
        update_index(workspace)
    assert [file.name for file in job.shard_files(Listing(workspace)) or []] == list(TEXTS)
    before = job.output.read_bytes()
    if damage == "delete":
        job.output.unlink()
    else:
        job.output.write_bytes(before[:-20])
    assert job.shard_files() is None
    assert job.current(Listing(workspace)) is None
    again = dedup(job)
    assert (again.cached, again.fingerprint, job.output.read_bytes()) == (False, first.fingerprint, before)
