"""Files at a URL, on a real S3 server that fails, is killed and is started again."""

import errno
import hashlib
import io
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import aiohttp
import botocore.exceptions
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from models.stopping import StoppedError, allow_work, request_stop
from tasks import remote
from tasks.remote import (
    ChangedError,
    RemoteError,
    RemoteFile,
    Store,
    Stored,
    UnansweredError,
    attempt,
    is_inside,
    is_transient,
    redacted,
)
from tests.conftest import Bucket
from tests.s3 import KEY_ID, SECRET, Proxy, S3Server

MIB = 2**20


def answered(status: int, code: str = "") -> botocore.exceptions.ClientError:
    response = {"Error": {"Code": code, "Message": "m"}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return botocore.exceptions.ClientError(response, "GetObject")


def translated(error: Exception, number: int) -> OSError:
    """Return an error as s3fs hands on a client's."""
    found = OSError(number, "translated")
    found.__cause__ = error
    return found


@pytest.mark.parametrize(
    "error",
    [
        translated(answered(500, "InternalError"), errno.EREMOTEIO),
        translated(answered(503, "SlowDown"), errno.EBUSY),
        translated(answered(429, "TooManyRequests"), errno.EIO),
        translated(answered(400, "RequestTimeout"), errno.EINVAL),
        botocore.exceptions.EndpointConnectionError(endpoint_url="http://x"),
        botocore.exceptions.ReadTimeoutError(endpoint_url="http://x"),
        botocore.exceptions.IncompleteReadError(actual_bytes=1, expected_bytes=2),
        aiohttp.ServerDisconnectedError(),
        aiohttp.ClientPayloadError("cut"),
        UnansweredError(errno.ETIMEDOUT, "no answer"),
    ],
)
def test_throttling_timeouts_and_server_errors_are_transient(error: Exception) -> None:
    assert is_transient(error)


@pytest.mark.parametrize(
    "error",
    [
        translated(answered(403, "AccessDenied"), errno.EACCES),
        translated(answered(404, "NoSuchKey"), errno.ENOENT),
        translated(answered(400, "NobodyKnowsThisCode"), errno.EIO),
        translated(answered(412, "PreconditionFailed"), errno.EINVAL),
        translated(answered(501, "NotImplemented"), errno.ENOSYS),
        botocore.exceptions.NoCredentialsError(),
        aiohttp.ClientResponseError(SimpleNamespace(real_url="http://x"), (), status=404),  # type: ignore[arg-type]
        ChangedError(errno.EINVAL, "changed"),
        RemoteError(errno.EACCES, "refused"),
    ],
)
def test_refusals_are_not_transient(error: Exception) -> None:
    assert not is_transient(error)


def test_patience_ends_with_what_was_wrong_and_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "PATIENCE_SECONDS", 0.3)
    tries = []

    def fail() -> None:
        tries.append(time.monotonic())
        raise translated(answered(503, "SlowDown"), errno.EBUSY)

    with pytest.raises(UnansweredError, match=r"^s3://b/x: failed for 0 s, at last with: .*translated; see whether"):
        attempt("s3://b/x", fail)
    assert len(tries) > 1


def test_other_errors_pass_unchanged_and_at_once() -> None:
    def fail() -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        attempt("s3://b/x", fail)


def test_waiting_ends_when_the_run_is_stopped() -> None:
    def fail() -> None:
        request_stop()
        raise ConnectionResetError

    try:
        with pytest.raises(StoppedError):
            attempt("s3://b/x", fail)
    finally:
        allow_work()


def test_an_error_does_not_hold_a_credential(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)

    def fail() -> None:
        raise OSError(errno.EINVAL, f"wrong: {SECRET} at https://u:p@h/x?X-Amz-Signature=abc")

    with pytest.raises(RemoteError) as caught:
        attempt("s3://b/x", fail)
    assert str(caught.value) == "s3://b/x: [Errno 22] wrong: *** at https://***@h/x?***"
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None
    assert redacted(SECRET) == "***"


