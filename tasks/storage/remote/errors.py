"""Classify errors of remote storage as transient or final, and explain them to the user.

Guarantees: no error raised here contains a credential. The messages of other libraries pass through `redacted`.
"""

import errno
import os
import re

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
FINAL = frozenset({"OfflineModeIsEnabled", "UnsupportedProtocol"})
"""Errors of huggingface_hub and httpx, by name, that look transient but are not."""
TRANSIENT_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504})
TRANSIENT_CODES = frozenset({"RequestTimeout", "SlowDown", "Throttling", "OperationAborted", "InternalError"})
"""Of S3, where the HTTP status is not enough."""
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
CODE, MESSAGE = re.compile(r"<Code>(\w+)</Code>"), re.compile(r"<Message>([^<]*)</Message>")
BODY = re.compile(r"\s*(<\?xml|<Error|<!DOCTYPE|<html).*", re.DOTALL)
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


class UnansweredError(RemoteError, TimeoutError):
    """A server kept failing until the retries ended; retrying later may help."""


def is_transient(error: BaseException) -> bool:
    """Return whether retrying may help: timeouts, lost connections, I/O errors, server errors, GPU out of memory."""
    if type(error).__name__ in FINAL:
        return False
    if (response := response_of(error)) is not None:
        status, code = response
        return (status in TRANSIENT_STATUS or code in TRANSIENT_CODES) and not _lacks_credentials(error)
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
        status = getattr(getattr(one, "response", None), "status_code", getattr(one, "status", None))
        if isinstance(status, int):
            return status, ""
    text = str(error)
    if (_is_of_obstore(error) or isinstance(error, FileNotFoundError)) and (found := STATUS.search(text)):
        code = CODE.search(text)
        return int(found[1]), code[1] if code else ""
    return None


def _is_of_obstore(error: BaseException) -> bool:
    return type(error).__module__.startswith("obstore")


def _lacks_credentials(error: BaseException) -> bool:
    return _is_of_obstore(error) and NO_CREDENTIALS.search(str(error)) is not None


def _is_lost_connection(error: BaseException) -> bool:
    if _is_of_obstore(error):
        text = str(error)
        return "HTTP error" in text and NOT_TRANSIENT.search(text) is None and not _lacks_credentials(error)
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
    foreign = type(error).__module__.partition(".")[0] in {*LOST_CONNECTIONS, "huggingface_hub", "obstore"}
    return isinstance(error, OSError) or foreign or is_transient(error)


def explain(url: str, error: BaseException, patience: float) -> RemoteError:
    """Return an error that names the URL and the remedy, without any credentials; retries lasted `patience` seconds."""
    where, text = redacted(url), redacted(_words_of(error))
    status, code = response_of(error) or (0, "")
    if is_transient(error):
        return UnansweredError(
            errno.ETIMEDOUT,
            f"{where}: failed for {patience:.0f} s, last with: {text}; check that the server is up and run "
            "the same command again",
        )
    if isinstance(error, PermissionError) or status in {401, 403} or _lacks_credentials(error):
        variables = CREDENTIALS.get(url.partition("://")[0].replace("s3a", "s3"))
        remedy = f": set {variables} in the environment" if variables else ""
        return RemoteError(errno.EACCES, f"{where}: access denied ({text}){remedy}")
    if isinstance(error, FileNotFoundError) or status == 404:
        parent = "repository" if url.startswith(HUB) else "bucket"
        remedy = f": check its spelling, and the {parent}'s" if is_url(url) and not url.startswith("file:") else ""
        return RemoteError(errno.ENOENT, f"{where} does not exist ({text}){remedy}")
    if "non-partial response" in text:
        return RemoteError(errno.ESPIPE, f"{where}: the server does not serve parts of files: download it first")
    remedy = ""
    if "configured region" in text or code in {"AuthorizationHeaderMalformed", "PermanentRedirect"}:
        remedy = ": set AWS_REGION to the region of the bucket"
    elif type(error).__name__ == "InvalidPathError":
        remedy = ": rename or delete this object, whose name has an empty part, or one of dots only"
    return RemoteError(getattr(error, "errno", None) or errno.EINVAL, f"{where}: {text}{remedy}")


def _words_of(error: BaseException) -> str:
    """Return an error's message in one line; of obstore's only the first part, and of its XML only the message."""
    text = str(error).partition("\n\nDebug source:")[0]
    message = MESSAGE.search(text)
    text = BODY.sub(f" {message[1]}" if message else "", text)
    return " ".join(text.split()) or type(error).__name__
