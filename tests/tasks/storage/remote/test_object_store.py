"""Read and write a folder on real S3 servers that fail, are killed and are restarted."""

import hashlib
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fineweb_mask.models.runtime.stopping import StoppedError, clear_stop_request, request_stop
from fineweb_mask.tasks.storage.remote import object_store as store_module
from fineweb_mask.tasks.storage.remote import retries
from fineweb_mask.tasks.storage.remote.errors import RemoteError, UnansweredError
from fineweb_mask.tasks.storage.remote.object_store import Store
from tests.conftest import Bucket
from tests.s3 import SeaweedServer

MIB = 2**20


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The smallest parts that S3 allows."""
    monkeypatch.setattr(store_module, "TRANSFER_BYTES", 5 * MIB)


def test_files_are_uploaded_listed_read_and_deleted(any_bucket: Bucket, tmp_path: Path) -> None:
    bucket = any_bucket
    store = Store(f"{bucket.url}/folder/")
    assert store.sizes() == {}
    (tmp_path / "a").write_bytes(b"first")
    store.upload(tmp_path / "a", "deep/a")
    assert store.sizes() == store.sizes("deep/a") == store.sizes("deep") == {"deep/a": 5}
    assert [store.size(name) for name in ("deep/a", "deep", "b")] == [5, None, None]
    assert bucket.read("folder/deep/a") == b"first"
    bucket.write("folder/deep/a", b"second one")  # no listing is remembered
    assert store.sizes()["deep/a"] == 10
    store.download("deep/a", tmp_path / "b")
    assert (tmp_path / "b").read_bytes() == b"second one"
    store.delete(["deep/a", "never/there"])
    assert bucket.names() == {}


def test_a_name_that_cannot_be_a_path_is_an_error_that_names_it(bucket: Bucket) -> None:
    bucket.write("ws/../b", b"x")
    with pytest.raises(RemoteError, match=r"ws/../b.*: rename or delete this object"):
        Store(f"{bucket.url}/ws").sizes()
    with pytest.raises(RemoteError, match=r"^abc://x cannot be written: give a folder, or a URL of s3://"):
        Store("abc://x")


def test_objects_that_mark_folders_are_no_files(bucket: Bucket) -> None:
    for key in ("ws/", "ws/full/", "ws/full/a", "ws/none"):
        bucket.write(key, b"x" if key.endswith("a") else b"")
    assert set(Store(f"{bucket.url}/ws").sizes()) == {"full/a", "none"}


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
    reach(proxy.url)
    store = Store(f"{bucket.url}/x")
    monkeypatch.setattr(retries, "PATIENCE_SECONDS", 1.0)
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


def test_a_small_file_is_read_and_what_can_be_written_is_tried_without_a_trace(any_bucket: Bucket) -> None:
    store = Store(f"{any_bucket.url}/x")
    any_bucket.write("x/a", b"one")
    assert (store.read("a"), store.read("none")) == (b"one", None)
    store.check_writable()
    assert list(any_bucket.names()) == ["x/a"]
