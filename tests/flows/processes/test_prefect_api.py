"""What is said of a Prefect server that cannot be used: one line for each reason, and none is a bug to report."""

import socket

import anyio
import httpx
import pytest
from prefect.client.orchestration import get_client
from prefect.exceptions import ObjectNotFound, PrefectHTTPStatusError
from prefect.settings import PREFECT_API_URL, PREFECT_SERVER_ALLOW_EPHEMERAL_MODE, temporary_settings

from fineweb_mask.flows.processes import temporary_server
from fineweb_mask.flows.processes.prefect_api import PrefectServerError, check_server, server_problem

PAGE = b"<html>please log in</html>"


@pytest.fixture(autouse=True)
def waited(monkeypatch):
    """The seconds for which a client would have waited before it asked again."""
    seconds: list[float] = []
    monkeypatch.setattr("prefect.client.base.time.sleep", seconds.append)
    return seconds


def problem_at(url):
    with temporary_settings({PREFECT_API_URL: url}), pytest.raises(PrefectServerError) as failed:
        check_server()
    assert "\n" not in str(failed.value)
    assert "developer.mozilla.org" not in str(failed.value)
    return str(failed.value)


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (401, PAGE, "answers 401 Unauthorized, it refuses the key: set PREFECT_API_KEY"),
        (403, {}, "answers 403 Forbidden, it refuses access: set PREFECT_API_KEY"),
        (404, {}, "answers 404 Not Found, it is no Prefect API: PREFECT_API_URL has to end in /api"),
        (410, {}, "cannot be used: Failed to reach API"),
        (429, {}, "answers 429 Too Many Requests, it takes no more requests for now, also after waiting"),
        (503, PAGE, "answers 503 Service Unavailable, it fails: look at its log"),
        (200, PAGE, "is no Prefect API: PREFECT_API_URL has to end in /api"),
        (200, "another", "is no Prefect API: PREFECT_API_URL has to end in /api"),
        (200, "2.20.1", "Major versions must match"),
    ],
)
def test_every_answer_has_a_line_of_its_own(status, body, said, serve):
    url = serve(status, body, Retry_After="0")
    found = problem_at(url)
    assert said in found
    assert f"the Prefect server at {url} " in found


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://user:secret@127.0.0.1:9/api", "at http://***@127.0.0.1:9/api does not answer ("),
        ("127.0.0.1:4200/api", "cannot be asked: PREFECT_API_URL has to begin with http:// or https://"),
        ("http://127.0.0.1:port/api", "cannot be asked: Invalid port: 'port': check PREFECT_API_URL, HTTP_PROXY"),
        ("http://team.example/api", "at http://team.example/api is not found (Name not known): check"),
        (None, "cannot be asked safely ("),
    ],
)
def test_every_way_to_none_has_a_line_of_its_own(url, said, serve, monkeypatch):
    url = url or serve(200, "3.8.8").replace("http:", "https:")  # which has no certificate
    if "team.example" in url:
        error = socket.gaierror(-2, "Name not known")
        monkeypatch.setattr("socket.getaddrinfo", lambda *_, **__: (_ for _ in ()).throw(error))
    assert said in problem_at(url)


@pytest.mark.parametrize("proxy", ["http://127.0.0.1:9", "socks4://127.0.0.1:9"])
def test_a_proxy_is_not_asked_for_a_server_on_this_machine_and_one_that_fails_is_named(proxy, serve, monkeypatch):
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    for name in ("http_proxy", "HTTPS_PROXY", "all_proxy"):
        monkeypatch.setenv(name, proxy)
    with temporary_settings({PREFECT_API_URL: serve(200, "3.8.8")}):
        check_server()
    said = problem_at("http://team.example/api")
    assert ("Unknown scheme for proxy URL" if proxy.startswith("socks4") else "does not answer") in said


def test_without_any_server_one_is_asked_for():
    with (
        temporary_settings({PREFECT_API_URL: None, PREFECT_SERVER_ALLOW_EPHEMERAL_MODE: False}),
        pytest.raises(PrefectServerError, match="the temporary Prefect server cannot be asked: No Prefect API URL"),
    ):
        check_server()


def page_instead_of_json():
    client = get_client(httpx_settings={"transport": httpx.MockTransport(lambda _: httpx.Response(200, content=PAGE))})
    with pytest.raises(ValueError) as error:  # noqa: PT011 - whatever Prefect raises
        anyio.run(client.read_flows)
    return error.value


def test_what_happens_to_a_server_during_a_run_is_told_and_other_errors_are_not_its():
    of_server, of_hub = (httpx.Request("GET", url) for url in ("http://team:80/api/flows", "https://hub.example/x"))

    def answer(status):
        return PrefectHTTPStatusError("", request=of_server, response=httpx.Response(status, request=of_server))

    with temporary_settings({PREFECT_API_URL: "http://TEAM/api"}):
        assert "refuses the key" in str(server_problem(answer(401)))
        assert "does not know this run any more" in str(server_problem(ObjectNotFound(answer(404))))
        assert "does not answer any more: start it" in str(server_problem(httpx.ReadError("", request=of_server)))
        assert "is no Prefect API" in str(server_problem(page_instead_of_json()))
        for other in (httpx.ReadError("", request=of_hub), httpx.ReadError(""), answer(422), ValueError("a bug")):
            assert server_problem(other) is None


def test_a_temporary_server_that_is_gone_has_its_last_error(monkeypatch):
    monkeypatch.setattr(temporary_server, "address", lambda: "http://127.0.0.1:4242/api")
    monkeypatch.setattr(temporary_server, "last_error", lambda: "OSError: no space")
    request = httpx.Request("GET", "http://127.0.0.1:4242/api/flows")
    failed = PrefectHTTPStatusError("", request=request, response=httpx.Response(500, request=request))
    with temporary_settings({PREFECT_API_URL: None}):
        gone = server_problem(httpx.ConnectError("refused", request=request))
        assert gone == "the temporary Prefect server does not answer any more: OSError: no space: run again to resume"
        assert "temporary Prefect server answers 500 Internal Server Error: OSError: no" in str(server_problem(failed))
