"""Parts: kept where putting them in place costs nothing, uploaded once, and found again after a kill."""

from typing import Any

import pyarrow.parquet as pq
import pytest

from fineweb_mask.models.errors import WorkspaceError
from fineweb_mask.tasks.dataset import parts as parts_module
from fineweb_mask.tasks.dataset.partition import write_partition
from fineweb_mask.tasks.dataset.verify import find_dataset, read_provenance, verify
from fineweb_mask.tasks.materialize import materialize
from fineweb_mask.tasks.storage.atomic import tree_files
from fineweb_mask.tasks.storage.remote import copies
from fineweb_mask.tasks.storage.remote.object_store import Store
from tests.tasks.dataset.conftest import make

MANY: dict[str, Any] = {"partition_size": 1}


@pytest.fixture
def sent(monkeypatch):
    """The URLs of all files that are uploaded."""
    seen: list[str] = []
    upload = Store.upload

    def counted(self, source, name):
        seen.append(self.url_of(name))
        return upload(self, source, name)

    monkeypatch.setattr(Store, "upload", counted)
    return seen


@pytest.fixture
def at_url(bucket, tmp_path, monkeypatch):
    """Return the function that describes a dataset at a URL, alone or with its workspace, and its folder there."""
    monkeypatch.setenv(copies.SCRATCH, str(tmp_path / "scratch"))

    def of(shards, what="output"):
        if what == "workspace":
            return make(f"{bucket.url}/ws", shards, **MANY), "ws/dataset"
        making = make(tmp_path / "workspace", shards, **MANY)
        return making.with_settings(output=f"{bucket.url}/out"), "out"

    return of


@pytest.mark.long
@pytest.mark.parametrize("what", ["output", "workspace"])
def test_at_a_url_each_part_is_uploaded_once_before_the_card(at_url, four_shards, bucket, sent, tmp_path, what):
    making, folder = at_url(four_shards, what)
    data = f"{folder}/data-{making.job.parts.version[:8]}"
    jobs = making.partition_jobs()
    for job in jobs[:2]:
        write_partition(job)
    sent.clear()
    # Killed between the last upload of a part and its manifest: only what is not there is uploaded.
    parts_module.remove_file(jobs[0].parts.manifest_path(jobs[0].key))
    job = making.written()
    uploaded = [url.rsplit("/", 1)[1] for url in sent if f"/{data}/" in url]
    assert set(uploaded) == {"part-00002-00000.parquet", "part-00003-00000.parquet"}
    assert f"{folder}/README.md" not in bucket.names()
    sent.clear()
    materialize(job)
    assert not [url for url in sent if f"/{data}/" in url]
    assert [url.rsplit("/", 1)[1] for url in sent][-2:] == ["provenance.json", "README.md"]
    here = make(tmp_path / "local", four_shards, **MANY)
    here.write()
    local = {
        path.relative_to(here.workspace.dataset / "data").as_posix(): path.read_bytes()
        for path in tree_files(here.workspace.dataset / "data")
    }
    assert {name.removeprefix(f"{data}/"): bucket.read(name) for name in bucket.names(f"{data}/")} == local
    assert not [name for name in bucket.names() if "dataset-parts" in name]
    assert making.job.current() is not None
    other = making.with_settings(layout="flat", title="Another")
    other.write()
    names = bucket.names(f"{folder}/data-")
    assert {name.split("data-")[1].split("/")[0] for name in names} == {other.job.parts.version[:8]}
    assert b"# Another" in bucket.read(f"{folder}/README.md")
    dataset = find_dataset(f"{bucket.url}/{folder}")
    assert verify(dataset, read_provenance(dataset)).status == "ok"


@pytest.mark.long
def test_at_a_url_a_part_that_was_lost_stops_the_commit(at_url, four_shards, bucket):
    making, folder = at_url(four_shards)
    job = making.written()
    bucket.write(min(bucket.names(f"{folder}/data-")), b"cut")
    with pytest.raises(WorkspaceError, match="is missing or damaged: run again"):
        materialize(job)
    assert f"{folder}/README.md" not in bucket.names()


@pytest.mark.long
def test_for_a_folder_elsewhere_the_parts_lie_beside_it(four_shards, tmp_path):
    output = tmp_path / "out" / "mine"
    making = make(tmp_path / "ws", four_shards, **MANY).with_settings(output=str(output))
    job = making.written()
    assert [path.name for path in output.parent.iterdir()] == [".mine.parts"]
    inodes = {path.stat().st_ino for path in (output.parent / ".mine.parts").rglob("*.parquet")}
    materialize(job)
    assert [path.name for path in output.parent.iterdir()] == ["mine"]
    assert {path.stat().st_ino for path in output.rglob("*.parquet")} == inodes  # linked, not copied


def test_without_hard_links_the_files_are_copied(four_shards, tmp_path, monkeypatch):
    making = make(tmp_path, four_shards)

    def no_links(*_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(parts_module.os, "link", no_links)
    making.write()
    rows = [pq.read_metadata(path).num_rows for path in (making.workspace.dataset / "data").rglob("*.parquet")]
    assert sum(rows) == making.counts.selected
