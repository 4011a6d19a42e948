"""What is said of a Prefect server that cannot be used: one line for each reason, and none is a bug to report."""

import json
import socket
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import anyio
import httpx
import pytest
from prefect.client.orchestration import get_client
from prefect.exceptions import ObjectNotFound, PrefectHTTPStatusError
from prefect.settings import PREFECT_API_URL, PREFECT_SERVER_ALLOW_EPHEMERAL_MODE, temporary_settings

from fineweb_mask.flows.processes import prefect_api, temporary_server
from fineweb_mask.flows.processes.prefect_api import PrefectServerError, check_server, server_problem

PAGE = b"<html>please log in</html>"
Serve = Callable[..., str]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Return the function that starts a server with one answer to everything, and returns its URL."""
    servers = []

    def start(status: int, body: object = None, **headers: str) -> str:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()

        class Answers(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(status)
                for name, value in {"Content-Length": str(len(content)), **headers}.items():
                    self.send_header(name.replace("_", "-"), value)
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: object) -> None:
                pass

        servers.append(ThreadingHTTPServer(("127.0.0.1", 0), Answers))
        Thread(target=servers[-1].serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{servers[-1].server_port}/api"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def problem_at(url: str) -> str:
    with temporary_settings({PREFECT_API_URL: url}), pytest.raises(PrefectServerError) as failed:
        check_server()
    assert "\n" not in str(failed.value)
    assert "developer.mozilla.org" not in str(failed.value)
    return str(failed.value)


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (401, {"detail": "Unauthorized"}, "answers 401 Unauthorized, it refuses the key: set PREFECT_API_KEY"),
        (401, PAGE, "answers 401 Unauthorized, it refuses the key: set PREFECT_API_KEY"),
        (403, {}, "answers 403 Forbidden, it refuses access: set PREFECT_API_KEY"),
        (404, {}, "answers 404 Not Found, it is no Prefect API: PREFECT_API_URL has to end in /api"),
        (407, {}, "answers 407 Proxy Authentication Required, it is behind a proxy that asks for a password"),
        (408, {}, "answers 408 Request Timeout, it is too slow, also when asked again"),
        (410, {}, "cannot be used: Failed to reach API"),
        (429, {}, "answers 429 Too Many Requests, it takes no more requests for now, also after waiting"),
        (500, {}, "answers 500 Internal Server Error, it fails: look at its log"),
        (503, PAGE, "answers 503 Service Unavailable, it fails: look at its log"),
        (200, PAGE, "is no Prefect API: PREFECT_API_URL has to end in /api"),
        (200, {"version": "3"}, "is no Prefect API: PREFECT_API_URL has to end in /api"),
        (200, "another", "is no Prefect API: PREFECT_API_URL has to end in /api"),
        (200, "2.20.1", "Major versions must match"),
    ],
)
def test_every_answer_has_a_line_of_its_own(status: int, body: object, said: str, serve: Serve) -> None:
    url = serve(status, body, Retry_After="0")
    assert said in problem_at(url)
    assert f"the Prefect server at {url} " in problem_at(url)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://user:secret@127.0.0.1:9/api", "at http://***@127.0.0.1:9/api does not answer ("),
        ("127.0.0.1:4200/api", "cannot be asked: PREFECT_API_URL has to begin with http:// or https://"),
        ("http://127.0.0.1:port/api", "cannot be asked: Invalid port: 'port': check PREFECT_API_URL, HTTP_PROXY"),
    ],
)
def test_every_way_to_none_has_a_line_of_its_own(url: str, said: str) -> None:
    assert said in problem_at(url)


def test_a_certificate_that_is_none_is_named(serve: Serve) -> None:
    assert "cannot be asked safely (" in problem_at(serve(200, "3.8.8").replace("http:", "https:"))


def test_a_name_that_is_unknown_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.getaddrinfo", lambda *_, **__: _raise(socket.gaierror(-2, "Name not known")))
    assert "at http://team.example/api is not found (Name not known): check" in problem_at("http://team.example/api")


def _raise(error: Exception) -> None:
    raise error


@pytest.mark.parametrize(("header", "seconds"), [("1", 2), ("3600", 0), ("nonsense", 6)])
def test_a_server_that_wants_to_be_left_alone_is_waited_for_no_longer_than_a_minute(
    header: str, seconds: int, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []
    monkeypatch.setattr(prefect_api.base.time, "sleep", waited.append)
    said = problem_at(serve(429, {}, Retry_After=header))
    assert ("takes no request for 3,600 s: run again then" if header == "3600" else "429 Too Many") in said
    assert seconds * 0.6 <= sum(waited) <= seconds * 1.5


def test_a_proxy_that_a_remote_server_is_asked_through_is_named(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    proxy = serve(503, PAGE, Retry_After="0").removesuffix("/api")
    monkeypatch.setenv("http_proxy", proxy.replace("://", "://user:secret@"))
    said = problem_at("http://team.example/api")
    through = f"asked through the proxy {proxy.replace('://', '://***@')}, answers 503"
    assert f"the Prefect server at http://team.example/api, {through}" in said


@pytest.mark.parametrize("proxy", ["http://127.0.0.1:9", "socks4://127.0.0.1:9", "socks5://127.0.0.1:9", "no:address"])
def test_a_server_on_this_machine_is_asked_through_no_proxy(
    proxy: str, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    for name in ("http_proxy", "HTTPS_PROXY", "all_proxy"):
        monkeypatch.setenv(name, proxy)
    with temporary_settings({PREFECT_API_URL: serve(200, "3.8.8")}):
        check_server()
    if proxy.startswith("socks4"):
        assert "cannot be asked: Unknown scheme for proxy URL" in problem_at("http://team.example/api")


def test_without_any_server_one_is_asked_for() -> None:
    with (
        temporary_settings({PREFECT_API_URL: None, PREFECT_SERVER_ALLOW_EPHEMERAL_MODE: False}),
        pytest.raises(PrefectServerError, match="the temporary Prefect server cannot be asked: No Prefect API URL"),
    ):
        check_server()


def test_what_happens_to_a_server_during_a_run_is_told_and_other_errors_are_not_its() -> None:
    of_server, of_hub = (httpx.Request("GET", url) for url in ("http://team:80/api/flows", "https://hub.example/x"))

    def answer(status: int) -> PrefectHTTPStatusError:
        return PrefectHTTPStatusError("", request=of_server, response=httpx.Response(status, request=of_server))

    lost = ObjectNotFound(answer(404))
    with temporary_settings({PREFECT_API_URL: "http://TEAM/api"}):
        assert "refuses the key" in str(server_problem(answer(401)))
        assert "does not know this run any more" in str(server_problem(lost))
        assert "does not answer any more: start it" in str(server_problem(httpx.ReadError("", request=of_server)))
        assert "is no Prefect API" in str(server_problem(page_instead_of_json()))
        for other in (httpx.ReadError("", request=of_hub), httpx.ReadError(""), answer(422), ValueError("a bug")):
            assert server_problem(other) is None


def page_instead_of_json() -> Exception:
    client = get_client(httpx_settings={"transport": httpx.MockTransport(lambda _: httpx.Response(200, content=PAGE))})
    try:
        anyio.run(client.read_flows)
    except ValueError as error:
        return error
    raise AssertionError


def test_a_temporary_server_that_is_gone_has_its_last_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(temporary_server, "address", lambda: "http://127.0.0.1:4242/")
    monkeypatch.setattr(temporary_server, "last_error", lambda: "OSError: no space")
    request = httpx.Request("GET", "http://127.0.0.1:4242/api/flows")
    failed = PrefectHTTPStatusError("", request=request, response=httpx.Response(500, request=request))
    with temporary_settings({PREFECT_API_URL: None}):
        gone = server_problem(httpx.ConnectError("refused", request=request))
        assert gone == "the temporary Prefect server does not answer any more: OSError: no space: run again to resume"
        assert "temporary Prefect server answers 500 Internal Server Error: OSError: no" in str(server_problem(failed))
