"""Exact duplicates across shards: which copy stays, and what is written again when."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from fineweb_mask.models.settings import IngestSettings, SourceSettings
from fineweb_mask.tasks import dedup, ingest
from fineweb_mask.tasks.dedup import in_order_of_arrival, remember_arrivals
from fineweb_mask.tasks.source.discovery import discover
from fineweb_mask.tasks.workspace.references import StageFile
from fineweb_mask.tasks.workspace.workspace import Workspace
from tests.tasks.jobs import dedup_job, ingest_job
from tests.tasks.stage_files import newest

TEXTS = {
    "a": ["one", "two", "three", "ONE"],
    "b": ["four", "Two", "five"],
    "c": ["five", "six", "one ", "four", "seven"],
}


class Corpus:
    """Ingested shards of given texts."""

    def __init__(self, folder: Path, write: Callable[..., Path], make: Callable[..., dict[str, Any]]) -> None:
        self.source, self.workspace = folder / "source", Workspace(folder / "workspace")
        self.write, self.make = write, make

    def ingest(self, texts: dict[str, list[str]]) -> list[StageFile]:
        for name, of_shard in texts.items():
            rows = [self.make(index, text=text) for index, text in enumerate(of_shard)]
            if not (path := self.source / f"{name}.parquet").exists():
                self.write(path, rows)
        source = SourceSettings(path=str(self.source))
        settings = IngestSettings(min_chars=1)
        return [
            ingest.ingest(ingest_job(self.workspace, shard, source, settings))
            for shard in discover(source)
            if shard.name in texts
        ]

    def duplicates(self, job: dedup.DedupJob) -> dict[str, list[int]]:
        return {
            file.name: pq.read_table(self.workspace.resolve(file))["row"].to_pylist()
            for file in job.shard_files() or []
        }


@pytest.fixture
def texts(tmp_path: Path, make_parquet: Callable[..., Path], make_document: Callable[..., dict[str, Any]]) -> Corpus:
    return Corpus(tmp_path, make_parquet, make_document)


def test_only_later_shards_lose_rows(texts: Corpus) -> None:
    job = dedup_job(texts.workspace, texts.ingest(TEXTS), "corpus", "1GB")
    file = dedup.dedup(job)
    assert texts.duplicates(job) == {"a": [], "b": [1], "c": [0, 2, 3]}
    assert (file.rows, file.cached) == (4, False)
    assert dedup.dedup(job).cached


def test_the_order_of_work_does_not_matter(texts: Corpus) -> None:
    documents = texts.ingest(TEXTS)
    job = dedup_job(texts.workspace, documents, "corpus", "1GB")
    assert dedup_job(texts.workspace, documents[::-1], "corpus", "1GB") == job


@pytest.mark.parametrize("scope", ["shard", "off"])
def test_a_narrower_scope_finds_none_across_shards(texts: Corpus, scope: str) -> None:
    job = dedup_job(texts.workspace, texts.ingest(TEXTS), scope, "1GB")
    assert dedup.dedup(job).rows == 0
    assert texts.duplicates(job) == {"a": [], "b": [], "c": []}


def test_another_scope_is_another_key(texts: Corpus) -> None:
    documents = texts.ingest(TEXTS)
    dedup.dedup(dedup_job(texts.workspace, documents, "corpus", "1GB"))
    assert dedup_job(texts.workspace, documents, "shard", "1GB").current() is None
    assert dedup_job(texts.workspace, documents, "corpus", "3GB").current() is not None


def test_another_shard_leaves_the_earlier_fingerprints(texts: Corpus) -> None:
    few = dedup_job(texts.workspace, texts.ingest({name: TEXTS[name] for name in "ab"}), "corpus", "1GB")
    dedup.dedup(few)
    before = {file.name: file.fingerprint for file in few.shard_files() or []}
    all_of_them = dedup_job(texts.workspace, texts.ingest(TEXTS), "corpus", "1GB")
    dedup.dedup(all_of_them)
    after = {file.name: file.fingerprint for file in all_of_them.shard_files() or []}
    assert {name: after[name] for name in before} == before
    assert len(set(after.values())) == 3


def test_a_lost_file_is_made_again(texts: Corpus) -> None:
    job = dedup_job(texts.workspace, texts.ingest(TEXTS), "corpus", "1GB")
    first = dedup.dedup(job)
    path = newest(texts.workspace, "duplicates", "c")
    before = path.read_bytes()
    path.unlink()
    assert job.shard_files() is None
    again = dedup.dedup(job)
    assert not again.cached
    assert again.fingerprint == first.fingerprint
    assert path.read_bytes() == before


def test_one_shard_and_an_empty_one(texts: Corpus) -> None:
    job = dedup_job(texts.workspace, texts.ingest({"a": TEXTS["a"]}), "corpus", "1GB")
    assert dedup.dedup(job).rows == 0
    job = dedup_job(texts.workspace, texts.ingest({"a": TEXTS["a"], "empty": [], "z": ["One"]}), "corpus", "1GB")
    dedup.dedup(job)
    assert texts.duplicates(job) == {"a": [], "empty": [], "z": [0]}


def test_a_workspace_whose_name_looks_like_a_glob(
    tmp_path: Path, make_parquet: Callable[..., Path], make_document: Callable[..., dict[str, Any]]
) -> None:
    corpus = Corpus(tmp_path / "it's [1] * ?", make_parquet, make_document)
    job = dedup_job(corpus.workspace, corpus.ingest(TEXTS), "corpus", "1GB")
    dedup.dedup(job)
    assert corpus.duplicates(job) == {"a": [], "b": [1], "c": [0, 2, 3]}


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
