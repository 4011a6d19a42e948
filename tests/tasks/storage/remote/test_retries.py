"""Operations on remote storage are retried on transient errors only."""

import errno
import time

import pytest

from fineweb_mask.models.runtime.stopping import StoppedError, clear_stop_request, request_stop
from fineweb_mask.tasks.storage.remote import retries
from fineweb_mask.tasks.storage.remote.errors import RemoteError, UnansweredError, redacted
from fineweb_mask.tasks.storage.remote.object_store import Store
from fineweb_mask.tasks.storage.remote.retries import attempt
from tests.s3 import KEY_ID, SECRET


def test_retries_end_with_the_last_error_and_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "PATIENCE_SECONDS", 0.3)
    tries = []

    def fail() -> None:
        tries.append(time.monotonic())
        raise ConnectionResetError("reset by the server")

    with pytest.raises(UnansweredError, match=r"^s3://b/x: failed for 0 s, last with: reset by the server; check"):
        attempt("s3://b/x", fail)
    assert len(tries) > 1


def test_retries_end_when_the_run_is_stopped() -> None:
    def fail() -> None:
        request_stop()
        raise ConnectionResetError

    with pytest.raises(StoppedError):
        attempt("s3://b/x", fail)
    clear_stop_request()


def test_an_error_contains_no_credential(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)

    def fail() -> None:
        raise OSError(errno.EINVAL, f"wrong: {SECRET} at https://u:p@h/x?X-Amz-Signature=abc")

    with pytest.raises(RemoteError) as caught:
        attempt("s3://b/x", fail)
    assert str(caught.value) == "s3://b/x: [Errno 22] wrong: *** at https://***@h/x?***"
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None
    assert redacted(SECRET) == "***"


def test_no_log_line_contains_a_credential(bucket, proxy, reach, tmp_path, caplog):
    caplog.set_level("INFO")
    reach(proxy.url)
    (tmp_path / "a").write_bytes(b"x")
    proxy.failing = 0.5  # the first two requests fail, its dice are always the same
    Store(f"{bucket.url}/x").upload(tmp_path / "a", "a")
    assert proxy.failed
    assert "remote storage" in caplog.text
    assert SECRET not in caplog.text
    assert KEY_ID not in caplog.text
