"""Parts: kept where putting them in place costs nothing, uploaded once, and found again after a kill."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from fineweb_mask.models.errors import WorkspaceError
from fineweb_mask.tasks.dataset import parts as parts_module
from fineweb_mask.tasks.dataset.partition import write_partition
from fineweb_mask.tasks.dataset.verify import find_dataset, read_provenance, verify
from fineweb_mask.tasks.materialize import materialize
from fineweb_mask.tasks.storage.remote import copies
from fineweb_mask.tasks.storage.remote.object_store import Store
from tests.conftest import Bucket
from tests.tasks.conftest import snapshot

Rows = list[tuple[str | None, bool]]
MANY: dict[str, Any] = {"partition_size": 1}


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The URLs of all files that are uploaded."""
    seen: list[str] = []
    upload = Store.upload

    def counted(self: Store, source: Path, name: str) -> Any:
        seen.append(self.url_of(name))
        return upload(self, source, name)

    monkeypatch.setattr(Store, "upload", counted)
    return seen


def is_as_recorded(url: str) -> bool:
    dataset = find_dataset(url)
    return verify(dataset, read_provenance(dataset)).status == "ok"


@pytest.fixture(params=["output", pytest.param("workspace", marks=pytest.mark.long)])
def at_url(
    request: pytest.FixtureRequest,
    make_corpus: Callable[..., Any],
    bucket: Bucket,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[..., tuple[Any, str]]:
    """Return the function that describes a dataset at a URL, alone or with its workspace, and its folder there."""
    monkeypatch.setenv(copies.SCRATCH, str(tmp_path / "scratch"))

    def of(shards: list[Rows], **settings: Any) -> tuple[Any, str]:
        if request.param == "workspace":
            return make_corpus(f"{bucket.url}/ws", shards, **MANY, **settings), "ws/dataset"
        making = make_corpus(tmp_path / "workspace", shards, **MANY, **settings)
        return making.with_settings(output=f"{bucket.url}/out"), "out"

    return of


@pytest.mark.long
def test_at_a_url_each_part_is_uploaded_once_and_before_the_card(
    at_url: Callable[..., Any],
    make_corpus: Callable[..., Any],
    six_shards: list[Rows],
    bucket: Bucket,
    sent: list[str],
    tmp_path: Path,
) -> None:
    making, folder = at_url(six_shards)
    data = f"{folder}/data-{making.partitioning.version}"
    job = making.written()
    uploaded = [url for url in sent if f"/{data}/" in url]
    assert len(uploaded) == len(set(uploaded)) == len(bucket.names(f"{data}/")) >= 6
    assert f"{folder}/README.md" not in bucket.names()
    sent.clear()
    materialize(job)
    assert not [url for url in sent if f"/{data}/" in url]
    assert [url.rsplit("/", 1)[1] for url in sent][-2:] == ["provenance.json", "README.md"]
    here = make_corpus(tmp_path / "local", six_shards, **MANY)
    here.write()
    local = {
        name.removeprefix("data/"): (here.workspace.dataset / name).read_bytes()
        for name in snapshot(here.workspace.dataset)
        if name.startswith("data/")
    }
    assert {name.removeprefix(f"{data}/"): bucket.read(name) for name in bucket.names(f"{data}/")} == local
    assert not [name for name in bucket.names() if "dataset-parts" in name]
    assert making.job.current() is not None
    assert is_as_recorded(f"{bucket.url}/{folder}")


@pytest.mark.long
def test_at_a_url_a_killed_run_uploads_only_what_is_not_there(
    at_url: Callable[..., Any], six_shards: list[Rows], bucket: Bucket, sent: list[str]
) -> None:
    making, folder = at_url(six_shards)
    jobs = making.partitioning.jobs()
    for job in jobs[:4]:
        write_partition(job)
    manifest = jobs[0].parts.manifest_path(jobs[0].key)
    parts_module.remove_file(manifest)  # killed between the last upload of a part and its manifest
    sent.clear()
    making.write()
    names = [url.removeprefix(f"{bucket.url}/") for url in sent if f"/{folder}/data-" in url]
    assert {name.rsplit("/", 1)[1] for name in names} == {"part-00004-00000.parquet", "part-00005-00000.parquet"}


@pytest.mark.long
def test_at_a_url_a_new_version_replaces_the_old_files(
    at_url: Callable[..., Any], six_shards: list[Rows], bucket: Bucket
) -> None:
    making, folder = at_url(six_shards)
    making.write()
    old = set(bucket.names(f"{folder}/data-"))
    other = making.with_settings(layout="flat")
    other.write()
    new = set(bucket.names(f"{folder}/data-"))
    assert not old & new
    assert {name.split("data-")[1].split("/")[0] for name in new} == {other.partitioning.version}
    assert is_as_recorded(f"{bucket.url}/{folder}")
    renamed = other.with_settings(title="Another")  # the card is new, the data is not
    renamed.write()
    assert set(bucket.names(f"{folder}/data-")) == new
    assert b"# Another" in bucket.read(f"{folder}/README.md")


def test_at_a_url_a_part_that_was_lost_stops_the_commit(
    at_url: Callable[..., Any], six_shards: list[Rows], bucket: Bucket
) -> None:
    making, folder = at_url(six_shards)
    job = making.written()
    name = bucket.names(f"{folder}/data-")
    lost = sorted(name)[0]
    bucket.write(lost, b"cut")
    with pytest.raises(WorkspaceError, match="is missing or damaged: run again"):
        materialize(job)
    assert f"{folder}/README.md" not in bucket.names()


def test_for_a_folder_elsewhere_the_parts_lie_beside_it(
    make_corpus: Callable[..., Any], six_shards: list[Rows], tmp_path: Path
) -> None:
    output = tmp_path / "out" / "mine"
    making = make_corpus(tmp_path / "ws", six_shards, **MANY).with_settings(output=str(output))
    job = making.written()
    assert [path.name for path in output.parent.iterdir()] == [".mine.parts"]
    inodes = {path.stat().st_ino for path in (output.parent / ".mine.parts").rglob("*.parquet")}
    materialize(job)
    assert [path.name for path in output.parent.iterdir()] == ["mine"]
    assert {path.stat().st_ino for path in output.rglob("*.parquet")} == inodes  # linked, not copied


def test_without_hard_links_the_files_are_copied(
    make_corpus: Callable[..., Any], six_shards: list[Rows], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    making = make_corpus(tmp_path, six_shards)

    def no_links(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(parts_module.os, "link", no_links)
    making.write()
    rows = [pq.read_metadata(path).num_rows for path in (making.workspace.dataset / "data").rglob("*.parquet")]
    assert sum(rows) == making.counts.selected
