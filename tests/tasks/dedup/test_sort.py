"""The sorted hashes of a shard, all of them, in order, without its texts; of a range, a reader takes its row groups."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fineweb_mask.models.schemas import HASHES, REPEATS
from fineweb_mask.models.settings.source import CopiesSettings
from fineweb_mask.tasks.dedup import sort
from fineweb_mask.tasks.dedup.buckets import bucket_jobs, find_in_bucket
from fineweb_mask.tasks.dedup.copies import Shard
from fineweb_mask.tasks.dedup.duplicates import no_duplicates
from fineweb_mask.tasks.dedup.sort import SortJob, read_range, sort_rows, write_sorted
from fineweb_mask.tasks.storage.parquet import VerifiedFile
from fineweb_mask.tasks.storage.remote.filesystem import RemoteFile
from fineweb_mask.tasks.workspace.references import StageFile
from fineweb_mask.tasks.workspace.stage_parquet import current_parquet
from fineweb_mask.tasks.workspace.workspace import Workspace
from tests.tasks.dedup.hashed import text_hash, write_documents
from tests.tasks.jobs import hash_jobs
from tests.tasks.stage_files import KEY


@pytest.mark.parametrize("texts", [[], range(9_000)], ids=len)
def test_every_hash_is_there_with_its_row_in_order(tmp_path, texts):
    workspace = Workspace(tmp_path)
    [job] = hash_jobs(workspace, write_documents(workspace, {"en/a": texts}))
    reference, measured = job.reference(job.file.rows), {"bytes", "seconds"}
    assert not job.output.exists()
    built = sort_rows(job)
    assert built.model_dump(exclude=measured) == reference.model_dump(exclude=measured)  # known before it is there
    table = pq.read_table(workspace.resolve(built))
    assert table.schema.equals(HASHES)
    pairs = list(zip(*(column.to_pylist() for column in table.columns), strict=True))
    assert pairs == sorted((text_hash(text), row) for row, text in enumerate(texts))


def test_another_machine_downloads_no_text_and_of_a_small_range_little(bucket, tmp_path, monkeypatch):
    monkeypatch.setattr(sort, "ROW_GROUP_ROWS", 1_000)
    first, second = (Workspace(f"{bucket.url}/ws", tmp_path / name) for name in ("first", "second"))
    texts = range(60_000)
    [documents] = write_documents(first, {"a": texts})
    taken: list[int] = []
    readinto = RemoteFile.readinto
    monkeypatch.setattr(RemoteFile, "readinto", lambda *given: (taken.append(readinto(*given)), taken[-1])[1])
    [job] = hash_jobs(second, [documents])
    file = sort_rows(job)
    assert sum(taken) > 0
    assert not (second.root / documents.path).exists()
    taken.clear()
    third = Workspace(f"{bucket.url}/ws", tmp_path / "third")
    found = read_range(third, file, b"\x80" + bytes(15), b"\x80" + b"\xff" * 15)
    assert sorted(found["row"].to_pylist()) == [row for row, text in enumerate(texts) if text_hash(text)[0] == 0x80]
    assert sum(taken) < 0.25 * file.bytes
    assert not (third.root / file.path).exists()


def write(workspace, values):
    path = workspace.shard_path("repeats", "a", KEY)
    rows = pa.array(range(len(values)), pa.uint32())
    write_sorted(path, REPEATS, KEY, [pa.record_batch([pa.array(values, pa.uint32()), rows], schema=REPEATS)])
    file = current_parquet(workspace, path, "a", KEY)
    assert file is not None
    return file


@pytest.mark.parametrize(
    ("first", "last", "groups"), [(0, 98, "0123"), (0, 2, "0"), (3, 3, "01"), (4, 4, "1"), (7, 7, ""), (8, 8, "23")]
)
def test_the_rows_of_the_range_come_from_its_row_groups_alone(tmp_path, monkeypatch, first, last, groups):
    monkeypatch.setattr(sort, "ROW_GROUP_ROWS", 3)
    workspace = Workspace(tmp_path)
    values = [1, 2, 3, 3, 4, 6, 8, 8, 8, 8, 20]
    file, read = write(workspace, values), list[int]()
    of_groups = VerifiedFile.read_row_groups
    monkeypatch.setattr(
        VerifiedFile, "read_row_groups", lambda self, places: (read.extend(places), of_groups(self, places))[1]
    )
    rows = read_range(workspace, file, first, last)["row"].to_pylist()
    assert rows == [row for row, value in enumerate(values) if first <= value <= last]
    assert read == [int(group) for group in groups]


def test_urls_are_compared_without_what_does_not_tell_pages_apart(tmp_path):
    workspace = Workspace(tmp_path)
    urls = ["http://a.org/x/", "https://www.a.org/x#part", "a.org/x", "https://a.org/X", "", None, "a.org/x?y=1"]
    path = workspace.root / "urls.parquet"
    lengths = pa.array([5, 9, 7, 4, 1, 1, 2], pa.uint32())
    pq.write_table(pa.table({"row": pa.array(range(len(urls)), pa.uint32()), "url": urls, "n_chars": lengths}), path)
    file = StageFile(stage="ingest", name="a", path=path.name, rows=len(urls), bytes=1, fingerprint="a")
    sorted_rows = sort_rows(SortJob(root=str(workspace.root), by="urls", file=file))
    table = pq.read_table(workspace.resolve(sorted_rows))
    assert sorted(table["row"].to_pylist()) == [0, 1, 2, 3, 6]
    shards = (Shard(documents=file, exact=no_duplicates("a")),)
    for keep, best, others in (("earliest", 0, (1, 2)), ("longest", 1, (0, 2))):
        copies = CopiesSettings(keep=keep)
        [job] = bucket_jobs(str(workspace.root), "urls", [sorted_rows], "1GB", shards=shards, copies=copies)
        found = pq.read_table(workspace.resolve(find_in_bucket(job))).to_pylist()
        assert found == [{"document": row, "better": best, "similarity": None} for row in others]
