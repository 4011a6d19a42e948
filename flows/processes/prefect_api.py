"""Have Prefect use the server that is configured, or a temporary one, and say in one line what is wrong with it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
from prefect.client.orchestration import get_client
from prefect.exceptions import ObjectNotFound, PrefectHTTPStatusError
from prefect.settings import (
    PREFECT_API_REQUEST_TIMEOUT,
    PREFECT_API_URL,
    PREFECT_CLIENT_MAX_RETRIES,
    PREFECT_FLOWS_HEARTBEAT_FREQUENCY,
    PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS,
    PREFECT_UI_URL,
    get_current_settings,
    temporary_settings,
)

from fineweb_mask.flows.processes import temporary_server
from fineweb_mask.models.errors import FinewebMaskError
from fineweb_mask.models.urls import redacted

FIRST = {PREFECT_CLIENT_MAX_RETRIES: 1, PREFECT_API_REQUEST_TIMEOUT: 10.0}
"""Patience with the first answer; those of a run may take as long as Prefect is set to wait."""


class PrefectServerError(FinewebMaskError, RuntimeError):
    """The Prefect server cannot be used as it is, or cannot be reached."""


@contextmanager
def server_used(meanwhile: Callable[[], object]) -> Iterator[None]:
    """Have Prefect use the server that is configured in the block, or, if none is, the temporary one of this process.

    `meanwhile` is called while that one starts: it takes seconds.

    Raises
    ------
    PrefectServerError, TemporaryServerError
        If the server cannot be used, or does not start.
    """
    used: dict[Any, Any] = {PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}  # without heartbeats a run is a second shorter
    if PREFECT_API_URL.value():
        _check()
        meanwhile()
    else:
        server = temporary_server.started()
        meanwhile()
        server.wait(PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS.value())
        used |= {PREFECT_API_URL: server.address, PREFECT_UI_URL: ""}
    with temporary_settings(used):
        yield


def _check() -> None:
    """Ask the server for its version, unless Prefect is set not to."""
    if get_current_settings().client.server_version_check_enabled:
        try:
            with temporary_settings(FIRST), get_client(sync_client=True) as client:
                client.raise_for_api_version_mismatch_once()
        except Exception as error:
            raise PrefectServerError(_problem(list(_causes(error))[-1])) from error


def server_problem(error: BaseException) -> str | None:
    """Return what to do about an error of Prefect's server, or of the way to it; None of any other error."""
    of_server = None
    for one in _causes(error):
        if isinstance(one, PrefectServerError):
            return str(one)
        is_http = isinstance(one, PrefectHTTPStatusError | ObjectNotFound)
        if is_http or "Failed to reach API at" in str(one) or (isinstance(one, httpx.HTTPError) and _is_asked_by(one)):
            of_server = one
    return None if of_server is None else _problem(of_server)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


def _is_asked_by(error: httpx.HTTPError) -> bool:
    asked, server = getattr(error, "_request", None), httpx.URL(_url())
    return asked is not None and (asked.url.host, asked.url.port) == (server.host, server.port)


def is_temporary() -> bool:
    """Return whether the server that Prefect uses is the temporary one of this process."""
    return _url() == temporary_server.address()


def _url() -> str:
    return PREFECT_API_URL.value() or temporary_server.address()  # where a run has failed, it is not set any more


def _problem(error: BaseException) -> str:
    """Return what to do about an error of the server."""
    if is_temporary():
        last = temporary_server.last_error()
        return f"the temporary Prefect server does not answer any more: {last}: run again to resume"
    why = redacted(" ".join(str(error).split())) or type(error).__name__
    return (
        f"the Prefect server at {redacted(_url())} cannot be used ({why}): check that it runs, PREFECT_API_URL, which "
        "ends in /api, PREFECT_API_KEY and the proxy, and run again to resume; without PREFECT_API_URL (in a profile: "
        "`prefect config unset PREFECT_API_URL`) a temporary one is used"
    )
