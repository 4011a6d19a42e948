"""Read and write a folder on a real S3 server that fails, is killed and is restarted."""

import errno
import hashlib
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fineweb_mask.tasks.storage import filesystem, retries
from fineweb_mask.tasks.storage import object_store as store_module
from fineweb_mask.tasks.storage.errors import RemoteError, UnansweredError
from fineweb_mask.tasks.storage.filesystem import FileInfo
from fineweb_mask.tasks.storage.object_store import Store, is_inside
from tests.conftest import Bucket
from tests.s3 import Proxy, S3Server

MIB = 2**20


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The smallest parts that S3 allows."""
    for module in (filesystem, store_module):
        monkeypatch.setattr(module, "TRANSFER_BYTES", 5 * MIB)


@pytest.mark.parametrize("name", ["../x", "a/../../x", "/etc/passwd", "", "./x"])
def test_a_name_that_leads_out_of_the_folder_is_seen(name: str) -> None:
    assert not is_inside(name)
    assert is_inside("a/..b/c.parquet")


def test_files_are_uploaded_listed_read_and_deleted(bucket: Bucket, tmp_path: Path) -> None:
    store = Store(f"{bucket.url}/folder/")
    assert store.list_files() == {}
    (tmp_path / "a").write_bytes(b"first")
    sent = store.upload(tmp_path / "a", "deep/a")
    assert sent.bytes == 5
    assert store.list_files() == {"deep/a": sent}
    assert store.info("deep/a") == sent
    assert store.info("deep") is None or store.info("deep").bytes == 0  # type: ignore[union-attr]
    assert store.info("b") is None
    assert store.read("deep/a") == b"first"
    bucket.write("folder/deep/a", b"second one")  # no listing is remembered
    assert store.list_files()["deep/a"].bytes == 10
    assert store.download("deep/a", tmp_path / "b").bytes == 10
    assert (tmp_path / "b").read_bytes() == b"second one"
    store.delete(["deep/a", "never/there"])
    assert bucket.names() == {}


def test_a_listing_leaves_out_names_that_lead_out_of_the_folder(bucket: Bucket) -> None:
    for key in ("ws/a", "ws/../b", "ws/c/../../d"):
        bucket.write(key, b"x")
    assert set(Store(f"{bucket.url}/ws").list_files()) == {"a"}


def test_errors_for_missing_and_refused_buckets_name_the_remedy(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = time.monotonic()
    with pytest.raises(RemoteError, match=r"s3://no-such-bucket-here/x does not exist .*check its spelling") as caught:
        Store("s3://no-such-bucket-here/x").check()
    assert caught.value.errno == errno.ENOENT
    with pytest.raises(RemoteError, match="does not exist"):
        Store(bucket.url).download("none", Path(os.devnull))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    from s3fs import S3FileSystem

    S3FileSystem.clear_instance_cache()
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(RemoteError, match=r"access denied .*: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"):
        Store(bucket.url).check()
    assert time.monotonic() - started < 10


def big_file(folder: Path) -> Path:
    """Write a file of three parts."""
    path = folder / "big"
    path.write_bytes(b"".join(hashlib.sha256(str(block).encode()).digest() * 2048 for block in range(12 * 16)))
    return path


def test_a_large_file_is_uploaded_in_parts_despite_failures(
    bucket: Bucket, proxy: Proxy, reach: Callable[[str], None], tmp_path: Path
) -> None:
    path = big_file(tmp_path)
    reach(proxy.url)
    store = Store(f"{bucket.url}/x")
    proxy.failing = 0.3
    sent = store.upload(path, "big")
    assert proxy.failed
    proxy.failing = 0.0
    assert sent.bytes == path.stat().st_size
    assert bucket.read("x/big") == path.read_bytes()
    assert sent.version.strip('"').endswith("-3")  # an etag of three parts
    assert bucket.unfinished() == []


def test_an_upload_that_fails_leaves_nothing(
    bucket: Bucket, proxy: Proxy, reach: Callable[[str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = big_file(tmp_path)
    bucket.write("x/big", b"old")
    reach(proxy.url)
    store = Store(f"{bucket.url}/x")
    monkeypatch.setattr(retries, "PATIENCE_SECONDS", 1.0)
    begun = threading.Event()

    def kill_when_begun() -> None:
        for _ in range(1000):
            if bucket.unfinished():
                begun.set()
                break
            time.sleep(0.005)
        proxy.kill()

    killing = threading.Thread(target=kill_when_begun)
    killing.start()
    with pytest.raises(UnansweredError, match="check that the server is up"):
        store.upload(path, "big")
    killing.join()
    assert begun.is_set()
    assert bucket.read("x/big") == b"old"
    proxy.start()
    store.abort_unfinished_uploads()  # what the next run does first
    assert bucket.unfinished() == []
    assert bucket.names() == {"x/big": 3}


def test_uploads_to_other_folders_are_not_aborted(bucket: Bucket) -> None:
    for key in ("x/a", "xy/b"):
        bucket.server.client.create_multipart_upload(Bucket=bucket.name, Key=key)
    Store(f"{bucket.url}/x").abort_unfinished_uploads()
    assert bucket.unfinished() == ["xy/b"]


def test_an_upload_survives_a_restart_of_the_server(reach: Callable[[str], None], tmp_path: Path) -> None:
    path = big_file(tmp_path)
    server = S3Server()
    try:
        server.client.create_bucket(Bucket="restarted")
        reach(server.url)
        store = Store("s3://restarted/x")

        def kill_when_begun() -> None:
            while not server.unfinished("restarted"):
                time.sleep(0.005)
            server.kill()
            server.start()
            server.client.create_bucket(Bucket="restarted")  # moto forgets

        killing = threading.Thread(target=kill_when_begun)
        killing.start()
        # A bucket that is not there is no error that passes: the upload is asked for until it is.
        sent = _until_there(lambda: store.upload(path, "big"))
        killing.join()
        assert sent.bytes == path.stat().st_size
        assert server.read("restarted", "x/big") == path.read_bytes()
        assert server.unfinished("restarted") == []
    finally:
        server.kill()


def _until_there(work: Callable[[], FileInfo]) -> FileInfo:
    for _ in range(50):
        try:
            return work()
        except RemoteError as error:
            if error.errno != errno.ENOENT:
                raise
            time.sleep(0.1)
    raise AssertionError("the bucket did not come back")


def test_conditional_writes(bucket: Bucket) -> None:
    store = Store(f"{bucket.url}/x")
    first = store.write_if_unchanged("lock", b"one", None)
    assert first is not None
    assert store.write_if_unchanged("lock", b"two", None) is None
    assert store.write_if_unchanged("lock", b"two", '"another"') is None
    second = store.write_if_unchanged("lock", b"two", first)
    found = store.read_tagged("lock")
    assert found is not None
    assert (found.content, found.tag) == (b"two", second)
    assert 0 <= found.age < 60
    assert store.read_tagged("none") is None
