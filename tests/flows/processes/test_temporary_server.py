"""A temporary server that does not start, and what one leaves alone; it ends with its run in tests/integration."""

import sqlite3
import sys
from contextlib import closing
from importlib.metadata import version
from pathlib import Path
from time import monotonic

import httpx
import pytest

from fineweb_mask.flows.processes import temporary_server
from fineweb_mask.flows.processes.temporary_server import TemporaryServer, TemporaryServerError


@pytest.fixture
def as_server(tmp_path, monkeypatch):
    """Return the function that has a script run instead of every server."""

    def take(script):
        (tmp_path / "server").write_text(f"#!/bin/sh\n{script}")
        (tmp_path / "server").chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(tmp_path / "server"))

    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
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
    server = TemporaryServer()
    with pytest.raises(TemporaryServerError, match="the temporary Prefect server ") as failed:
        server.wait(30.0 if "exit" in script else 0.5)
    assert said in str(failed.value)
    assert monotonic() - began < 15
    assert list(Path().iterdir()) == []


def test_another_is_started_if_one_has_ended(as_server, monkeypatch):
    monkeypatch.setattr(temporary_server, "_servers", [])
    as_server("exec sleep 60")
    first = temporary_server.started()
    assert temporary_server.started() is first
    first.stop()
    assert temporary_server.started() is not first
    temporary_server.started().stop()
    assert list(Path().iterdir()) == []


@pytest.mark.long
def test_it_keeps_to_its_own_folder_whatever_the_user_has_set(tmp_path, monkeypatch):
    kept = tmp_path / "cache" / "fineweb-mask" / f"prefect-{version('prefect')}.db"
    for name in ("home", "here"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "home"))
    with closing(sqlite3.connect(tmp_path / "home" / "prefect.db")) as newer:
        newer.executescript("CREATE TABLE alembic_version (version_num); INSERT INTO alembic_version VALUES ('newer')")
    before = (tmp_path / "home" / "prefect.db").read_bytes()
    Path("prefect.toml").write_text('[server.api]\nauth_string = "a:b"\n')
    database = "postgresql+asyncpg://nobody@127.0.0.1:9/none"
    for name, value in (("SERVER_API_AUTH_STRING", "user:password"), ("API_DATABASE_CONNECTION_URL", database)):
        monkeypatch.setenv(f"PREFECT_{name}", value)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    server = TemporaryServer()
    [folder] = tmp_path.glob("fineweb-mask-prefect-*")
    server.wait(120.0)
    found = httpx.post(f"{server.address}/flows/filter", json={}, trust_env=False)
    assert (found.status_code, found.json()) == (200, [])
    assert (folder / "prefect.db").is_file()
    assert server.process.stdin is not None
    server.process.stdin.close()  # as when its run is killed
    server.process.wait(30)
    server.stop()
    assert not folder.exists()
    assert [path.name for path in (tmp_path / "home").iterdir()] == ["prefect.db"]
    assert (tmp_path / "home" / "prefect.db").read_bytes() == before
    with closing(sqlite3.connect(kept)) as copy:  # that the next server begins with
        assert copy.execute("SELECT count(*) FROM flow_run").fetchone() == (0,)