@pytest.mark.parametrize("name", ["../x", "a/../../x", "/etc/passwd", "", "./x"])
def test_a_name_that_leads_out_of_the_folder_is_seen(name: str) -> None:
    assert not is_inside(name)
    assert is_inside("a/..b/c.parquet")


def test_files_go_to_and_come_from_a_store(bucket: Bucket, tmp_path: Path) -> None:
    store = Store(f"{bucket.url}/folder/")
    assert store.listed() == {}
    (tmp_path / "a").write_bytes(b"first")
    sent = store.upload(tmp_path / "a", "deep/a")
    assert sent.bytes == 5
    assert store.listed() == {"deep/a": sent}
    assert store.info("deep/a") == sent
    assert store.info("deep") is None or store.info("deep").bytes == 0  # type: ignore[union-attr]
    assert store.info("b") is None
    assert store.read("deep/a") == b"first"
    bucket.write("folder/deep/a", b"second one")  # no listing is remembered
    assert store.listed()["deep/a"].bytes == 10
    assert store.download("deep/a", tmp_path / "b").bytes == 10
    assert (tmp_path / "b").read_bytes() == b"second one"
    store.delete(["deep/a", "never/there"])
    assert bucket.names() == {}


def test_a_listing_leaves_out_names_that_lead_out_of_the_folder(bucket: Bucket) -> None:
    for key in ("ws/a", "ws/../b", "ws/c/../../d"):
        bucket.write(key, b"x")
    assert set(Store(f"{bucket.url}/ws").listed()) == {"a"}


