"""What an error of remote storage means: whether trying again may help, and what is told of it.

Promises: no error that is made here holds a credential: the texts of other libraries pass through `redacted`.
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
LASTING = frozenset({"FileExpired", "OfflineModeIsEnabled", "UnsupportedProtocol"})
"""Errors, by name, that would pass for a lost connection or a busy file: of s3fs, huggingface_hub and httpx."""
TRANSIENT_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504})
TRANSIENT_CODES = frozenset(  # of S3, where the HTTP status alone does not tell
    {"RequestTimeout", "SlowDown", "Throttling", "OperationAborted", "ConditionalRequestConflict", "InternalError"}
)
LOST_CONNECTIONS = {  # by module; named, so that none of these libraries is imported to handle an error
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
    "hf": "HF_TOKEN (of an account that may read it; the hub answers the same where a name is misspelt, and the terms "
    "of a gated repository are accepted on its page)",
}


class RemoteError(StorageError):
    """A URL cannot be read or written; trying again would not help."""

    def __str__(self) -> str:
        return str(self.strerror)


class UnansweredError(RemoteError, TimeoutError):
    """A server gave no good answer for as long as it was waited for; trying again later may help."""


class ChangedError(RemoteError):
    """A file at a URL is no longer the one that reading began with."""


def is_transient(error: BaseException) -> bool:
    """Return whether trying again may help: timeouts, lost connections, input/output, server errors, GPU memory."""
    if isinstance(error, ChangedError) or type(error).__name__ in LASTING:
        return False
    if (answer := answer_of(error)) is not None:
        status, code = answer
        return status in TRANSIENT_STATUS or code in TRANSIENT_CODES
    if isinstance(error, TimeoutError | ConnectionError) or _is_lost_connection(error):
        return True
    if isinstance(error, FileNotFoundError) and error.__cause__ is not None:
        return is_transient(error.__cause__)  # how fsspec tells that an HTTP server gave no answer
    if isinstance(error, OSError) and error.errno in TRANSIENT_ERRNO:
        return True
    # After the batches were made as small as can be: somebody else's memory may be free again.
    return type(error).__name__ == "OutOfMemoryError" and type(error).__module__.startswith("torch")


def is_missing(error: FileNotFoundError) -> bool:
    """Return whether a file is not there: fsspec raises the same error for an HTTP server that refuses or is gone."""
    answer = answer_of(error)
    return not is_transient(error) and (answer is None or answer[0] in {404, 410})


def answer_of(error: BaseException) -> tuple[int, str] | None:
    """Return the HTTP status and the store's own code that an error tells of, if a server answered at all."""
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
    """Return a text without what may be a credential: a URL's query and user, the values of secret variables."""
    for name in SECRET_VARIABLES:
        if value := os.environ.get(name):
            text = text.replace(value, "***")
    return without_secrets(text)


def is_storage_error(error: BaseException) -> bool:
    """Return whether an error is of a file or a server, or passes; any other is not for `explain`."""
    foreign = type(error).__module__.partition(".")[0] in {*LOST_CONNECTIONS, "aiobotocore", "huggingface_hub", "s3fs"}
    return isinstance(error, OSError) or foreign or is_transient(error)


def explain(url: str, error: BaseException, patience: float) -> RemoteError:
    """Return an error that names the URL and the remedy, without the credentials that `error` may tell.

    Parameters
    ----------
    url
        What was to be read or written.
    error
        What came of it.
    patience
        Seconds for which it was tried.
    """
    place, text = redacted(url), redacted(" ".join(str(error).split()) or type(error).__name__)
    answer = answer_of(error)
    status = 0 if answer is None else answer[0]
    if is_transient(error):
        return UnansweredError(
            errno.ETIMEDOUT,
            f"{place}: failed for {patience:.0f} s, at last with: {text}; see whether the server is up and run "
            "the same command again",
        )
    if isinstance(error, PermissionError) or status in {401, 403} or "Credentials" in type(error).__name__:
        variables = CREDENTIALS.get(url.partition("://")[0])
        remedy = f": set {variables} in the environment" if variables else ""
        return RemoteError(errno.EACCES, f"{place}: access is refused ({text}){remedy}")
    if isinstance(error, FileNotFoundError) or status == 404:
        remedy = f": look at its spelling, and at the {_holder(url)}'s" if is_url(url) else ""
        return RemoteError(errno.ENOENT, f"{place} is not there ({text}){remedy}")
    if type(error).__name__ == "FileExpired":
        return ChangedError(errno.EINVAL, f"{place} was changed while it was read")
    return RemoteError(getattr(error, "errno", None) or errno.EINVAL, f"{place}: {text}")


def _holder(url: str) -> str:
    return "repository" if url.startswith(HUB) else "bucket"
