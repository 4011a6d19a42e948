"""Tell transient errors of servers from final ones, repeat requests that fail for a while, and explain the others.

obstore repeats its own requests (`OF_OBJECT_STORES`), so that an upload of many parts does not begin again for each
part that is refused; those of other servers are repeated by `attempt`. Other errors fail at once with a remedy. Above
this, Prefect tries a job once more (`flows/pipeline/task_runs.py`), so that a run ends within two minutes of its store.

Guarantees: no error raised here contains a credential. The messages of other libraries pass through `redacted`.
"""

import errno
import logging
import os
import random
import re
import time
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar, TypeVarTuple

from fineweb_mask.models.errors import StorageError
from fineweb_mask.models.runtime.stopping import raise_if_stopped
from fineweb_mask.models.urls import HUB, is_url, is_writable_url
from fineweb_mask.models.urls import redacted as without_secrets

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

TRANSIENT_ERRNO = frozenset({errno.EIO, errno.EAGAIN, errno.EBUSY, errno.EINTR, errno.ENETUNREACH, errno.EHOSTUNREACH})
FINAL = frozenset({"OfflineModeIsEnabled", "UnsupportedProtocol"})
"""Errors of huggingface_hub and httpx, by name, that look transient but are not."""
TRANSIENT_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504})
LOST_CONNECTIONS = {  # by package; as names, to avoid importing these libraries
    "aiohttp": frozenset({"ClientConnectionError", "ClientPayloadError"}),
    "httpx": frozenset({"TransportError"}),
    "httpx2": frozenset({"TransportError"}),
    "ray": frozenset(  # a process or a node of the cluster ended, or Ray ended it because memory ran out
        "ActorDiedError ActorUnavailableError LocalRayletDiedError NodeDiedError ObjectLostError OutOfMemoryError "
        "RpcError WorkerCrashedError".split()
    ),
}
# What obstore's errors say, which have no fields: tests/tasks/storage/remote/test_errors.py asks real servers.
STATUS = re.compile(r"non-2xx status code: (\d{3})")
MESSAGE, BODY = (
    re.compile(r"<Message>([^<]*)</Message>"),
    re.compile(r"\s*(<\?xml|<Error|<!DOCTYPE|<html).*", re.DOTALL),
)
NOT_TRANSIENT = re.compile(r"builder error|invalid peer certificate")
NO_CREDENTIALS = re.compile(
    r"https?://(169\.254\.169\.254|\[fd00:ec2::254\]|metadata\.google\.internal|[^/\s]+/latest/api/token)"
)
"""Servers that hand out the credentials of a cloud's machine: asked if the environment has none."""

SECRET_VARIABLES = tuple(
    "AWS_ACCESS_KEY_ID AWS_SECRET_ACCESS_KEY AWS_SESSION_TOKEN AZURE_CLIENT_SECRET AZURE_STORAGE_ACCESS_KEY "
    "AZURE_STORAGE_ACCOUNT_KEY AZURE_STORAGE_CLIENT_SECRET AZURE_STORAGE_SAS_KEY AZURE_STORAGE_SAS_TOKEN "
    "GOOGLE_BEARER_TOKEN GOOGLE_SERVICE_ACCOUNT_KEY HF_TOKEN HUGGING_FACE_HUB_TOKEN".split()
)
CREDENTIALS = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (those of a profile by `aws configure export-credentials "
    "--format env`; AWS_ENDPOINT_URL for a store other than Amazon's; AWS_SKIP_SIGNATURE=true for a public bucket)",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS (GOOGLE_SKIP_SIGNATURE=true for a public bucket)",
    "az": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
    "hf": "HF_TOKEN (of an account that may read it; the hub answers the same to a misspelt name, and the terms of a "
    "gated repository are accepted on its page)",
}


class RemoteError(StorageError):
    """A URL cannot be read or written, and retrying would not help."""

    def __str__(self) -> str:
        return str(self.strerror)


class MissingError(RemoteError, FileNotFoundError):
    """A URL does not exist."""


class UnansweredError(RemoteError, TimeoutError):
    """A server kept failing until the retries ended; retrying later may help."""


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


