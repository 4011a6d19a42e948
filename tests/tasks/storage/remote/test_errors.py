"""Errors of remote storage are transient or final; those of obstore are raised by real servers."""

import errno
import time
from collections.abc import Callable
from types import SimpleNamespace

import aiohttp
import pytest
import torch
from obstore.store import S3Store

from fineweb_mask.models.errors import WorkspaceError
from fineweb_mask.models.runtime.stopping import StoppedError, clear_stop_request, request_stop
from fineweb_mask.tasks.storage.remote import errors
from fineweb_mask.tasks.storage.remote.errors import (
    RemoteError,
    UnansweredError,
    attempt,
    explain,
    is_transient,
    redacted,
)
from tests.conftest import Bucket
from tests.s3 import SECRET, Proxy, SeaweedServer, free_port

Work = Callable[[S3Store], object]
REQUESTS: dict[str, Work] = {
    "list": lambda store: store.list("x").collect(),
    "head": lambda store: store.head("x"),
    "get": lambda store: store.get("x").bytes(),
    "put": lambda store: store.put("x", b"x"),
    "parts": lambda store: store.put("x", b"x" * 6 * 2**20, use_multipart=True),
    "delete": lambda store: store.delete("x"),
}


def error_of(work: Work, url: str, bucket: str, **options: object) -> Exception:
    """Return what a request raises, of a client that does not repeat it."""
    client = {"allow_http": True, "timeout": "2s"}
    store = S3Store(bucket, endpoint=url, client_options=client, retry_config={"max_retries": 0}, **options)
    with pytest.raises(Exception, match=r".") as caught:
        work(store)
    return caught.value


def explained(work: Work, url: str, bucket: str, **options: object) -> RemoteError:
    """Return what a user is told of what a request raises."""
    return explain("s3://b/x", error_of(work, url, bucket, **options))


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (TimeoutError("slow"), True),
        (torch.OutOfMemoryError("memory"), True),
        (aiohttp.ServerDisconnectedError(), True),
        (aiohttp.ClientPayloadError("cut"), True),
        (UnansweredError(errno.ETIMEDOUT, "no answer"), True),
        (OSError(errno.EIO, "disk"), True),
        (aiohttp.ClientResponseError(SimpleNamespace(real_url="http://x"), (), status=404), False),  # type: ignore[arg-type]
        (RemoteError(errno.EACCES, "refused"), False),
        (ValueError("wrong"), False),
        (OSError(errno.ENOSPC, "full"), False),
        (OSError("no number"), False),
        (KeyboardInterrupt(), False),
        (WorkspaceError("held"), False),
    ],
)
def test_timeouts_and_lost_connections_are_transient_and_refusals_are_not(error: BaseException, passes: bool) -> None:
    assert is_transient(error) == passes


@pytest.mark.parametrize("name", REQUESTS)
def test_a_dead_server_is_transient(name: str, bucket: Bucket) -> None:
    error = error_of(REQUESTS[name], f"http://127.0.0.1:{free_port()}", bucket.name)
    assert is_transient(error)
    assert isinstance(explain("s3://b/x", error), UnansweredError)


@pytest.mark.parametrize(
    ("status", "code", "passes"),
    [
        (503, "SlowDown", True),
        (429, "TooManyRequests", True),
        (400, "NobodyKnowsThisCode", False),
        (403, "AccessDenied", False),
        (501, "NotImplemented", False),
    ],
)
def test_statuses(status: int, code: str, passes: bool, bucket: Bucket, proxy: Proxy) -> None:
    proxy.failing, proxy.refusals = 1.0, [(status, code)]
    found = {name: is_transient(error_of(work, proxy.url, bucket.name)) for name, work in REQUESTS.items()}
    assert found == dict.fromkeys(REQUESTS, passes)


def test_a_connection_that_is_cut_is_transient(bucket: Bucket, proxy: Proxy) -> None:
    bucket.write("x", b"x" * 2**20)
    proxy.cut_after = 2**18
    assert is_transient(error_of(REQUESTS["get"], proxy.url, bucket.name))


@pytest.mark.parametrize("name", ["list", "head", "get"])  # SeaweedFS makes a bucket when it is written to
def test_a_missing_bucket_is_no_transient_error(name: str, bucket: Bucket, seaweed_server: SeaweedServer) -> None:
    for server in (bucket.server, seaweed_server):
        error = explained(REQUESTS[name], server.url, "no-such-bucket")
        assert error.errno == errno.ENOENT
        assert "check its spelling, and the bucket's" in str(error)


@pytest.mark.parametrize("name", REQUESTS)
def test_a_wrong_secret_is_refused_at_once(name: str, seaweed_bucket: Bucket) -> None:
    error = explained(REQUESTS[name], seaweed_bucket.server.url, seaweed_bucket.name, secret_access_key="wrong")
    assert error.errno == errno.EACCES
    assert "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (those of a profile by" in str(error)
    assert "\n" not in str(error)
    assert "Debug" not in str(error)


def test_a_server_without_ranges_is_named(bucket: Bucket, proxy: Proxy) -> None:
    bucket.write("x", b"0123456789")
    proxy.serves_ranges = False
    error = explained(lambda store: store.get_range("x", start=2, length=3), proxy.url, bucket.name)
    assert "the server does not serve parts of files: download it first" in str(error)


def test_requests_are_repeated_and_end_with_the_last_error_and_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(errors, "PATIENCE_SECONDS", 0.5)
    tries = []

    def fail() -> None:
        tries.append(time.monotonic())
        raise ConnectionResetError("reset by the server")

    with pytest.raises(UnansweredError, match=r"^https://h/x: failed .*, last with: reset by the server; check"):
        attempt("https://h/x", fail)
    assert len(tries) > 1
    with pytest.raises(UnansweredError):
        attempt("s3://b/x", fail)  # whose client has repeated it
    assert len(tries) == 3


def test_retries_end_when_the_run_is_stopped() -> None:
    def fail() -> None:
        request_stop()
        raise ConnectionResetError

    with pytest.raises(StoppedError):
        attempt("https://h/x", fail)
    clear_stop_request()


def test_an_error_contains_no_credential(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)

    def fail() -> None:
        raise OSError(errno.EINVAL, f"wrong: {SECRET} at https://u:p@h/x?X-Amz-Signature=abc")

    with pytest.raises(RemoteError) as caught:
        attempt("s3://b/x", fail)
    assert str(caught.value).startswith("s3://b/x: [Errno 22] wrong: *** at https://***@h/x?***: check the URL")
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None
    assert redacted(SECRET) == "***"
