"""A run whose Prefect server or store ends before it, and one that takes its temporary server along."""

import contextlib
import os
import pty
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from fineweb_mask.flows.recipe import load_recipe
from fineweb_mask.flows.status.inspection import finished_run
from tests.conftest import Bucket
from tests.integration.conftest import SECONDS, sample_command, until
from tests.s3 import S3Server, free_port

pytestmark = pytest.mark.long
ROOT = Path(__file__).resolve().parents[2]
SHARD = "CC-MAIN-2023-50_00000.parquet"


@contextlib.contextmanager
def serving_at(port: int, home: Path, environment: dict[str, str]) -> Iterator["subprocess.Popen[bytes]"]:
    """Run the module of the temporary server as a server of the user's."""
    module = [sys.executable, "-m", "fineweb_mask.flows.processes.temporary_server"]
    with socket.create_server(("127.0.0.1", port)) as listener:
        of = listener.fileno()
        server = subprocess.Popen([*module, str(of), str(home)], env=environment, stdin=subprocess.PIPE, pass_fds=[of])
    with server:
        yield server


class OnTerminal:
    """A run on a terminal of its own, with a temporary server."""

    def __init__(self, smallest: tuple[str, ...], folder: Path) -> None:
        self.workspace = folder / "workspace"
        command = sample_command(self.workspace, smallest, "--until", "score")
        own = {
            "PREFECT_HOME": str(folder / "prefect"),
            "PREFECT_CLIENT_MAX_RETRIES": "1",
        }  # of five, a minute each
        environment = os.environ | own
        environment.pop("PREFECT_API_URL", None)
        self.pid, self.terminal = pty.fork()
        if self.pid == 0:
            os.chdir(ROOT)
            os.execve(sys.executable, command, environment)
        self._shown = b""

    def shown(self) -> str:
        """Return what the terminal shows so far."""
        os.set_blocking(self.terminal, False)
        while True:
            try:
                more = os.read(self.terminal, 65_536)
            except OSError:  # nothing more now, or for ever
                more = b""
            if not more:
                return self._shown.decode(errors="replace")
            self._shown += more

    def servers(self) -> list[psutil.Process]:
        found = []
        for child in psutil.Process(self.pid).children():
            with contextlib.suppress(psutil.NoSuchProcess):  # or a zombie: a short command that has just ended
                if any("server" in word for word in child.cmdline()):
                    found.append(child)
        return found

    def server(self) -> psutil.Process:
        """Return its server, once it is there."""
        [found] = until(lambda: self.shown() and self.servers(), "for a server", 0.05)
        return found

    def works(self) -> None:
        """Wait until it has started to work."""
        until(lambda: self.shown() and (self.workspace / "documents").is_dir(), "for documents", 0.02)

    def code(self) -> int:
        """Return the exit code, once it has ended."""

        def ended() -> tuple[int, ...]:
            self.shown()  # it does not end while it has something to say
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            return (os.waitstatus_to_exitcode(status),) if pid else ()

        return until(ended, "for the end", 0.05)[0]


@pytest.fixture
def smallest(sample_corpus: Path, small_sample: tuple[str, ...]) -> tuple[str, ...]:
    """The settings of a run of one shard."""
    return (*small_sample, "embedding.static_dimensions=64", f"source.path={sample_corpus / 'corpus' / SHARD}")


@pytest.fixture
def on_terminal(smallest: tuple[str, ...], tmp_path: Path) -> Iterator[OnTerminal]:
    run = OnTerminal(smallest, tmp_path)
    yield run
    os.close(run.terminal)
    if psutil.pid_exists(run.pid):
        os.kill(run.pid, signal.SIGKILL)


def test_ctrl_c_on_a_terminal_ends_the_run_and_then_its_server(on_terminal: OnTerminal) -> None:
    run = on_terminal
    run.works()
    server, asked = run.server(), time.monotonic()
    os.write(run.terminal, b"\x03")
    assert run.code() == 130, run.shown()
    assert time.monotonic() - asked < 20
    assert "run the same command again to resume" in run.shown()
    assert "Traceback" not in run.shown()
    assert not server.is_running()


def test_killed_it_takes_its_server_along(on_terminal: OnTerminal) -> None:
    server = on_terminal.server()
    os.kill(on_terminal.pid, signal.SIGKILL)
    os.waitpid(on_terminal.pid, 0)
    server.wait(timeout=SECONDS)


def test_its_server_killed_it_says_so_and_is_to_be_resumed(on_terminal: OnTerminal) -> None:
    run = on_terminal
    run.works()
    run.server().kill()
    assert run.code() == 1, run.shown()
    assert "the temporary Prefect server does not answer any more: " in run.shown()
    assert "Traceback" not in run.shown()


def test_a_server_of_the_user_s_that_dies_costs_no_work(smallest: tuple[str, ...], tmp_path: Path) -> None:
    port, workspace = free_port(), tmp_path / "workspace"
    own = {"PREFECT_HOME": str(tmp_path / "prefect"), "PREFECT_API_URL": f"http://127.0.0.1:{port}/api"}
    environment = os.environ | own | {"PREFECT_CLIENT_MAX_RETRIES": "1"}  # of five, which take a minute each time
    (tmp_path / "prefect").mkdir()
    command = sample_command(workspace, smallest)
    with serving_at(port, Path(own["PREFECT_HOME"]), environment) as serving:
        with (tmp_path / "output").open("wb") as output:
            run = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT)
        while run.poll() is None and not (workspace / "scores").is_dir():
            time.sleep(0.02)
        serving.kill()
        asked = time.monotonic()
        assert run.wait(SECONDS) == 1
    assert time.monotonic() - asked < 120
    said = [line for line in (tmp_path / "output").read_text().splitlines() if "| INFO " not in line]
    assert "Traceback" not in "".join(said)
    said = [line for line in said if not line.startswith(("reads  ", "columns  "))]  # the inventory
    assert len(said) <= 5  # two of them before the server was missed
    assert f"the Prefect server at http://127.0.0.1:{port}/api cannot be used (" in said[-1]
    assert finished_run(load_recipe("sample", smallest, str(workspace))) is not None  # the work had been done


def test_a_store_that_is_gone_for_good_ends_the_run_within_two_minutes(reach, smallest):
    store = S3Server()
    bucket = Bucket(store, "gone", "s3://gone")
    try:
        store.client.create_bucket(Bucket=bucket.name)
        reach(store.url)
        command = sample_command("s3://gone/ws", smallest)
        with subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ
        ) as run:
            while not bucket.names("ws/scores/"):
                assert run.poll() is None
                time.sleep(0.1)
            store.kill()
            killed = time.monotonic()
            _, errors = run.communicate(timeout=300)
        seconds = time.monotonic() - killed
    finally:
        store.kill()
    assert seconds < 120
    assert run.returncode == 1
    told = [line for line in errors.splitlines() if line.startswith("fineweb-mask: ")]
    assert len(told) == 1
    assert "s3://gone/ws" in told[0]
    assert "check that the server is up and run the same command again" in told[0]
