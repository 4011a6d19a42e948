"""A workspace on a real S3 server is read and written through copies on this machine."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fineweb_mask.models.errors import StorageError
from fineweb_mask.tasks.storage.atomic import atomic_folder, atomic_write, remove_file, tree_files
from fineweb_mask.tasks.storage.remote import retries
from fineweb_mask.tasks.storage.remote.copies import (
    download_tree,
    ensure_local,
    remote_of,
    upload_order,
)
from fineweb_mask.tasks.storage.remote.errors import RemoteError, UnansweredError
from fineweb_mask.tasks.workspace.manifest import is_whole, read_manifest, write_manifest
from fineweb_mask.tasks.workspace.references import StageKey
from fineweb_mask.tasks.workspace.stage_parquet import current_parquet, stage_file_writer
from fineweb_mask.tasks.workspace.workspace import Workspace
from tests.conftest import Bucket
from tests.s3 import Proxy

KEY = StageKey(stage="numbers", version=1, settings="s", inputs="i")
SCHEMA = pa.schema([pa.field("row", pa.uint32(), nullable=False)])


@pytest.fixture
def workspace(bucket: Bucket) -> Workspace:
    """An empty workspace in the bucket."""
    return Workspace(f"{bucket.url}/deep/ws/")


def write(workspace: Workspace, name: str = "a", rows: int = 3, key: StageKey = KEY) -> Path:
    path = workspace.shard_path("documents", name, key)
    with stage_file_writer(path, SCHEMA, key) as writer:
        writer.write(pa.record_batch([pa.array(range(rows), pa.uint32())], schema=SCHEMA))
        writer.details = {"rows_in": rows}
    return path


def copied(workspace: Workspace) -> set[str]:
    """Return the names of the copies that this process has."""
    return {
        path.relative_to(workspace.root).as_posix()
        for path in tree_files(workspace.root)
        if not any(part.startswith(".") for part in path.relative_to(workspace.root).parts)
    }


def test_copies_are_in_the_cache_folder_or_in_scratch(workspace, bucket, tmp_path, monkeypatch):
    url = f"{bucket.url}/deep/ws"
    assert workspace.root.parent == workspace.here.parent == tmp_path / "cache" / "fineweb-mask"
    assert workspace.root.name.startswith("ws-")
    assert (workspace.url, workspace.address) == (url, url)
    assert workspace.display_path(workspace.dataset) == f"{url}/dataset"
    assert Workspace(f"{bucket.url}/other/ws").root != workspace.root
    assert Workspace(workspace.address).root == workspace.root  # in a job of this process
    local = Workspace(tmp_path / "local")
    assert (local.url, local.address) == (None, str(tmp_path / "local"))
    assert Workspace(f"file://{tmp_path}/local").root == local.root
    assert remote_of(local.root / "a") is None
    assert ensure_local(local.root / "a") == local.root / "a"
    monkeypatch.setenv("FINEWEB_MASK_SCRATCH", str(tmp_path / "node"))  # in a job on another machine
    assert Workspace(f"{bucket.url}/third").root.parent == tmp_path / "node"


def test_a_folder_that_cannot_be_written_is_told_with_the_variable(bucket, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("FINEWEB_MASK_SCRATCH", str(tmp_path / "file"))
    with pytest.raises(StorageError, match=r"FINEWEB_MASK_SCRATCH: .*file, which files of .* give a folder"):
        Workspace(f"{bucket.url}/ws")


def test_what_a_job_writes_of_a_shard_is_only_at_the_url(workspace: Workspace, bucket: Bucket) -> None:
    path = write(workspace)
    assert set(bucket.names()) == {f"deep/ws/documents/{path.name}"}
    assert copied(workspace) == set()


def test_threads_use_a_copy_together(workspace: Workspace, proxy: Proxy, reach: Callable[..., None]) -> None:
    path = write(workspace, rows=20_000)
    reach(proxy.url)
    ready = threading.Barrier(6)

    def read(_: int) -> int:
        ready.wait()
        return int(pq.read_table(ensure_local(path)).num_rows)

    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(read, range(6))) == [20_000] * 6
    assert sum(size for name, size in proxy.sent.items() if name.endswith(path.name)) == path.stat().st_size


def test_a_file_that_never_changes_is_copied_once_and_another_each_time(workspace, proxy, reach, tmp_path):
    names = (f"fitted/model.{KEY.tag}.bin", "fitted/model.json")
    for name in names:
        with atomic_write(workspace.root / name) as partial:
            partial.write_bytes(b"model")
    reach(proxy.url, tmp_path / "fresh")
    fresh = Workspace(workspace.url or "")
    for _ in range(2):
        for name in names:
            assert fresh.local(name).read_bytes() == b"model"
    sent = {name: sum(size for path, size in proxy.sent.items() if path.endswith(name)) for name in names}
    assert sent == {names[0]: len(b"model"), names[1]: 2 * len(b"model")}


def test_a_tree_is_downloaded_without_hidden_files(bucket: Bucket, tmp_path: Path) -> None:
    for name in ("tree/a", "tree/b/c", "tree/.run.json", "tree/.d/e"):
        bucket.write(name, name.encode())
    download_tree(f"{bucket.url}/tree", tmp_path / "here")
    found = {path.relative_to(tmp_path / "here").as_posix(): path.read_text() for path in tree_files(tmp_path / "here")}
    assert found == {"a": "tree/a", "b/c": "tree/b/c"}


def test_what_another_machine_wrote_since_the_listing_is_found(workspace: Workspace, bucket: Bucket) -> None:
    assert workspace.files("documents/*") == workspace.files("fitted/*") == []  # listed
    bucket.write("deep/ws/documents/a.parquet", b"x")
    bucket.write("deep/ws/fitted/encoder/config.json", b"{}")
    assert workspace.local("documents/a.parquet").read_text() == "x"
    assert not workspace.local("documents/b.parquet").exists()
    assert (workspace.local("fitted/encoder") / "config.json").read_text() == "{}"


def test_a_file_is_uploaded_before_it_appears_locally_and_read_as_it_is_at_the_url(workspace, bucket):
    path = workspace.fitted / "a.txt"
    with atomic_write(path) as partial:
        partial.write_text("first")
        assert bucket.names() == {}
    assert bucket.read("deep/ws/fitted/a.txt") == b"first"
    assert ensure_local(path).read_text() == "first"
    bucket.write("deep/ws/fitted/a.txt", b"other")
    assert ensure_local(path).read_text() == "other"
    for name in (".parts/x", "documents/.parts/a/x"):  # they stay on this machine
        with atomic_write(workspace.root / name) as partial:
            partial.write_text("x")
        assert (workspace.root / name).is_file()
    assert list(bucket.names()) == ["deep/ws/fitted/a.txt"]


def test_a_file_that_cannot_be_uploaded_does_not_appear_locally(workspace, bucket, proxy, reach, monkeypatch):
    monkeypatch.setitem(retries.OF_OBJECT_STORES, "max_retries", 1)
    reach(proxy.url)
    workspace = Workspace(workspace.url or "")
    write(workspace, rows=3)
    before = bucket.names()
    proxy.kill()
    with pytest.raises(UnansweredError):
        write(workspace, rows=4)
    with pytest.raises(UnansweredError), atomic_write(workspace.fitted / "model.bin") as partial:
        partial.touch()
    assert bucket.names() == before
    assert copied(workspace) == set()


def test_a_fresh_machine_sees_what_is_current_without_downloading_it(workspace, bucket, proxy, reach, tmp_path):
    path = write(workspace, rows=200_000)
    bucket.write("deep/ws/run.json", b"of a run")
    wanted = current_parquet(workspace, path, "a", KEY)
    assert wanted is not None
    reach(proxy.url, tmp_path / "fresh")
    fresh = Workspace(workspace.url or "")
    with fresh.in_use():
        path = fresh.shard_path("documents", "a", KEY)
        assert current_parquet(fresh, path, "a", KEY) == wanted
        assert current_parquet(fresh, path, "a", replace(KEY, settings="t")) is None
        assert current_parquet(fresh, fresh.shard_path("documents", "b", KEY), "b", KEY) is None
        places = {name: fresh.exists(fresh.root / name) for name in (f"documents/{path.name}", "documents", "masks")}
        assert list(places.values()) == [True, True, False]
        size = bucket.names()[f"deep/ws/documents/{path.name}"]
        assert 0 < sum(proxy.sent[name] for name in proxy.sent if name.endswith(path.name)) < size / 2
        assert not path.exists()
        assert fresh.local(wanted.path) == path
        assert path.read_bytes() == bucket.read(f"deep/ws/documents/{path.name}")


def test_the_url_is_the_truth(workspace: Workspace, bucket: Bucket) -> None:
    paths = {name: ensure_local(write(workspace, name)) for name in ("kept", "deleted", "overwritten")}
    bucket.server.client.delete_object(Bucket=bucket.name, Key=f"deep/ws/documents/{paths['deleted'].name}")
    bucket.write(f"deep/ws/documents/{paths['overwritten'].name}", b"something else")
    found = {name: current_parquet(workspace, path, name, KEY) for name, path in paths.items()}
    assert {name for name, file in found.items() if file is not None} == {"kept"}
    assert workspace.sizes("documents").keys() == {f"documents/{paths[name].name}" for name in ("kept", "overwritten")}


def test_a_fitted_folder_is_downloaded_complete_or_fitted_again(workspace, bucket, reach, tmp_path):
    folder, manifest = workspace.fitted / "encoder", workspace.fitted / "encoder.json"
    for content in ("first", "other"):
        with atomic_folder(folder) as partial:
            for name in ("a/weights", "modules.json"):
                (partial / name).parent.mkdir(exist_ok=True)
                (partial / name).write_text(content)
        write_manifest(manifest, KEY, tree_files(folder), {})
        if content == "first":
            (folder / "more").write_text("x")
    assert set(bucket.names()) == {
        f"deep/ws/fitted/{name}" for name in ("encoder.json", "encoder/a/weights", "encoder/modules.json")
    }
    for machine, weights in (("fresh", "mixed"), ("fresher", "other")):  # in as many bytes: of a run that was killed
        bucket.write("deep/ws/fitted/encoder/a/weights", weights.encode())
        reach(bucket.server.url, tmp_path / machine)
        fresh = Workspace(workspace.url or "")
        assert fresh.files("fitted/*.json") == [fresh.fitted / "encoder.json"]
        found = read_manifest(fresh.fitted / "encoder.json")
        assert found is not None
        assert is_whole(fresh.fitted / "encoder.json", found, download=True) == (weights == "other")
    assert ensure_local(fresh.fitted / "encoder" / "a" / "weights").read_text() == "other"
    remove_file(fresh.fitted / "encoder.json")
    assert "deep/ws/fitted/encoder.json" not in bucket.names()
    assert read_manifest(fresh.fitted / "encoder.json") is None


def test_a_server_that_does_not_answer_is_not_an_empty_workspace(workspace, proxy, reach, tmp_path, monkeypatch):
    path = write(workspace)
    write_manifest(workspace.fitted / "a.json", KEY, [], {})
    monkeypatch.setitem(retries.OF_OBJECT_STORES, "max_retries", 1)
    reach(proxy.url, tmp_path / "fresh")
    fresh = Workspace(workspace.url or "")
    proxy.kill()
    with pytest.raises(RemoteError):
        current_parquet(fresh, fresh.shard_path("documents", path.name.split(".")[0], KEY), "a", KEY)
    with pytest.raises(RemoteError):
        read_manifest(fresh.fitted / "a.json")
    with pytest.raises(RemoteError), fresh.in_use():
        pass


def test_machines_see_each_other_s_records(bucket, reach, tmp_path):
    machines = []
    for name in ("one", "other"):
        reach(bucket.server.url, tmp_path / name)
        machines.append(Workspace(f"{bucket.url}/shared"))
    one, other = machines
    write_manifest(one.fitted / "a.json", KEY, [], {})
    assert read_manifest(other.fitted / "a.json") is not None
    remove_file(one.fitted / "a.json")
    with other.alone():
        assert read_manifest(other.fitted / "a.json") is None


def test_index_files_are_uploaded_last(tmp_path: Path) -> None:
    for name in ("README.md", "provenance.json", "data-1/README.md", "plots/a.png", "a.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    names = [path.relative_to(tmp_path).as_posix() for path in upload_order(tmp_path)]
    assert names == ["data-1/README.md", "plots/a.png", "a.txt", "provenance.json", "README.md"]