def is_transient(error: BaseException) -> bool:
    """Return whether retrying may help: timeouts, lost connections, I/O errors, server errors, GPU out of memory."""
    name, package = type(error).__name__, type(error).__module__.partition(".")[0]
    if name in FINAL:
        return False
    if package == "obstore" and NO_CREDENTIALS.search(str(error)):
        return False
    if (status := status_of(error)) is not None:
        return status in TRANSIENT_STATUS
    if package == "obstore":
        return "HTTP error" in str(error) and NOT_TRANSIENT.search(str(error)) is None
    if isinstance(error, FileNotFoundError) and error.__cause__ is not None:
        return is_transient(error.__cause__)  # fsspec raises this when an HTTP server does not answer
    kinds = type(error).__mro__
    return (
        isinstance(error, TimeoutError | ConnectionError)
        or (isinstance(error, OSError) and error.errno in TRANSIENT_ERRNO)
        or any(kind.__name__ in LOST_CONNECTIONS.get(kind.__module__.partition(".")[0], ()) for kind in kinds)
        # Batches were already as small as possible; another process may free GPU memory.
        or (name == "OutOfMemoryError" and package == "torch")
    )


def is_missing(error: FileNotFoundError) -> bool:
    """Return whether the file does not exist; fsspec raises the same error if an HTTP server refuses or is down."""
    return not is_transient(error) and status_of(error) in {None, 404, 410}


def status_of(error: BaseException) -> int | None:
    """Return the HTTP status of an error, or None if no server responded."""
    for one in (error, error.__cause__):
        status = getattr(getattr(one, "response", None), "status_code", getattr(one, "status", None))
        if isinstance(status, int):
            return status
    found = STATUS.search(str(error))
    return None if found is None else int(found[1])


def redacted(text: str) -> str:
    """Return the text without credentials: user and query of URLs, values of secret environment variables."""
    for name in SECRET_VARIABLES:
        if value := os.environ.get(name):
            text = text.replace(value, "***")
    return without_secrets(text)


def is_storage_error(error: BaseException) -> bool:
    """Return whether `explain` can describe this error: file, server or transient."""
    foreign = type(error).__module__.partition(".")[0] in {*LOST_CONNECTIONS, "huggingface_hub", "obstore"}
    return isinstance(error, OSError) or foreign or is_transient(error)


def explain(url: str, error: BaseException) -> RemoteError:
    """Return an error that names the URL and the remedy, without any credentials."""
    where, text = redacted(url), redacted(_words_of(error))
    status, kind = status_of(error), type(error)
    if is_transient(error):
        return UnansweredError(
            errno.ETIMEDOUT,
            f"{where}: failed again and again, last with: {text}; check that the server is up and run the same "
            "command again",
        )
    if "non-partial response" in text:
        return RemoteError(errno.ESPIPE, f"{where}: the server does not serve parts of files: download it first")
    is_denied = isinstance(error, PermissionError) or kind.__name__ in {"PermissionDeniedError", "UnauthenticatedError"}
    is_setting = kind.__module__.startswith("obstore") and status is None and kind.__name__ == "GenericError"
    if is_denied or is_setting or status in {401, 403}:
        variables = CREDENTIALS.get(url.partition("://")[0].replace("s3a", "s3"))
        remedy = f": set {variables} in the environment" if variables else ""
        return RemoteError(errno.EACCES, f"{where}: access denied ({text}){remedy}")
    if isinstance(error, FileNotFoundError) or status == 404:
        parent = "repository" if url.startswith(HUB) else "bucket"
        remedy = f": check its spelling, and the {parent}'s" if is_url(url) and not url.startswith("file:") else ""
        return MissingError(errno.ENOENT, f"{where} does not exist ({text}){remedy}")
    return RemoteError(
        getattr(error, "errno", None) or errno.EINVAL, f"{where}: {text}: check the URL and what its server allows"
    )


def _words_of(error: BaseException) -> str:
    """Return an error's message in one line; of obstore's only the first part, and of its XML only the message."""
    text = str(error).partition("\n\nDebug source:")[0]
    message = MESSAGE.search(text)
    text = BODY.sub(f" {message[1]}" if message else "", text)
    return " ".join(text.split()) or type(error).__name__
