"""The duplicates of a bucket: what a plain loop finds, in any number of buckets, reading no more than the bucket."""

import itertools
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fineweb_mask.models.errors import WorkspaceError
from fineweb_mask.tasks.dedup import buckets, sort
from fineweb_mask.tasks.dedup.buckets import bucket_jobs, find_in_bucket
from fineweb_mask.tasks.dedup.sort import sort_rows
from fineweb_mask.tasks.storage.parquet import VerifiedFile
from fineweb_mask.tasks.workspace.references import StageFile
from fineweb_mask.tasks.workspace.workspace import Workspace
from tests.tasks import jobs
from tests.tasks.dedup.hashed import expected, text_hash, write_documents

TEXTS = {"b": range(500), "a": range(400, 900), "c": [*range(450), *range(2_000, 2_050)], "empty": []}


def repeats_jobs(workspace, texts, count, memory_limit="1GB"):
    hashes = [sort_rows(job) for job in jobs.hash_jobs(workspace, write_documents(workspace, texts))]
    return jobs.bucket_jobs(workspace, "repeats", hashes, count, memory_limit)


@pytest.mark.parametrize("count", [1, 8])
def test_a_bucket_holds_the_repeats_of_its_range(tmp_path, count):
    workspace = Workspace(tmp_path)
    shards = list(TEXTS.values())
    everything = {(place, row) for place, (name, found) in enumerate(expected(TEXTS).items()) for row in found}
    for job in repeats_jobs(workspace, TEXTS, count):
        table = pq.read_table(workspace.resolve(find_in_bucket(job)))
        found = list(zip(*(column.to_pylist() for column in table.columns), strict=True))
        assert found == sorted(found)
        assert all(text_hash(shards[place][row])[0] * count // 256 == job.bucket for place, row in found)
        assert everything.issuperset(found)
        everything -= set(found)
    assert not everything


def test_two_buckets_at_once_share_the_memory_limit(tmp_path, monkeypatch):
    """They take turns: DuckDB uses all cores for one."""
    made = repeats_jobs(Workspace(tmp_path), TEXTS, 4)
    open_ones, most = [0], [0]
    database = buckets.spilling_database

    @contextmanager
    def counted(*given):
        with database(*given) as connection:
            open_ones[0] += 1
            most[0] = max(most[0], open_ones[0])
            yield connection
            open_ones[0] -= 1

    monkeypatch.setattr(buckets, "spilling_database", counted)
    with ThreadPoolExecutor(4) as pool:
        assert not any(file.cached for file in pool.map(find_in_bucket, made))
    assert most == [1]


def test_what_does_not_fit_in_memory_is_spilled_and_removed_and_too_little_memory_is_told(tmp_path):
    workspace = Workspace(tmp_path)
    texts = {name: range(first, first + 60_000) for first, name in enumerate("abcd")}
    [limited] = repeats_jobs(workspace, texts, 1, "24MB")
    with pytest.raises(WorkspaceError, match=r"^repeats 0-of-1: engine\.memory_limit: 1KB is too little"):
        find_in_bucket(limited.model_copy(update={"memory_limit": "1KB"}))
    assert find_in_bucket(limited).rows == sum(map(len, expected(texts).values()))
    assert not list(workspace.cache.iterdir())


def test_a_bucket_is_given_no_more_than_its_own_hashes(tmp_path, monkeypatch):
    """And of the files, no row group that lies outside its range."""
    monkeypatch.setattr(sort, "ROW_GROUP_ROWS", 8)
    monkeypatch.setattr(buckets, "READ_ROWS", 40)
    workspace = Workspace(tmp_path)
    made = repeats_jobs(workspace, TEXTS, 16)
    read: list[int] = []
    given: list[pa.Table] = []
    of_groups, of_job = VerifiedFile.read_row_groups, buckets._read

    def counted(*arguments):
        table = of_groups(*arguments)
        read.append(table.num_rows)
        return table

    def seen(job):
        for table in of_job(job):
            given.append(table)
            yield table

    monkeypatch.setattr(VerifiedFile, "read_row_groups", counted)
    monkeypatch.setattr(buckets, "_read", seen)
    total = sum(len(of_shard) for of_shard in TEXTS.values())
    for job in made:
        read.clear()
        given.clear()
        find_in_bucket(job)
        assert len(given) > 1  # portions
        rows = sum(table.num_rows for table in given)
        assert 0.5 < rows / (total / 16) < 1.5
        assert rows <= sum(read) <= rows + 2 * 8 * len(TEXTS)


@pytest.mark.parametrize(
    ("comparison", "rows", "count"),
    [("repeats", 0, 1), ("repeats", 50_000_000, 1), ("pairs", 6_400_000_000, 128), ("verified", 100_001, 2)],
)
def test_a_large_corpus_has_more_buckets_which_cover_all_keys(comparison, rows, count):
    files = [StageFile(stage="", name="a", path="x", rows=rows, bytes=1, fingerprint="f")]
    made = bucket_jobs("w", comparison, files, "1GB")
    assert len(made) == count
    ends = [job.ends for job in made]
    assert (ends[0][0], ends[-1][1]) == (0, 2**64 - 1)
    assert all(one[1] + 1 == other[0] for one, other in itertools.pairwise(ends))
    assert len({job.name for job in made}) == len({job.key for job in made}) == count
    assert {job.key.stage for job in made} == {comparison}


def test_the_key_holds_the_bucket_and_the_order_of_the_shards(tmp_path):
    workspace = Workspace(tmp_path)
    [job] = repeats_jobs(workspace, TEXTS, 1)
    assert job.model_copy(update={"memory_limit": "3GB"}).key == job.key
    verified = {"comparison": "verified"}
    changes = [{}, {"sorted_rows": job.sorted_rows[::-1]}, {"buckets": 2}, {"buckets": 2, "bucket": 1}]
    changes += [verified, verified | {"threshold": 0.5}]
    assert len({job.model_copy(update=change).key for change in changes}) == 6
