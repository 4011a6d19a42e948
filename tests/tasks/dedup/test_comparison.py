"""What is compared of documents, and the memory and the bytes that it takes."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fineweb_mask.models.dedup.minhash import Sketch
from fineweb_mask.models.errors import WorkspaceError
from fineweb_mask.tasks.dedup.duplicates import dedup
from fineweb_mask.tasks.storage.remote.filesystem import RemoteFile
from fineweb_mask.tasks.workspace.references import StageFile
from fineweb_mask.tasks.workspace.workspace import Workspace
from tests.tasks.dedup.hashed import expected, listed, write_documents
from tests.tasks.jobs import dedup_job


def test_what_does_not_fit_in_memory_is_spilled_and_removed_and_too_little_memory_is_told(tmp_path):
    workspace = Workspace(tmp_path)
    texts = {name: range(first, first + 60_000) for first, name in enumerate("abcd")}
    limited = dedup_job(workspace, write_documents(workspace, texts), memory_limit="24MB")
    with pytest.raises(WorkspaceError, match=r"^dedup corpus: engine\.memory_limit: 1KB is too little"):
        dedup(limited.model_copy(update={"memory_limit": "1KB"}))
    assert dedup(limited).rows == sum(map(len, expected(texts).values()))
    assert listed(limited) == expected(texts)
    assert not list(workspace.cache.iterdir())
    assert limited.model_copy(update={"memory_limit": "3GB"}).key == limited.key
    assert limited.model_copy(update={"shards": limited.shards[::-1]}).key != limited.key


def test_another_machine_downloads_no_text_to_compare_hashes(bucket, tmp_path, monkeypatch):
    first = Workspace(f"{bucket.url}/ws")
    [documents] = write_documents(first, {"a": range(60_000)})
    monkeypatch.setenv("FINEWEB_MASK_SCRATCH", str(tmp_path / "second"))
    second = Workspace(first.address)
    taken: list[int] = []
    readinto = RemoteFile.readinto
    monkeypatch.setattr(RemoteFile, "readinto", lambda *given: (taken.append(readinto(*given)), taken[-1])[1])
    dedup(dedup_job(second, [documents]))
    assert sum(taken) > 0
    assert not (second.root / documents.path).exists()


@pytest.mark.parametrize(("keep", "kept"), [("earliest", 0), ("longest", 1)])
def test_urls_are_compared_without_what_does_not_tell_pages_apart(tmp_path, keep, kept):
    workspace = Workspace(tmp_path)
    urls = ["http://a.org/x/", "https://www.a.org/x#part", "a.org/x", "https://a.org/X", "", None, "a.org/x?y=1"]
    path = workspace.root / "urls.parquet"
    lengths = pa.array([5, 9, 7, 4, 1, 1, 2], pa.uint32())
    pq.write_table(pa.table({"row": pa.array(range(len(urls)), pa.uint32()), "url": urls, "n_chars": lengths}), path)
    file = StageFile(stage="ingest", name="a", path=path.name, rows=len(urls), bytes=1, fingerprint="a")
    job = dedup_job(workspace, [file], exact_dedup="off", url_dedup=True, copies={"keep": keep})
    dedup(job)
    [found] = job.shard_files() or []
    rows = pq.read_table(workspace.resolve(found)).to_pylist()
    twin = {"reason": "same_url", "twin_shard": "a", "twin_row": kept, "similarity": None}
    assert rows == [{"shard": "a", "row": row, **twin} for row in (0, 1, 2) if row != kept]


def test_a_sketch_is_in_the_order_of_its_keys_in_small_row_groups(tmp_path):
    pytest.importorskip("rensa")
    workspace = Workspace(tmp_path)
    path = workspace.root / "a.parquet"
    texts = [" ".join(f"w{number % 91}x{number % row}" for number in range(60)) for row in range(1, 6_001)]
    pq.write_table(pa.table({"row": pa.array(range(len(texts)), pa.uint32()), "text": texts}), path)
    file = StageFile(stage="ingest", name="a", path=path.name, rows=len(texts), bytes=1, fingerprint="a")
    [shard] = dedup_job(workspace, [file], Sketch()).shards
    with pq.ParquetFile(workspace.resolve(shard.signatures)) as made:
        table, groups = made.read(), made.num_row_groups
    pairs = list(zip(table["key"].to_pylist(), table["row"].to_pylist(), strict=True))
    assert pairs == sorted(pairs)
    assert len(pairs) == 14 * len(texts)
    assert groups == 2
