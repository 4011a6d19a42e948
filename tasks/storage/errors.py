"""Classify errors of remote storage as transient or final, and explain them to the user.

Guarantees: no error raised here contains a credential. The messages of other libraries pass through `redacted`.
"""

import errno
import os

from fineweb_mask.models.errors import StorageError
from fineweb_mask.models.urls import HUB, is_url
from fineweb_mask.models.urls import redacted as without_secrets

TRANSIENT_ERRNO = frozenset(
    {
        errno.EIO,
        errno.EAGAIN,
        errno.EBUSY,
        errno.EINTR,
        errno.ENETUNREACH,
        errno.EHOSTUNREACH,
        errno.ESTALE,
        errno.ETIMEDOUT,
    }
)
FINAL = frozenset({"FileExpired", "OfflineModeIsEnabled", "UnsupportedProtocol"})
"""Errors of s3fs, huggingface_hub and httpx, by name, that look transient but are not."""
TRANSIENT_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504})
TRANSIENT_CODES = frozenset(  # of S3, where the HTTP status is not enough
    {"RequestTimeout", "SlowDown", "Throttling", "OperationAborted", "ConditionalRequestConflict", "InternalError"}
)
LOST_CONNECTIONS = {  # by package; as names, to avoid importing these libraries
    "aiohttp": frozenset({"ClientConnectionError", "ClientPayloadError"}),
    "botocore": frozenset({"ConnectionError", "HTTPClientError", "IncompleteReadError", "ResponseParserError"}),
    "httpx": frozenset({"TransportError"}),
    "httpx2": frozenset({"TransportError"}),
}
SECRET_VARIABLES = (
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "HF_TOKEN",
    "HUGGING_FACE_HUB_TOKEN",
)
CREDENTIALS = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE (and AWS_ENDPOINT_URL for a store other than "
    "Amazon's; FSSPEC_S3_ANON=true for a public bucket)",
    "hf": "HF_TOKEN (of an account that may read it; the hub answers the same to a misspelt name, and the terms of a "
    "gated repository are accepted on its page)",
}


class RemoteError(StorageError):
    """A URL cannot be read or written, and retrying would not help."""

    def __str__(self) -> str:
        return str(self.strerror)


class UnansweredError(RemoteError, TimeoutError):
    """A server kept failing until the retries ended; retrying later may help."""


class ChangedError(RemoteError):
    """A file at a URL changed while it was read."""


def is_transient(error: BaseException) -> bool:
    """Return whether retrying may help: timeouts, lost connections, I/O errors, server errors, GPU out of memory."""
    if isinstance(error, ChangedError) or type(error).__name__ in FINAL:
        return False
    if (response := response_of(error)) is not None:
        status, code = response
        return status in TRANSIENT_STATUS or code in TRANSIENT_CODES
    if isinstance(error, TimeoutError | ConnectionError) or _is_lost_connection(error):
        return True
    if isinstance(error, FileNotFoundError) and error.__cause__ is not None:
        return is_transient(error.__cause__)  # fsspec raises this when an HTTP server does not answer
    if isinstance(error, OSError) and error.errno in TRANSIENT_ERRNO:
        return True
    # Batches were already as small as possible; another process may free GPU memory.
    return type(error).__name__ == "OutOfMemoryError" and type(error).__module__.startswith("torch")


def is_missing(error: FileNotFoundError) -> bool:
    """Return whether the file does not exist; fsspec raises the same error if an HTTP server refuses or is down."""
    response = response_of(error)
    return not is_transient(error) and (response is None or response[0] in {404, 410})


def response_of(error: BaseException) -> tuple[int, str] | None:
    """Return the HTTP status and the store's error code, or None if no server responded."""
    for one in (error, error.__cause__):
        response = getattr(one, "response", None)
        if isinstance(response, dict):  # botocore's
            status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
            return status, str(response.get("Error", {}).get("Code", ""))
        status = getattr(response, "status_code", getattr(one, "status", None))
        if isinstance(status, int):
            return status, ""
    return None


def _is_lost_connection(error: BaseException) -> bool:
    return any(
        kind.__name__ in LOST_CONNECTIONS.get(kind.__module__.partition(".")[0], ()) for kind in type(error).__mro__
    )


def redacted(text: str) -> str:
    """Return the text without credentials: user and query of URLs, values of secret environment variables."""
    for name in SECRET_VARIABLES:
        if value := os.environ.get(name):
            text = text.replace(value, "***")
    return without_secrets(text)


def is_storage_error(error: BaseException) -> bool:
    """Return whether `explain` can describe this error: file, server or transient."""
    foreign = type(error).__module__.partition(".")[0] in {*LOST_CONNECTIONS, "aiobotocore", "huggingface_hub", "s3fs"}
    return isinstance(error, OSError) or foreign or is_transient(error)


def explain(url: str, error: BaseException, patience: float) -> RemoteError:
    """Return an error that names the URL and the remedy, without any credentials; retries lasted `patience` seconds."""
    where, text = redacted(url), redacted(" ".join(str(error).split()) or type(error).__name__)
    status, _ = response_of(error) or (0, "")
    if is_transient(error):
        return UnansweredError(
            errno.ETIMEDOUT,
            f"{where}: failed for {patience:.0f} s, last with: {text}; check that the server is up and run "
            "the same command again",
        )
    if isinstance(error, PermissionError) or status in {401, 403} or "Credentials" in type(error).__name__:
        variables = CREDENTIALS.get(url.partition("://")[0])
        remedy = f": set {variables} in the environment" if variables else ""
        return RemoteError(errno.EACCES, f"{where}: access denied ({text}){remedy}")
    if isinstance(error, FileNotFoundError) or status == 404:
        parent = "repository" if url.startswith(HUB) else "bucket"
        remedy = f": check its spelling, and the {parent}'s" if is_url(url) else ""
        return RemoteError(errno.ENOENT, f"{where} does not exist ({text}){remedy}")
    if type(error).__name__ == "FileExpired":
        return ChangedError(errno.EINVAL, f"{where} changed while it was read")
    return RemoteError(getattr(error, "errno", None) or errno.EINVAL, f"{where}: {text}")
