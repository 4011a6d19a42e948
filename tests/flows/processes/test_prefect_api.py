"""What is said of a Prefect server that cannot be used: one line, and it is no bug to report."""

import httpx
import pytest
from prefect.exceptions import ObjectNotFound, PrefectHTTPStatusError
from prefect.settings import PREFECT_API_URL, temporary_settings

from fineweb_mask.flows.processes import temporary_server
from fineweb_mask.flows.processes.prefect_api import PrefectServerError, server_problem, server_used

PAGE = b"<html>please log in</html>"


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ((401, PAGE), "401 Unauthorized"),
        ((404, {}), "404 Not Found"),
        ((503, PAGE), "503 Service Unavailable"),
        ((200, PAGE), "Expecting value"),
        ((200, "2.20.1"), "Major versions must match"),
        ("http://user:secret@127.0.0.1:9/api", "refused"),
        ("127.0.0.1:4200/api", "http"),
        ("http://127.0.0.1:port/api", "Invalid port: 'port'"),
    ],
)
def test_why_a_server_cannot_be_used_is_told_in_one_line_before_any_work(answer, said, serve, monkeypatch):
    monkeypatch.setattr("prefect.client.base.time.sleep", lambda _: None)
    url = answer if isinstance(answer, str) else serve(*answer, Retry_After="0")
    with (
        temporary_settings({PREFECT_API_URL: url}),
        pytest.raises(PrefectServerError, match="cannot be used") as failed,
        server_used(lambda: None),
    ):
        pass
    told = str(failed.value)
    assert said in told
    assert "check that it runs, PREFECT_API_URL" in told
    assert "\n" not in told
    assert "secret" not in told


def test_a_server_that_answers_is_used(serve):
    with temporary_settings({PREFECT_API_URL: serve(200, "3.8.8")}), server_used(lambda: None):
        pass


def test_what_happens_to_a_server_during_a_run_is_told_and_other_errors_are_not_its():
    of_server, of_hub = (httpx.Request("GET", url) for url in ("http://team:80/api/flows", "https://hub.example/x"))
    refused = PrefectHTTPStatusError("no", request=of_server, response=httpx.Response(401, request=of_server))
    with temporary_settings({PREFECT_API_URL: "http://TEAM/api"}):
        for error in (refused, ObjectNotFound(refused), httpx.ReadError("", request=of_server)):
            assert "the Prefect server at http://TEAM/api cannot be used (" in str(server_problem(error))
        for other in (httpx.ReadError("", request=of_hub), httpx.ReadError(""), ValueError("a bug")):
            assert server_problem(other) is None


def test_a_temporary_server_that_is_gone_has_its_last_error(monkeypatch):
    monkeypatch.setattr(temporary_server, "address", lambda: "http://127.0.0.1:4242/api")
    monkeypatch.setattr(temporary_server, "last_error", lambda: "OSError: no space")
    with temporary_settings({PREFECT_API_URL: None}):
        request = httpx.Request("GET", "http://127.0.0.1:4242/api/flows")
        gone = server_problem(httpx.ConnectError("refused", request=request))
    assert gone == "the temporary Prefect server does not answer any more: OSError: no space: run again to resume"
