"""Whether a run starts a server of its own, and what that leaves alone; it ends with its run in tests/integration."""

import sqlite3
import sys
from contextlib import closing
from importlib.metadata import version
from pathlib import Path
from time import monotonic

import httpx
import pytest

from fineweb_mask.flows.processes import temporary_server
from fineweb_mask.flows.processes.temporary_server import MOST_RESTARTS, TemporaryServerError, is_surely_used


@pytest.fixture(autouse=True)
def nothing_set(tmp_path, monkeypatch):
    for name in ("PREFECT_API_URL", "PREFECT_PROFILE", "PREFECT_PROFILES_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "home"))
    for name in ("home", "here"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "here")


@pytest.fixture
def started(monkeypatch):
    servers: list[object] = []
    monkeypatch.setattr(temporary_server, "_server", None)
    monkeypatch.setattr(temporary_server, "_Server", lambda: servers.append(object()) or servers[-1])
    return servers


def test_it_is_started_once_before_prefect_is_imported_where_nothing_names_another(started):
    assert is_surely_used()
    Path("pyproject.toml").write_text('[project]\nname = "x"\n')
    temporary_server.start_early()
    temporary_server.start_early()
    assert len(started) == 1


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("../home/profiles.toml", '[profiles.team]\nPREFECT_API_URL = "http://prefect/api"\n'),
        (".env", "PREFECT_API_URL=http://prefect/api\n"),
        ("prefect.toml", '[api]\nurl = "http://prefect/api"\n'),
        ("pyproject.toml", '[tool.prefect.api]\nurl = "http://prefect/api"\n'),
        ("PREFECT_API_URL", "http://127.0.0.1:4200/api"),
        ("PREFECT_PROFILE", "team"),
    ],
)
def test_a_file_that_prefect_reads_or_a_variable_may_name_another(path, text, started, monkeypatch):
    if path.isupper():
        monkeypatch.setenv(path, text)
    else:
        Path(path).write_text(text)
    assert not is_surely_used()
    temporary_server.start_early()
    assert not started


@pytest.fixture
def as_server(tmp_path, monkeypatch):
    """Return the function that has a script run in place of every server."""

    def take(script):
        (tmp_path / "server").write_text(f"#!/bin/sh\n{script}")
        (tmp_path / "server").chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(tmp_path / "server"))

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "here"))
    return take


TRACEBACK = """\
echo 'Traceback (most recent call last):
sqlalchemy.exc.OperationalError: (sqlite3.OperationalError) disk I/O error
(Background on this error at: https://example.org)
ERROR:    Application startup failed. Exiting.' >&2
exit 3
"""


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (TRACEBACK, "does not start: sqlalchemy.exc.OperationalError: (sqlite3.OperationalError) disk I/O error: mend"),
        ("echo no such module >&2; echo >&2; exit 1", "does not start: no such module: mend"),
        ("exec sleep 60", "does not answer within 0.5 s: it says nothing: mend"),
    ],
)
def test_one_that_does_not_start_is_noticed_at_once_with_its_error(script, said, as_server):
    as_server(script)
    began = monotonic()
    server = temporary_server._Server()
    for _ in range(2):  # whoever asks
        with pytest.raises(TemporaryServerError, match="the temporary Prefect server ") as failed:
            server.wait(30.0 if "exit" in script else 0.5)
        assert said in str(failed.value)
    assert monotonic() - began < 15
    assert list(Path().iterdir()) == []


def test_one_that_ends_is_replaced_at_its_port_with_its_folder_a_few_times(tmp_path, as_server):
    as_server(f'echo "$3 $4" >> {tmp_path}/started; echo 4242')
    server = temporary_server._Server()
    assert server.wait(30.0) == 4242
    deadline = monotonic() + 30
    while len(starts := (tmp_path / "started").read_text().splitlines()) <= MOST_RESTARTS:
        assert monotonic() < deadline
    server.stop()
    assert [start.split()[0] for start in starts] == ["0", *["4242"] * MOST_RESTARTS]
    assert len({start.split()[1] for start in starts}) == 1
    assert list(Path().iterdir()) == []


@pytest.mark.long
def test_it_keeps_to_its_own_folder_whatever_the_user_has_set(tmp_path, monkeypatch):
    kept = tmp_path / "cache" / "fineweb-mask" / f"prefect-{version('prefect')}.db"
    kept.parent.mkdir(parents=True)
    kept.write_bytes(b"damaged")
    with closing(sqlite3.connect(tmp_path / "home" / "prefect.db")) as newer:
        newer.executescript("CREATE TABLE alembic_version (version_num); INSERT INTO alembic_version VALUES ('newer')")
    before = (tmp_path / "home" / "prefect.db").read_bytes()
    Path("prefect.toml").write_text('[server.api]\nauth_string = "a:b"\n')
    database = "postgresql+asyncpg://nobody@127.0.0.1:9/none"
    for name, value in (("SERVER_API_AUTH_STRING", "user:password"), ("API_DATABASE_CONNECTION_URL", database)):
        monkeypatch.setenv(f"PREFECT_{name}", value)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    server = temporary_server._Server()
    [folder] = tmp_path.glob("fineweb-mask-prefect-*")
    port = server.wait(120.0)
    found = httpx.post(f"http://127.0.0.1:{port}/api/flows/filter", json={}, trust_env=False)
    assert (found.status_code, found.json()) == (200, [])
    assert (folder / "prefect.db").is_file()
    assert server.process.stdin is not None
    server._restarts_left = 0
    server.process.stdin.close()  # as when its run is killed
    server.process.wait(30)
    server.stop()
    assert not folder.exists()
    assert [path.name for path in (tmp_path / "home").iterdir()] == ["prefect.db"]
    assert (tmp_path / "home" / "prefect.db").read_bytes() == before
    with closing(sqlite3.connect(kept)) as copy:  # the next server has a sound one to begin with
        assert copy.execute("SELECT count(*) FROM flow_run").fetchone() == (0,)