def test_what_is_not_there_or_refused_says_what_to_do(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    started = time.monotonic()
    with pytest.raises(RemoteError, match=r"s3://no-such-bucket-here/x is not there .*look at its spelling") as caught:
        Store("s3://no-such-bucket-here/x").check()
    assert caught.value.errno == errno.ENOENT
    with pytest.raises(RemoteError, match="is not there"):
        Store(bucket.url).download("none", Path(os.devnull))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    from s3fs import S3FileSystem

    S3FileSystem.clear_instance_cache()
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(RemoteError, match=r"access is refused .*: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"):
        Store(bucket.url).check()
    assert time.monotonic() - started < 10


def test_an_unknown_protocol_is_named() -> None:
    with pytest.raises(RemoteError, match=r"^abc://x: Protocol not known: abc"):
        Store("abc://x")


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The smallest parts that S3 allows."""
    monkeypatch.setattr(remote, "TRANSFER_BYTES", 5 * MIB)


def big_file(folder: Path) -> Path:
    """Write a file of three parts."""
    path = folder / "big"
    path.write_bytes(b"".join(hashlib.sha256(str(block).encode()).digest() * 2048 for block in range(12 * 16)))
    return path


def test_a_large_file_is_sent_in_parts_through_failures(
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
    monkeypatch.setattr(remote, "PATIENCE_SECONDS", 1.0)
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
    with pytest.raises(UnansweredError, match="see whether the server is up"):
        store.upload(path, "big")
    killing.join()
    assert begun.is_set()
    assert bucket.read("x/big") == b"old"
    proxy.start()
    store.abort_unfinished()  # what the next run does first
    assert bucket.unfinished() == []
    assert bucket.names() == {"x/big": 3}


def test_the_uploads_of_other_folders_are_let_be(bucket: Bucket) -> None:
    for key in ("x/a", "xy/b"):
        bucket.server.client.create_multipart_upload(Bucket=bucket.name, Key=key)
    Store(f"{bucket.url}/x").abort_unfinished()
    assert bucket.unfinished() == ["xy/b"]


def test_a_server_killed_in_the_middle_of_an_upload_and_started_again(
    reach: Callable[[str], None], tmp_path: Path
) -> None:
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


def _until_there(work: Callable[[], Stored]) -> Stored:
    for _ in range(50):
        try:
            return work()
        except RemoteError as error:
            if error.errno != errno.ENOENT:
                raise
            time.sleep(0.1)
    raise AssertionError("the bucket did not come back")


def test_a_server_killed_in_the_middle_of_reading_and_started_again(reach: Callable[[str], None]) -> None:
    content = os.urandom(6 * MIB)
    server = S3Server()
    try:
        server.client.create_bucket(Bucket="restarted")
        server.client.put_object(Bucket="restarted", Key="a", Body=content)
        reach(server.url)
        with RemoteFile("s3://restarted/a") as file:
            first = file.read(2 * MIB)
            server.kill()
            starting = threading.Timer(1.0, server.start)
            starting.start()
            starting.join()
            server.client.create_bucket(Bucket="restarted")
            server.client.put_object(Bucket="restarted", Key="a", Body=content)
            rest = file.read()
        assert first + rest == content
    finally:
        server.kill()


def test_a_connection_cut_in_a_range_is_made_again(bucket: Bucket, proxy: Proxy, reach: Callable[[str], None]) -> None:
    content = os.urandom(3 * MIB)
    bucket.write("a", content)
    reach(proxy.url)
    with RemoteFile(f"{bucket.url}/a") as file:
        start = file.read(MIB)
        proxy.cut_after = MIB // 2
        rest = file.read(2 * MIB)
    assert proxy.cuts == 1
    assert start + rest == content


def test_a_file_is_read_by_ranges(bucket: Bucket, proxy: Proxy, reach: Callable[[str], None]) -> None:
    table = pa.table({"row": pa.array(range(1000)), "text": pa.array([os.urandom(500).hex() for _ in range(1000)])})
    buffer = io.BytesIO()
    pq.write_table(table, buffer)
    bucket.write("a.parquet", buffer.getvalue())
    reach(proxy.url)
    with RemoteFile(f"{bucket.url}/a.parquet") as file:
        assert pq.read_metadata(file).num_rows == 1000
        assert pq.read_table(file, columns=["row"])["row"].to_pylist() == list(range(1000))
    assert sum(proxy.sent.values()) < len(buffer.getvalue()) / 2
    with RemoteFile(f"{bucket.url}/a.parquet") as file:
        assert pq.read_table(file).equals(table)
        assert file.seek(-4, os.SEEK_END) == len(buffer.getvalue()) - 4
        assert file.read() == b"PAR1"
        assert file.read() == b""
        file.seek(0)
        assert file.read(2) + file.read(2) == b"PAR1"


def test_a_file_overwritten_while_it_is_read_is_noticed(bucket: Bucket) -> None:
    bucket.write("a", b"old" * MIB)
    with RemoteFile(f"{bucket.url}/a") as file:
        file.read(10)
        bucket.write("a", b"new" * MIB)
        with pytest.raises(ChangedError, match="/a was changed while it was read"):
            file.read(10)
    with pytest.raises(ChangedError, match="/a was changed"):
        RemoteFile(f"{bucket.url}/a", Stored(3 * MIB, "another"))


def test_a_file_is_written_on_condition(bucket: Bucket) -> None:
    store = Store(f"{bucket.url}/x")
    first = store.write_if("lock", b"one", None)
    assert first is not None
    assert store.write_if("lock", b"two", None) is None
    assert store.write_if("lock", b"two", '"another"') is None
    second = store.write_if("lock", b"two", first)
    found = store.tagged("lock")
    assert found is not None
    assert (found.content, found.tag) == (b"two", second)
    assert 0 <= found.age < 60
    assert store.tagged("none") is None


def test_nothing_that_is_logged_holds_a_credential(
    bucket: Bucket, proxy: Proxy, reach: Callable[[str], None], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    reach(proxy.url)
    proxy.failing = 0.35
    (tmp_path / "a").write_bytes(b"x")
    store = Store(f"{bucket.url}/x")
    for name in ("a", "b", "c"):
        store.upload(tmp_path / "a", name)
    assert "remote storage" in caplog.text
    assert SECRET not in caplog.text
    assert KEY_ID not in caplog.text
