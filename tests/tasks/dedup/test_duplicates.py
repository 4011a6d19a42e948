"""Exact duplicates across shards: which copy stays, whatever the buckets, and what is written again when."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fineweb_mask.models.errors import WorkspaceError
from fineweb_mask.models.settings import IngestSettings, SourceSettings
from fineweb_mask.tasks import ingest
from fineweb_mask.tasks.dedup import duplicates
from fineweb_mask.tasks.dedup.duplicates import DedupJob, dedup, in_order_of_arrival, no_duplicates, remember_arrivals
from fineweb_mask.tasks.source.discovery import discover
from fineweb_mask.tasks.workspace.listing import Listing, update_index
from fineweb_mask.tasks.workspace.references import NO_FILE, StageFile, digest
from fineweb_mask.tasks.workspace.stage_parquet import duplicate_rows, read_stage_footer
from fineweb_mask.tasks.workspace.workspace import Workspace
from tests.conftest import Bucket
from tests.tasks.dedup.hashed import expected, listed, write_documents
from tests.tasks.jobs import dedup_job, ingest_job
from tests.tasks.stage_files import newest

TEXTS = {"a": [1, 2, 3], "b": [4, 2, 5], "c": [5, 6, 1, 4, 7]}


def written(workspace: Workspace) -> dict[str, tuple[int, bytes]]:
    """Return when each file of duplicates was written, and its bytes."""
    folder = workspace.root / "duplicates"
    return {
        path.relative_to(folder).as_posix(): (path.stat().st_mtime_ns, path.read_bytes())
        for path in folder.rglob("*.parquet")
    }


def random_corpus(dice: random.Random) -> dict[str, list[int]]:
    """Return the texts of shards in a random order of arrival; a shard has no text twice."""
    names = dice.sample(["a", "b", "c", "en/a", "en/b", "f", "g", "h", "z"], dice.randint(1, 9))
    few = dice.choice([3, 40, 1_000])  # texts to draw from: nearly all are repeats, or nearly none
    return {name: dice.sample(range(few), dice.randint(0, min(few, 60))) for name in names}


@pytest.mark.parametrize("seed", range(12))
def test_a_plain_loop_over_the_shards_finds_the_same(tmp_path: Path, seed: int) -> None:
    texts = random_corpus(random.Random(seed))
    files = []
    for buckets in (1, 2, 8):
        workspace = Workspace(tmp_path / str(buckets))
        job = dedup_job(workspace, write_documents(workspace, texts), buckets)
        file = dedup(job)
        assert listed(job) == expected(texts)
        assert (file.rows, file.cached) == (sum(map(len, expected(texts).values())), False)
        files.append({name: content for name, (_, content) in written(workspace).items()})
    assert files[0] == files[1] == files[2]


def test_a_shard_that_is_added_changes_no_other_file(tmp_path: Path) -> None:
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


def test_the_order_of_work_does_not_matter(tmp_path: Path) -> None:
    one, other = Workspace(tmp_path / "one"), Workspace(tmp_path / "other")
    job = dedup_job(one, write_documents(one, TEXTS), 4)
    dedup(job)
    job = dedup_job(other, write_documents(other, TEXTS), 4)
    dedup(job.model_copy(update={"buckets": job.buckets[::-1]}))
    contents = [{path: content for path, (_, content) in written(workspace).items()} for workspace in (one, other)]
    assert contents[0] == contents[1]


def test_the_listing_is_found_again_whatever_the_buckets(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    documents = write_documents(workspace, TEXTS)
    first = dedup_job(workspace, documents)
    dedup(first)
    before = written(workspace)
    other = dedup_job(workspace, documents, 8)
    assert dedup(other).cached
    assert other.key == first.key
    assert written(workspace) == before


def test_names_tell_what_is_in_the_files(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    job = dedup_job(workspace, write_documents(workspace, TEXTS))
    dedup(job)
    for file in job.shard_files() or []:
        assert file.fingerprint == digest([file.name, expected(TEXTS)[file.name]])
        if file.path:
            found = read_stage_footer(workspace.root / file.path)
            assert found is not None
            assert workspace.root / file.path == workspace.shard_path("duplicates", file.name, found.key)
    assert job.paths() == [job.summary, *(workspace.root / file.path for file in job.shard_files() or [] if file.path)]


def test_a_shard_without_duplicates_has_no_file_and_needs_no_other_shard(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    job = dedup_job(workspace, write_documents(workspace, TEXTS))
    dedup(job)
    files = {file.name: file for file in job.shard_files() or []}
    assert files["a"] == no_duplicates("a")
    assert {path.split(".")[0] for path in written(workspace)} == {"b", "c"}
    assert duplicate_rows(workspace, no_duplicates("a")).tolist() == []
    with pytest.raises(FileNotFoundError, match="has no file"):
        duplicate_rows(workspace, NO_FILE)  # nobody looked


@pytest.mark.parametrize("damage", ["delete", "truncate"])
@pytest.mark.parametrize("indexed", [False, True])
def test_a_lost_file_is_made_again_from_what_the_buckets_found(tmp_path: Path, damage: str, indexed: bool) -> None:
    workspace = Workspace(tmp_path)
    job = dedup_job(workspace, write_documents(workspace, TEXTS))
    first = dedup(job)
    if indexed:
        update_index(workspace)
    before = written(workspace)
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
    assert {name: content for name, (_, content) in after.items()} == {
        name: content for name, (_, content) in before.items()
    }
    assert {name for name in after if after[name] != before[name]} == {path.name}


@pytest.mark.parametrize("indexed", [False, True])
def test_a_listing_finds_the_files_without_opening_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, indexed: bool
) -> None:
    workspace = Workspace(tmp_path)
    job = dedup_job(workspace, write_documents(workspace, TEXTS))
    dedup(job)
    if indexed:
        update_index(workspace)
    listing = Listing(workspace)
    files = job.shard_files()
    monkeypatch.setattr(duplicates, "size_of", lambda _: pytest.fail("a file was looked at"))
    assert job.shard_files(listing) == files
    assert job.current(listing) is not None


def test_on_request_all_is_written_again(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    job = dedup_job(workspace, write_documents(workspace, TEXTS))
    dedup(job)
    before = written(workspace)
    assert not dedup(job.model_copy(update={"force": True})).cached
    after = written(workspace)
    assert all(after[name][1] == before[name][1] and after[name][0] > before[name][0] for name in before)


def test_the_shards_are_listed_a_few_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duplicates, "GATHERED_ROWS", 6)
    held: list[int] = []
    of_places = duplicates._duplicates

    def seen(job: DedupJob, places: range) -> Any:
        held.append(len(places))
        return of_places(job, places)

    monkeypatch.setattr(duplicates, "_duplicates", seen)
    workspace = Workspace(tmp_path)
    job = dedup_job(workspace, write_documents(workspace, {**TEXTS, "empty": [], "z": [9, 1]}), 2)
    dedup(job)
    assert held == [2, 2, 1]  # of 3 + 3, 5 + 0 and 2 documents
    assert listed(job) == expected({**TEXTS, "empty": [], "z": [9, 1]})


def test_without_what_the_buckets_found_nothing_is_listed(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    job = dedup_job(workspace, write_documents(workspace, TEXTS))
    with pytest.raises(WorkspaceError, match="from what its buckets found"):
        dedup(job.model_copy(update={"buckets": ()}))
    assert not job.summary.exists()


def test_at_a_url_another_machine_goes_on_with_what_the_first_one_left(bucket: Bucket, tmp_path: Path) -> None:
    first, second = (Workspace(f"{bucket.url}/ws", tmp_path / name) for name in ("first", "second"))
    assert first.root != second.root
    job = dedup_job(first, write_documents(first, TEXTS), 2)
    dedup(job)
    here = job.model_copy(update={"root": second.address})
    assert here.workspace.root == second.root
    assert listed(here) == expected(TEXTS)
    assert dedup(here).cached


def ingested(folder: Path, texts: dict[str, list[str]], write: Callable[..., Path], make: Callable[..., Any]) -> Any:
    """Ingest shards of texts, and return the workspace and their documents."""
    workspace, source = Workspace(folder / "workspace"), SourceSettings(path=str(folder / "source"))
    for name, of_shard in texts.items():
        write(folder / "source" / f"{name}.parquet", [make(row, text=text) for row, text in enumerate(of_shard)])
    settings = IngestSettings(min_chars=1)
    files: list[StageFile] = [
        ingest.ingest(ingest_job(workspace, shard, source, settings)) for shard in discover(source)
    ]
    return workspace, files


@pytest.mark.parametrize("name", ["plain", "it's [1] * ?"])
def test_ingested_texts_are_compared_without_case_and_white_space(
    tmp_path: Path, make_parquet: Callable[..., Path], make_document: Callable[..., Any], name: str
) -> None:
    texts = {
        "a": ["one", "two", "three", "ONE"],
        "b": ["four", "Two", "five"],
        "c": ["five", "six", "one ", "four", "seven"],
        "empty": [],
    }
    workspace, documents = ingested(tmp_path / name, texts, make_parquet, make_document)
    job = dedup_job(workspace, documents)
    dedup(job)
    assert listed(job) == {"a": [], "b": [1], "c": [0, 2, 3], "empty": []}
    assert dedup(job).cached


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
