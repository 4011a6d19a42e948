"""Repeat requests to servers that fail for a while.

obstore repeats its own requests (`OF_OBJECT_STORES`), so that an upload of many parts does not begin again for each
part that is refused; those of other servers are repeated by `attempt`. Other errors fail at once with a remedy. Above
this, Prefect tries a job once more (`flows/pipeline/task_runs.py`), so that a run ends within two minutes of its store.
No error of this module contains a credential.
"""

import logging
import random
import time
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar, TypeVarTuple

from fineweb_mask.models.runtime.stopping import raise_if_stopped
from fineweb_mask.models.urls import is_writable_url
from fineweb_mask.tasks.storage.remote.errors import RemoteError, explain, is_storage_error, is_transient

if TYPE_CHECKING:
    from obstore.store import RetryConfig

Arguments = TypeVarTuple("Arguments")
Result = TypeVar("Result")

logger = logging.getLogger(__name__)

PATIENCE_SECONDS = 25.0
"""Longest time to repeat one request: enough for a server to restart."""
LONGEST_WAIT_SECONDS = 5.0

OF_OBJECT_STORES: "RetryConfig" = {
    "max_retries": 1_000,  # the time ends them: waits are drawn at random, and may be short
    "retry_timeout": timedelta(seconds=PATIENCE_SECONDS),
    "backoff": {
        "init_backoff": timedelta(milliseconds=100),
        "max_backoff": timedelta(seconds=LONGEST_WAIT_SECONDS),
        "base": 2,
    },
}


def attempt(url: str, work: Callable[[*Arguments], Result], *arguments: *Arguments) -> Result:
    """Return the result of `work(*arguments)`, repeated on transient errors unless the URL is an object store's.

    Raises
    ------
    RemoteError
        If it fails with another error of storage; `errno` is ENOENT for a missing file, EACCES for denied access.
    UnansweredError
        If it still fails after `PATIENCE_SECONDS`.
    """
    until, wait = time.monotonic() + (0 if is_writable_url(url) else PATIENCE_SECONDS), 0.25
    while True:
        try:
            return work(*arguments)
        except RemoteError:
            raise
        except Exception as error:
            if not is_storage_error(error):
                raise
            if not is_transient(error) or time.monotonic() + wait > until:
                explained = explain(url, error)
                break
            problem = type(error).__name__
        raise_if_stopped()
        logger.warning("remote storage: %s; it is asked again", problem)
        time.sleep(wait * random.uniform(0.5, 1))  # noqa: S311 - so that machines do not ask at the same moment
        wait = min(2 * wait, LONGEST_WAIT_SECONDS)
    raise explained  # outside the handler, so that the original error, which may contain a secret, is not chained
