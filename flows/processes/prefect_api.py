"""Ask the Prefect server that is configured whether it can be used, and say what is wrong with a server in one line."""

import json
import socket
import ssl
import traceback
from collections.abc import Callable, Iterator, Sequence
from functools import cache, wraps
from typing import Any

import httpx
from prefect.client import base
from prefect.client.orchestration import get_client
from prefect.exceptions import ObjectNotFound, PrefectHTTPStatusError
from prefect.settings import (
    PREFECT_API_REQUEST_TIMEOUT,
    PREFECT_API_URL,
    PREFECT_CLIENT_MAX_RETRIES,
    PREFECT_SERVER_ALLOW_EPHEMERAL_MODE,
    get_current_settings,
    temporary_settings,
)

from fineweb_mask.flows.processes import temporary_server
from fineweb_mask.flows.processes.environment import THIS_MACHINE
from fineweb_mask.models.errors import FinewebMaskError
from fineweb_mask.models.urls import redacted

FIRST_SECONDS = 10.0
"""Time for the first answer; those of a run may take as long as Prefect is set to wait."""
FIRST_RETRIES = 1
NO_PREFECT_API = "is no Prefect API: PREFECT_API_URL has to end in /api, and no other program or proxy may answer there"
STATUSES = {
    401: "refuses the key: set PREFECT_API_KEY to one that is valid (or PREFECT_API_AUTH_STRING to its password)",
    403: "refuses access: set PREFECT_API_KEY to the key of a user who may write there, or ask who runs it",
    404: NO_PREFECT_API,
    407: "is behind a proxy that asks for a password: put it into HTTP_PROXY, or name the host in NO_PROXY",
    408: "is too slow, also when asked again: look at its log, and run again later to resume",
    429: "takes no more requests for now, also after waiting: run again later to resume",
}
"""What a server means by a status; by any from 500 on, that it fails."""


class PrefectServerError(FinewebMaskError, RuntimeError):
    """The Prefect server cannot be used as it is, or cannot be reached."""


def check_server() -> None:
    """Ask the Prefect server that is configured, if there is one, for its version.

    Raises
    ------
    PrefectServerError
        If it cannot be used.
    """
    _ask_this_machine_directly()
    asks = get_current_settings().client.server_version_check_enabled
    if not (asks if PREFECT_API_URL.value() else not PREFECT_SERVER_ALLOW_EPHEMERAL_MODE.value()):
        return
    patience = {PREFECT_CLIENT_MAX_RETRIES: FIRST_RETRIES, PREFECT_API_REQUEST_TIMEOUT: FIRST_SECONDS}
    with temporary_settings(patience):
        try:
            client = get_client(sync_client=True)
        except (ImportError, ValueError, httpx.InvalidURL) as error:
            raise PrefectServerError(
                f"{_server()} cannot be asked: {error}: check PREFECT_API_URL, HTTP_PROXY, HTTPS_PROXY and ALL_PROXY"
            ) from error
        try:
            with client:
                client.raise_for_api_version_mismatch_once()
        except Exception as error:
            why = NO_PREFECT_API if isinstance(error, TypeError | ValueError) else f"cannot be used: {error}"
            raise PrefectServerError(server_problem(error) or f"{_server()} {why}") from error


@cache
def _ask_this_machine_directly() -> None:
    """Have Prefect's clients ask a server on this machine through no proxy, and read no settings of one for it."""
    for kind in (base.PrefectHttpxSyncClient, base.PrefectHttpxAsyncClient):
        kind.__init__ = _direct(kind.__init__)  # type: ignore[method-assign]


def _direct(begin: Callable[..., None]) -> Callable[..., None]:
    @wraps(begin)
    def begun(client: object, *arguments: Any, **named: Any) -> None:  # noqa: ANN401 - what httpx takes
        if httpx.URL(named.get("base_url", "")).host in THIS_MACHINE:
            named["trust_env"] = False
        begin(client, *arguments, **named)

    return begun


