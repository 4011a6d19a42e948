"""Whether a run starts a server of its own; that it ends with its run is shown in tests/integration."""

import socket
from contextlib import closing
from pathlib import Path

import pytest

from fineweb_mask.flows.processes import temporary_server
from fineweb_mask.flows.processes.temporary_server import is_surely_used


@pytest.fixture(autouse=True)
def nothing_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PREFECT_API_URL", "PREFECT_PROFILE", "PREFECT_PROFILES_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")


def test_it_is_used_where_nothing_names_another() -> None:
    assert is_surely_used()
    Path("pyproject.toml").write_text('[project]\nname = "x"\n')
    assert is_surely_used()


@pytest.mark.parametrize("name", ["PREFECT_API_URL", "PREFECT_PROFILE"])
def test_a_variable_may_name_another(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "http://127.0.0.1:4200/api")
    assert not is_surely_used()


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("../home/profiles.toml", '[profiles.team]\nPREFECT_API_URL = "http://prefect/api"\n'),
        (".env", "PREFECT_API_URL=http://prefect/api\n"),
        ("prefect.toml", '[api]\nurl = "http://prefect/api"\n'),
        ("pyproject.toml", '[tool.prefect.api]\nurl = "http://prefect/api"\n'),
    ],
)
def test_a_file_that_prefect_reads_may_name_another(path: str, text: str) -> None:
    Path(path).write_text(text)
    assert not is_surely_used()


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    ports: list[int] = []
    monkeypatch.setattr(temporary_server, "_early", [])
    monkeypatch.setattr(temporary_server, "_start", lambda port, _environment: ports.append(port))
    return ports


def test_it_is_started_once_before_prefect_is_imported(started: list[int]) -> None:
    temporary_server.start_early()
    temporary_server.start_early()
    [port] = started
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", port))


def test_it_is_not_started_early_where_another_may_be_named(started: list[int]) -> None:
    Path(".env").write_text("PREFECT_API_URL=http://prefect/api\n")
    temporary_server.start_early()
    assert not started
