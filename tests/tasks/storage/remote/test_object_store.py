"""Read and write a folder on real S3 servers that fail, are killed and are restarted."""

import hashlib
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from fineweb_mask.models.runtime.stopping import StoppedError, clear_stop_request, request_stop
from fineweb_mask.tasks.storage.remote import object_store as store_module
from fineweb_mask.tasks.storage.remote import retries
from fineweb_mask.tasks.storage.remote.errors import RemoteError, UnansweredError
from fineweb_mask.tasks.storage.remote.object_store import Store
from tests.conftest import Bucket
from tests.s3 import SeaweedServer, free_port

MIB = 2**20
NAMES = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")


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
    assert store.sizes() == store.sizes("deep") == {"deep/a": 5}
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
    with pytest.raises(RemoteError, match=r"ws/../b"):
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
    monkeypatch.setitem(retries.OF_OBJECT_STORES, "max_retries", 1)
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


def test_a_small_file_is_read_and_what_can_be_written_is_tried_without_a_trace(any_bucket: Bucket) -> None:
    store = Store(f"{any_bucket.url}/x")
    any_bucket.write("x/a", b"one")
    assert (store.read("a"), store.read("none")) == (b"one", None)
    store.check_writable()
    assert list(any_bucket.names()) == ["x/a"]


@pytest.fixture
def without_keys(monkeypatch: pytest.MonkeyPatch, seaweed_bucket: Bucket) -> Bucket:
    """A bucket of a server that checks signatures, and an environment without credentials."""
    for name in NAMES:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", f"http://127.0.0.1:{free_port()}")  # this is no machine of Amazon's
    return seaweed_bucket


def test_without_credentials_the_error_names_the_variables(without_keys: Bucket) -> None:
    with pytest.raises(RemoteError, match=r"access denied .*: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"):
        Store(without_keys.url).sizes()


def test_a_public_bucket_is_read_without_credentials(without_keys: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    client = without_keys.server.client
    with suppress(client.exceptions.ClientError):
        client.create_bucket(Bucket="public")
    client.put_object(Bucket="public", Key="a", Body=b"x")
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
    assert set(Store("s3://public").sizes()) == {"a"}
    with pytest.raises(RemoteError, match="access denied"):
        Store(without_keys.url).sizes()


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
