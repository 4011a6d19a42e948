"""What runs on this machine is asked for directly, everything else through the proxy that is set."""

import os
from urllib.request import getproxies, proxy_bypass

import httpx
import pytest

from fineweb_mask.flows.processes.environment import set_environment, without_proxy

OWN = "127.0.0.1,localhost,::1,0.0.0.0"


@pytest.mark.parametrize(
    ("given", "upper", "lower"),
    [
        ({"NO_PROXY": "", "no_proxy": ""}, OWN, OWN),
        ({"NO_PROXY": "a.org, localhost"}, *["a.org,localhost,127.0.0.1,::1,0.0.0.0"] * 2),
        ({"NO_PROXY": "a.org", "no_proxy": "b.org"}, f"a.org,{OWN}", f"b.org,{OWN}"),
        ({"NO_PROXY": "*"}, "*", "*"),
    ],
)
def test_what_names_no_proxy_is_extended(given, upper, lower):
    assert without_proxy({"all_proxy": "socks5://p:1080", **given}) == {"NO_PROXY": upper, "no_proxy": lower}


def test_this_machine_is_asked_directly_and_others_through_the_proxy(serve, monkeypatch):
    own, proxy = serve(200, b"own"), serve(200, b"proxy").removesuffix("/api")
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    for name, value in {"NO_PROXY": "", "no_proxy": "", "http_proxy": proxy, "PREFECT_API_URL": ""}.items():
        monkeypatch.setenv(name, value)
    set_environment()
    assert "PREFECT_API_URL" not in os.environ
    assert httpx.get(own).text == "own"
    assert httpx.get("http://team.example/there").text == "proxy"
    for host in ("127.0.0.1:1", "localhost:1", "::1:1"):  # as websockets and aiohttp ask
        assert proxy_bypass(host), getproxies()
