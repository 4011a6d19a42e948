"""Retry operations on remote storage with exponential backoff and jitter.

Guarantees: transient errors (throttling, timeouts, lost connections, 5xx) are retried for `PATIENCE_SECONDS`. Other
errors fail at once with a remedy. No error and no log line of this module contains a credential.

Above this policy, Prefect tries a job once more (`flows/pipeline/task_runs.py`), so that a run ends within two minutes
of its store. Below it, obstore repeats single requests for a few seconds (`buckets.RETRIES`): else an upload of many
parts would start again for each part that is refused.
"""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar, TypeVarTuple

from tenacity import RetryCallState, Retrying, retry_if_exception, stop_before_delay, wait_random_exponential

from fineweb_mask.models.runtime.stopping import raise_if_stopped
from fineweb_mask.tasks.storage.remote.errors import RemoteError, explain, is_storage_error, is_transient

Arguments = TypeVarTuple("Arguments")
Result = TypeVar("Result")

PATIENCE_SECONDS = 40.0
"""Longest time to retry one operation: enough for a server to restart."""

BRIEF_SECONDS = 5.0
"""Longest time to retry an operation that may fail, such as writing the record of a run that failed."""

LONGEST_WAIT_SECONDS = 5.0

_log = logging.getLogger(__name__)
_is_brief = ContextVar("_is_brief", default=False)


@contextmanager
def brief_retries() -> Iterator[None]:
    """Retry all operations of this thread for `BRIEF_SECONDS` only: somebody waits to hear whether a store answers."""
    token = _is_brief.set(True)
    try:
        yield
    finally:
        _is_brief.reset(token)


def attempt(url: str, work: Callable[[*Arguments], Result], *arguments: *Arguments) -> Result:
    """Return the result of `work(*arguments)`, retrying it on transient errors, in `brief_retries` not for long.

    Raises
    ------
    RemoteError
        If it fails with another error of storage; `errno` is ENOENT for a missing file, EACCES for denied access.
    UnansweredError
        If it still fails after `PATIENCE_SECONDS`.
    """
    patience = BRIEF_SECONDS if _is_brief.get() else PATIENCE_SECONDS
    retrying = Retrying(
        stop=stop_before_delay(patience),
        wait=wait_random_exponential(multiplier=0.25, max=LONGEST_WAIT_SECONDS),
        retry=retry_if_exception(is_transient),
        before_sleep=_log_retry,
        sleep=_sleep,
        reraise=True,
    )
    try:
        return retrying(work, *arguments)
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
