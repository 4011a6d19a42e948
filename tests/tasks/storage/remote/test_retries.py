"""Operations on remote storage are retried on transient errors only."""

import errno
import time

import pytest

from fineweb_mask.models.runtime.stopping import StoppedError, clear_stop_request, request_stop
from fineweb_mask.tasks.storage.remote import retries
from fineweb_mask.tasks.storage.remote.errors import RemoteError, UnansweredError, redacted
from fineweb_mask.tasks.storage.remote.retries import attempt
from tests.s3 import SECRET


def test_requests_are_repeated_and_end_with_the_last_error_and_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "PATIENCE_SECONDS", 0.5)
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
