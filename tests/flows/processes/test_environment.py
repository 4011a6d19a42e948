"""What runs on this machine is asked for directly, everything else through the proxy that is set."""

import os
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.request import getproxies, proxy_bypass

import httpx
import pytest

from fineweb_mask.flows.processes.environment import set_environment, without_proxy

OWN = "127.0.0.1,localhost,::1,0.0.0.0"


@pytest.mark.parametrize(
    ("given", "upper", "lower"),
    [
        ({}, OWN, OWN),
        ({"NO_PROXY": "", "no_proxy": ""}, OWN, OWN),
        ({"NO_PROXY": "a.org, localhost"}, *["a.org,localhost,127.0.0.1,::1,0.0.0.0"] * 2),
        ({"no_proxy": "a.org"}, f"a.org,{OWN}", f"a.org,{OWN}"),
        ({"NO_PROXY": "a.org", "no_proxy": "b.org"}, f"a.org,{OWN}", f"b.org,{OWN}"),
        ({"NO_PROXY": "*"}, "*", "*"),
    ],
)
def test_what_names_no_proxy_is_extended(given: dict[str, str], upper: str, lower: str) -> None:
    assert without_proxy({"all_proxy": "socks5://p:1080", **given}) == {"NO_PROXY": upper, "no_proxy": lower}


class Names(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.path.encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def url() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Names) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_this_machine_is_asked_directly_and_others_through_the_proxy(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, "")
    monkeypatch.setenv("http_proxy", url)
    monkeypatch.setenv("PREFECT_API_URL", "")
    set_environment()
    assert "PREFECT_API_URL" not in os.environ
    assert httpx.get(f"{url}/here").text == "/here"
    assert httpx.get("http://team.example/there").text == "http://team.example/there"
    for host in ("127.0.0.1:1", "localhost:1", "::1:1"):  # as websockets and aiohttp ask
        assert proxy_bypass(host), getproxies()
