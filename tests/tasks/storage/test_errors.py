"""Errors of remote storage are transient or final."""

import errno
from types import SimpleNamespace

import aiohttp
import botocore.exceptions
import pytest

from fineweb_mask.tasks.storage.errors import ChangedError, RemoteError, UnansweredError, is_transient
from tests.s3 import answered, translated


@pytest.mark.parametrize(
    "error",
    [
        translated(answered(500, "InternalError"), errno.EREMOTEIO),
        translated(answered(503, "SlowDown"), errno.EBUSY),
        translated(answered(429, "TooManyRequests"), errno.EIO),
        translated(answered(400, "RequestTimeout"), errno.EINVAL),
        botocore.exceptions.EndpointConnectionError(endpoint_url="http://x"),
        botocore.exceptions.ReadTimeoutError(endpoint_url="http://x"),
        botocore.exceptions.IncompleteReadError(actual_bytes=1, expected_bytes=2),
        aiohttp.ServerDisconnectedError(),
        aiohttp.ClientPayloadError("cut"),
        UnansweredError(errno.ETIMEDOUT, "no answer"),
    ],
)
def test_throttling_timeouts_and_server_errors_are_transient(error: Exception) -> None:
    assert is_transient(error)


@pytest.mark.parametrize(
    "error",
    [
        translated(answered(403, "AccessDenied"), errno.EACCES),
        translated(answered(404, "NoSuchKey"), errno.ENOENT),
        translated(answered(400, "NobodyKnowsThisCode"), errno.EIO),
        translated(answered(412, "PreconditionFailed"), errno.EINVAL),
        translated(answered(501, "NotImplemented"), errno.ENOSYS),
        botocore.exceptions.NoCredentialsError(),
        aiohttp.ClientResponseError(SimpleNamespace(real_url="http://x"), (), status=404),  # type: ignore[arg-type]
        ChangedError(errno.EINVAL, "changed"),
        RemoteError(errno.EACCES, "refused"),
    ],
)
def test_refusals_are_not_transient(error: Exception) -> None:
    assert not is_transient(error)