def server_problem(error: BaseException) -> str | None:
    """Return what to do about an error of Prefect's server, or of the way to it; None of any other error."""
    causes = list(_causes(error))
    is_first = any("Failed to reach API at" in str(one) for one in causes)
    for one in causes:
        if isinstance(one, PrefectServerError):
            return str(one)
        if isinstance(one, ObjectNotFound):
            return f"{_server()} does not know this run any more: run again to resume"
        if isinstance(one, PrefectHTTPStatusError):
            return _of_status(one.response)
        if isinstance(one, httpx.HTTPError) and (is_first or _is_asked_by(one)):
            return _of_way(one, causes, is_first=is_first)
    if any(isinstance(one, json.JSONDecodeError) and _is_of_client(one) for one in causes):
        return f"{_server()} {NO_PREFECT_API}"
    return _of_way(error, causes, is_first=True) if is_first else None


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or (error.__context__ if type(error).__module__ == "httpcore" else None)


def _is_of_client(error: BaseException) -> bool:
    names = (str(frame.f_globals.get("__name__")) for frame, _ in traceback.walk_tb(error.__traceback__))
    return any(name.startswith("prefect.client.") for name in names)


def _is_asked_by(error: httpx.HTTPError) -> bool:
    asked, server = getattr(error, "_request", None), httpx.URL(_url())
    return asked is not None and (asked.url.host, asked.url.port) == (server.host, server.port)


def is_temporary() -> bool:
    """Return whether the server that Prefect uses is the temporary one of this process."""
    return _url() == temporary_server.address()


def _url() -> str:
    return PREFECT_API_URL.value() or temporary_server.address()  # where a run has failed, it is not set any more


def _server() -> str:
    """Return what Prefect's server is called, with its address."""
    return "the temporary Prefect server" if is_temporary() else f"the Prefect server at {redacted(_url())}"


def _of_status(response: httpx.Response) -> str | None:
    """Return what to do about an answer; None of one that says that a request of ours was wrong."""
    said = f"{_server()} answers {response.status_code} {response.reason_phrase}".strip()
    if response.status_code not in STATUSES and not response.is_server_error:
        return None
    if is_temporary():
        return f"{said}: {temporary_server.last_error()}: run again to resume"
    return f"{said}, it {STATUSES.get(response.status_code, 'fails: look at its log, and run again to resume')}"


def _of_way(error: BaseException, causes: Sequence[BaseException], *, is_first: bool) -> str:
    why = " ".join(str(error).split())
    problem = (
        f"does not answer{f' ({why})' if isinstance(error, httpx.HTTPError) and why else ''}: start it, or unset "
        "PREFECT_API_URL (in a profile: `prefect config unset PREFECT_API_URL`) for a temporary one"
    )
    if is_temporary():
        problem = f"does not answer any more: {temporary_server.last_error()}: run again to resume"
    elif not is_first:
        problem = "does not answer any more: start it, and run again to resume"
    elif isinstance(error, httpx.UnsupportedProtocol | httpx.LocalProtocolError):
        problem = "cannot be asked: PREFECT_API_URL has to begin with http:// or https://"
    elif isinstance(error, httpx.ProxyError):
        problem = f"is not reached ({why}): check the proxy, or name the host in NO_PROXY"
    for cause in causes:
        if isinstance(cause, ssl.SSLError):
            problem = (
                f"cannot be asked safely ({getattr(cause, 'verify_message', cause.reason)}): check whether its address "
                "begins with https://, and name the authority of its certificate in PREFECT_API_SSL_CERT_FILE"
            )
        elif isinstance(cause, socket.gaierror):
            problem = f"is not found ({cause.strerror}): check its name in PREFECT_API_URL, and the network"
        elif isinstance(cause, json.JSONDecodeError):
            problem = NO_PREFECT_API
    return f"{_server()} {problem}"
