"""Retry operations on remote storage with exponential backoff and jitter.

Guarantees: transient errors (throttling, timeouts, lost connections, 5xx) are retried for `PATIENCE_SECONDS`. Other
errors fail at once with a remedy. No error and no log line of this module contains a credential.
"""

import logging
import time
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from tenacity import RetryCallState, Retrying, retry_if_exception, stop_after_delay, wait_random_exponential

from fineweb_mask.models.runtime.stopping import raise_if_stopped
from fineweb_mask.tasks.storage.errors import RemoteError, explain, is_storage_error, is_transient

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

PATIENCE_SECONDS = 300.0
"""Longest time to retry one operation: enough for a server to restart."""

BRIEF_SECONDS = 5.0
"""Longest time to retry an operation that may fail, such as releasing a lock that also expires."""

LONGEST_WAIT_SECONDS = 15.0

_log = logging.getLogger(__name__)


def attempt(
    url: str, work: Callable[Parameters, Result], *args: Parameters.args, **kwargs: Parameters.kwargs
) -> Result:
    """Return the result of `work(*args, **kwargs)`, retrying it on transient errors.

    Raises
    ------
    RemoteError
        If it fails with another error of storage; `errno` is ENOENT for a missing file, EACCES for denied access.
    UnansweredError
        If it still fails after `PATIENCE_SECONDS`.
    """
    return _attempt(PATIENCE_SECONDS, url, lambda: work(*args, **kwargs))


def attempt_briefly(url: str, work: Callable[[], Result]) -> Result:
    """Return the result of `work()`, retrying it like `attempt`, but for `BRIEF_SECONDS` only."""
    return _attempt(BRIEF_SECONDS, url, work)


def _attempt(patience: float, url: str, work: Callable[[], Result]) -> Result:
    retrying = Retrying(
        stop=stop_after_delay(patience),
        wait=wait_random_exponential(multiplier=0.25, max=LONGEST_WAIT_SECONDS),
        retry=retry_if_exception(is_transient),
        before_sleep=_log_retry,
        sleep=_sleep,
        reraise=True,
    )
    try:
        return retrying(work)
    except RemoteError:
        raise
    except Exception as error:
        if not is_storage_error(error):
            raise
        explained = explain(url, error, patience)
    raise explained  # outside the handler, so that the original error, which may contain a secret, is not chained


def _log_retry(state: RetryCallState) -> None:
    error = state.outcome.exception() if state.outcome is not None else None
    name = "" if error is None else type(error).__name__
    _log.warning("remote storage: %s; attempt %d follows", name, state.attempt_number + 1)


def _sleep(seconds: float) -> None:
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        raise_if_stopped()
        time.sleep(min(left, 0.5))
