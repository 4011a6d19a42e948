"""The sorted hashes of a shard: all of them, in order, without its texts."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from fineweb_mask.models.schemas import HASHES
from fineweb_mask.tasks.dedup.sort import sort_rows
from fineweb_mask.tasks.storage.remote.filesystem import RemoteFile
from fineweb_mask.tasks.workspace.workspace import Workspace
from tests.conftest import Bucket
from tests.tasks.dedup.hashed import text_hash, write_documents
from tests.tasks.jobs import hash_jobs


@pytest.mark.parametrize("texts", [[], [7], list(range(20_000))], ids=len)
def test_every_hash_is_there_with_its_row_in_order(tmp_path: Path, texts: list[int]) -> None:
    workspace = Workspace(tmp_path)
    [job] = hash_jobs(workspace, write_documents(workspace, {"en/a": texts}))
    table = pq.read_table(workspace.resolve(sort_rows(job)))
    assert table.schema.equals(HASHES)
    pairs = list(zip(*(column.to_pylist() for column in table.columns), strict=True))
    assert pairs == sorted((text_hash(text), row) for row, text in enumerate(texts))


def test_what_refers_to_the_hashes_is_known_before_they_are_there(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    [job] = hash_jobs(workspace, write_documents(workspace, {"en/a": range(9)}))
    reference = job.reference(job.file.rows)
    assert not job.output.exists()
    built = sort_rows(job).model_dump(exclude={"bytes", "seconds"})
    assert built == reference.model_dump(exclude={"bytes", "seconds"})


def test_equal_documents_have_equal_bytes(tmp_path: Path) -> None:
    files = []
    for name in ("one", "two"):
        workspace = Workspace(tmp_path / name)
        [job] = hash_jobs(workspace, write_documents(workspace, {"a": range(9_000)}))
        files.append(workspace.resolve(sort_rows(job)).read_bytes())
    assert files[0] == files[1]


def test_another_machine_downloads_no_text(bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workspace = Workspace(f"{bucket.url}/ws", tmp_path)
    texts = range(3_000)
    [documents] = write_documents(workspace, {"a": texts})
    workspace.resolve(documents).unlink()
    taken: list[int] = []
    readinto = RemoteFile.readinto
    monkeypatch.setattr(RemoteFile, "readinto", lambda *given: (taken.append(readinto(*given)), taken[-1])[1])
    [job] = hash_jobs(workspace, [documents])
    assert sort_rows(job).rows == len(texts)
    assert sum(taken) > 0
    assert not (workspace.root / documents.path).exists()
