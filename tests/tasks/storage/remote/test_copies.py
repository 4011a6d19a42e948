"""A folder and a workspace on real S3 servers, which fail, are killed and restarted, are read and written."""

import hashlib
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from fineweb_mask.models.errors import StorageError
from fineweb_mask.models.runtime.stopping import StoppedError, clear_stop_request, request_stop
from fineweb_mask.tasks.storage.atomic import atomic_folder, atomic_write, remove_file, tree_files
from fineweb_mask.tasks.storage.remote import copies, errors
from fineweb_mask.tasks.storage.remote.copies import Store, download_tree, ensure_local, remote_of, upload_order
from fineweb_mask.tasks.storage.remote.errors import RemoteError, UnansweredError
from fineweb_mask.tasks.workspace.listing import find_file
from fineweb_mask.tasks.workspace.manifest import is_whole, read_manifest, write_manifest
from fineweb_mask.tasks.workspace.stage_parquet import stage_file_writer
from fineweb_mask.tasks.workspace.workspace import Workspace
from tests.conftest import Bucket
from tests.s3 import SeaweedServer, free_port
from tests.tasks.stage_files import KEY

SCHEMA = pa.schema([pa.field("row", pa.uint32(), nullable=False)])
MIB = 2**20


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The smallest parts that S3 allows."""
    monkeypatch.setattr(copies, "TRANSFER_BYTES", 5 * MIB)


@pytest.fixture
def workspace(bucket: Bucket) -> Workspace:
    """An empty workspace in the bucket."""
    return Workspace(f"{bucket.url}/deep/ws/")


@pytest.fixture
def another_machine(bucket, reach, tmp_path):
    """Return the function that opens the workspace on a machine of this name, through the server of this URL."""

    def opened(name: str, url: str = bucket.server.url) -> Workspace:
        reach(url, tmp_path / name)
        return Workspace(f"{bucket.url}/deep/ws")

    return opened


def write(workspace: Workspace, name: str = "a", rows: int = 3) -> Path:
    path = workspace.shard_path("documents", name, KEY)
    with stage_file_writer(path, SCHEMA, KEY) as writer:
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


def test_files_are_uploaded_listed_read_and_deleted(any_bucket: Bucket, tmp_path: Path) -> None:
    bucket = any_bucket
    store = Store(f"{bucket.url}/folder/")
    store.check_writable()
    assert bucket.names() == store.sizes() == {}
    (tmp_path / "a").write_bytes(b"first")
    store.upload(tmp_path / "a", "deep/a")
    assert store.sizes() == store.sizes("deep") == {"deep/a": 5}
    assert [store.size(name) for name in ("deep/a", "deep", "b")] == [5, None, None]
    assert bucket.read("folder/deep/a") == b"first"
    bucket.write("folder/deep/a", b"second one")  # no listing is remembered
    assert store.sizes()["deep/a"] == 10
    assert (store.read("deep/a"), store.read("none")) == (b"second one", None)
    store.download("deep/a", tmp_path / "b")
    assert (tmp_path / "b").read_bytes() == b"second one"
    store.delete(["deep/a", "never/there"])
    assert bucket.names() == {}


def test_what_marks_a_folder_or_is_hidden_is_no_file_and_a_name_that_cannot_be_a_path_is_an_error(bucket, tmp_path):
    for key in ("ws/", "ws/full/", "ws/full/a", "ws/none", "ws/.run.json", "ws/.d/e"):
        bucket.write(key, b"" if key.endswith(("/", "none")) else b"x")
    assert set(Store(f"{bucket.url}/ws").sizes()) == {"full/a", "none"}
    download_tree(f"{bucket.url}/ws", tmp_path / "here")
    assert [path.relative_to(tmp_path / "here").as_posix() for path in tree_files(tmp_path / "here")] == [
        "full/a",
        "none",
    ]
    bucket.write("ws/../b", b"x")
    with pytest.raises(RemoteError, match=r"ws/../b"):
        Store(f"{bucket.url}/ws").sizes()
    with pytest.raises(RemoteError, match=r"^abc://x cannot be written: give a folder, or a URL of s3://"):
        Store("abc://x")


def test_errors_for_missing_buckets_and_files_name_the_remedy(any_bucket: Bucket) -> None:
    started = time.monotonic()
    with pytest.raises(RemoteError, match=r"s3://no-such-bucket-here/x does not exist .*check its spelling"):
        Store("s3://no-such-bucket-here/x").sizes()
    with pytest.raises(RemoteError, match="does not exist"):
        Store(any_bucket.url).download("none", Path(os.devnull))
    assert time.monotonic() - started < 5


def big_file(folder: Path) -> Path:
    """Write a file of three parts."""
    path = folder / "big"
    path.write_bytes(b"".join(hashlib.sha256(str(block).encode()).digest() * 2048 for block in range(12 * 16)))
    return path


def test_a_large_file_is_uploaded_in_parts_despite_failures(bucket, proxy, reach, tmp_path):
    path = big_file(tmp_path)
    reach(proxy.url)
    store = Store(f"{bucket.url}/x")
    proxy.failing = 0.3
    store.upload(path, "big")
    assert proxy.failed
    proxy.failing = 0.0
    assert bucket.read("x/big") == path.read_bytes()
    etag = bucket.server.client.head_object(Bucket=bucket.name, Key="x/big")["ETag"]
    assert etag.strip('"').endswith("-3")  # of three parts
    assert bucket.unfinished() == []


def test_an_upload_that_fails_leaves_nothing(bucket, proxy, reach, tmp_path, monkeypatch):
    path = big_file(tmp_path)
    bucket.write("x/big", b"old")
    monkeypatch.setitem(errors.OF_OBJECT_STORES, "max_retries", 1)
    reach(proxy.url)
    store = Store(f"{bucket.url}/x")
    proxy.failing, proxy.refused_parts = 1.0, 2
    with pytest.raises(UnansweredError, match="check that the server is up"):
        store.upload(path, "big")
    assert proxy.failed
    assert bucket.read("x/big") == b"old"
    assert bucket.unfinished() == []
    assert bucket.names() == {"x/big": 3}


@pytest.mark.long
def test_an_upload_and_a_download_survive_a_killed_server(reach: Callable[[str], None], tmp_path: Path) -> None:
    path = big_file(tmp_path)
    server = SeaweedServer(tmp_path / "server")
    try:
        server.client.create_bucket(Bucket="restarted")
        reach(server.url)
        store = Store("s3://restarted/x")
        store.upload(path, "kept")
        killed = threading.Event()

        def kill_when_begun() -> None:
            while not server.unfinished("restarted"):
                time.sleep(0.002)
            server.kill()
            killed.set()
            server.start()

        killing = threading.Thread(target=kill_when_begun)
        killing.start()
        store.upload(path, "big")
        killing.join()
        assert killed.is_set()
        assert store.sizes() == dict.fromkeys(("big", "kept"), path.stat().st_size)
        for name in ("big", "kept"):
            store.download(name, tmp_path / name)
            assert (tmp_path / name).read_bytes() == path.read_bytes()
    finally:
        server.kill()


def test_a_stop_is_heard_during_a_download(bucket: Bucket, tmp_path: Path) -> None:
    store = Store(f"{bucket.url}/x")
    store.upload(big_file(tmp_path), "big")
    request_stop()
    with pytest.raises(StoppedError):
        store.download("big", tmp_path / "copy")
    clear_stop_request()


def test_without_credentials_the_error_names_the_variables_and_a_public_bucket_is_read(seaweed_bucket, monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", f"http://127.0.0.1:{free_port()}")  # this is no machine of Amazon's
    with pytest.raises(RemoteError, match=r"access denied .*: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"):
        Store(seaweed_bucket.url).sizes()
    client = seaweed_bucket.server.client
    with suppress(client.exceptions.ClientError):
        client.create_bucket(Bucket="public")
    client.put_object(Bucket="public", Key="a", Body=b"x")
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
    assert set(Store("s3://public").sizes()) == {"a"}
    with pytest.raises(RemoteError, match="access denied"):
        Store(seaweed_bucket.url).sizes()


@pytest.mark.parametrize(
    ("variables", "url", "message"),
    [
        (
            {"AWS_ENDPOINT_URL": "127.0.0.1:9000"},
            "s3://b",
            r"AWS_ENDPOINT_URL=127\.0\.0\.1:9000 must begin with https://",
        ),
        ({"AWS_CA_BUNDLE": "/none/such.pem"}, "s3://b", r"/none/such\.pem"),
        ({}, "s3:///x", r"names no bucket: give s3://bucket/folder"),
        ({}, "az://container/x", r"az://container/x: .*AZURE_STORAGE_ACCOUNT_NAME"),
    ],
)
def test_what_no_store_can_be_opened_with_is_named(variables, url, message, monkeypatch, reach):
    reach("http://127.0.0.1:9000")
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(RemoteError, match=message):
        Store(url)


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
    (tmp_path / "file").touch()
    monkeypatch.setenv("FINEWEB_MASK_SCRATCH", str(tmp_path / "file"))
    with pytest.raises(StorageError, match=r"FINEWEB_MASK_SCRATCH: .*file, which files of .* give a folder"):
        Workspace(f"{bucket.url}/ws")


def test_a_file_that_never_changes_is_copied_once_for_all_threads_and_another_each_time(
    workspace, proxy, another_machine
):
    names, content = (f"fitted/model.{KEY.tag}.bin", "fitted/model.json"), bytes(2 * MIB)
    for name in names:
        with atomic_write(workspace.root / name) as partial:
            partial.write_bytes(content)
    fresh, ready = another_machine("fresh", proxy.url), threading.Barrier(6)

    def read(_: int) -> bytes:
        ready.wait()
        return bytes(fresh.local(names[0]).read_bytes())

    with ThreadPoolExecutor(6) as pool:
        assert set(pool.map(read, range(6))) == {content}
    for _ in range(2):
        assert fresh.local(names[1]).read_bytes() == content
    sent = {name: sum(size for path, size in proxy.sent.items() if path.endswith(name)) for name in names}
    assert sent == {names[0]: len(content), names[1]: 2 * len(content)}


def test_the_url_is_the_truth(workspace: Workspace, bucket: Bucket) -> None:
    assert workspace.files("documents/*") == workspace.files("fitted/*") == []  # listed
    paths = {name: write(workspace, name) for name in ("kept", "deleted", "overwritten")}
    assert set(bucket.names()) == {f"deep/ws/documents/{path.name}" for path in paths.values()}
    assert copied(workspace) == set()  # what a job writes of a shard is only at the URL
    for path in paths.values():
        ensure_local(path)
    bucket.server.client.delete_object(Bucket=bucket.name, Key=f"deep/ws/documents/{paths['deleted'].name}")
    bucket.write(f"deep/ws/documents/{paths['overwritten'].name}", b"something else")
    found = {name: find_file(workspace, "documents", name, KEY) for name in paths}
    assert {name for name, file in found.items() if file is not None} == {"kept"}
    assert workspace.sizes("documents").keys() == {f"documents/{paths[name].name}" for name in ("kept", "overwritten")}
    bucket.write("deep/ws/documents/a.parquet", b"x")  # another machine's
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


def test_a_server_that_does_not_answer_is_not_an_empty_workspace_and_what_is_not_uploaded_does_not_appear(
    workspace, bucket, proxy, another_machine, monkeypatch
):
    write(workspace)
    write_manifest(workspace.fitted / "a.json", KEY, [], {})
    before = bucket.names()
    monkeypatch.setitem(errors.OF_OBJECT_STORES, "max_retries", 1)
    fresh = another_machine("fresh", proxy.url)
    proxy.kill()
    with pytest.raises(RemoteError):
        find_file(fresh, "documents", "a", KEY)
    with pytest.raises(RemoteError):
        read_manifest(fresh.fitted / "a.json")
    with pytest.raises(RemoteError), fresh.in_use():
        pass
    with pytest.raises(UnansweredError):
        write(fresh, rows=4)
    with pytest.raises(UnansweredError), atomic_write(fresh.fitted / "model.bin") as partial:
        partial.touch()
    assert bucket.names() == before
    assert copied(fresh) == set()


def test_a_fresh_machine_sees_what_is_current_without_downloading_it(workspace, bucket, proxy, another_machine):
    write(workspace, rows=200_000)
    bucket.write("deep/ws/run.json", b"of a run")
    wanted = find_file(workspace, "documents", "a", KEY)
    assert wanted is not None
    fresh = another_machine("fresh", proxy.url)
    with fresh.in_use():
        path = fresh.shard_path("documents", "a", KEY)
        assert find_file(fresh, "documents", "a", KEY) == wanted
        assert find_file(fresh, "documents", "a", replace(KEY, settings="t")) is None
        assert find_file(fresh, "documents", "b", KEY) is None
        assert [list(fresh.sizes(name)) for name in ("documents", "masks")] == [[f"documents/{path.name}"], []]
        size = bucket.names()[f"deep/ws/documents/{path.name}"]
        assert 0 < sum(proxy.sent[name] for name in proxy.sent if name.endswith(path.name)) < size / 2
        assert not path.exists()
        assert fresh.local(wanted.path) == path
        assert path.read_bytes() == bucket.read(f"deep/ws/documents/{path.name}")


def test_a_fitted_folder_is_downloaded_complete_or_fitted_again(workspace, bucket, another_machine):
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
        fresh = another_machine(machine)
        assert fresh.files("fitted/*.json") == [fresh.fitted / "encoder.json"]
        found = read_manifest(fresh.fitted / "encoder.json")
        assert found is not None
        assert is_whole(fresh.fitted / "encoder.json", found) == (weights == "other")
    assert ensure_local(fresh.fitted / "encoder" / "a" / "weights").read_text() == "other"
    remove_file(fresh.fitted / "encoder.json")
    assert "deep/ws/fitted/encoder.json" not in bucket.names()
    with workspace.alone():  # the machine that wrote it sees it, too
        assert read_manifest(manifest) is None


def test_index_files_are_uploaded_last(tmp_path: Path) -> None:
    for name in ("README.md", "provenance.json", "data-1/README.md", "plots/a.png", "a.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    names = [path.relative_to(tmp_path).as_posix() for path in upload_order(tmp_path)]
    assert names == ["data-1/README.md", "plots/a.png", "a.txt", "provenance.json", "README.md"]
