"""Work on remote storage, tried again with exponential backoff and jitter.

Promises: what a server refuses for a moment (throttling, timeouts, lost connections, 5xx) is tried again for
`PATIENCE_SECONDS`; what it refuses for good fails at once and says what to do. No error and no log line of this module
holds a credential.
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
"""For how long one operation is tried again: a server that is restarted is waited for."""

BRIEF_SECONDS = 5.0
"""For how long one is that only spares others a wait."""

LONGEST_WAIT_SECONDS = 15.0

_log = logging.getLogger(__name__)


def attempt(
    url: str, work: Callable[Parameters, Result], *args: Parameters.args, **kwargs: Parameters.kwargs
) -> Result:
    """Return what `work` returns, tried again while its errors are transient.

    Raises
    ------
    RemoteError
        If it fails for good; `errno` is ENOENT where nothing is there and EACCES where access is refused.
    UnansweredError
        If it failed for `PATIENCE_SECONDS`.
    """
    return _attempt(PATIENCE_SECONDS, url, lambda: work(*args, **kwargs))


def attempt_briefly(url: str, work: Callable[[], Result]) -> Result:
    """Return what `work` returns, tried again as by `attempt`, but for `BRIEF_SECONDS` only."""
    return _attempt(BRIEF_SECONDS, url, work)


def _attempt(patience: float, url: str, work: Callable[[], Result]) -> Result:
    retrying = Retrying(
        stop=stop_after_delay(patience),
        wait=wait_random_exponential(multiplier=0.25, max=LONGEST_WAIT_SECONDS),
        retry=retry_if_exception(is_transient),
        before_sleep=_tell,
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
    raise explained  # outside of the handler: the error's own text, which may hold a secret, is not chained


def _tell(state: RetryCallState) -> None:
    error = state.outcome.exception() if state.outcome is not None else None
    name = "" if error is None else type(error).__name__
    _log.warning("remote storage: %s; attempt %d follows", name, state.attempt_number + 1)


def _sleep(seconds: float) -> None:
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        raise_if_stopped()
        time.sleep(min(left, 0.5))
