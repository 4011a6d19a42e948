"""A run whose Prefect server or store ends before it, and one that takes its temporary server along."""

import contextlib
import os
import pty
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.conftest import Bucket
from tests.integration.conftest import sample_command
from tests.s3 import S3Server, free_port

pytestmark = pytest.mark.long
ROOT = Path(__file__).resolve().parents[2]


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

    def __init__(self, small_sample: tuple[str, ...], folder: Path) -> None:
        self.workspace = folder / "workspace"
        command = sample_command(self.workspace, small_sample, "--until", "score")
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

    def wait_until(self, what: Callable[[], object]) -> None:
        deadline = time.monotonic() + 120
        while not what():
            assert time.monotonic() < deadline, self.shown()
            time.sleep(0.001)

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

    def code(self) -> int | None:
        """Return the exit code once it has ended."""
        self.shown()  # it does not end while it has something to say
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        return os.waitstatus_to_exitcode(status) if pid else None


@pytest.fixture
def on_terminal(small_sample: tuple[str, ...], tmp_path: Path) -> Iterator[OnTerminal]:
    run = OnTerminal(small_sample, tmp_path)
    yield run
    os.close(run.terminal)
    if psutil.pid_exists(run.pid):
        os.kill(run.pid, signal.SIGKILL)


def test_ctrl_c_on_a_terminal_ends_the_run_and_then_its_server(on_terminal: OnTerminal) -> None:
    run = on_terminal
    run.wait_until(lambda: run.shown() and (run.workspace / "documents").is_dir())
    [server] = run.servers()
    asked = time.monotonic()
    os.write(run.terminal, b"\x03")
    codes: list[int] = []
    run.wait_until(lambda: codes.extend(code for code in [run.code()] if code is not None) or codes)
    assert codes == [130], run.shown()
    assert time.monotonic() - asked < 20
    assert "run the same command again to resume" in run.shown()
    assert "Traceback" not in run.shown()
    assert not server.is_running()


def test_killed_it_takes_its_server_along(on_terminal: OnTerminal) -> None:
    run = on_terminal
    run.wait_until(lambda: run.shown() and run.servers())
    [server] = run.servers()
    os.kill(run.pid, signal.SIGKILL)
    os.waitpid(run.pid, 0)
    server.wait(timeout=30)


def test_its_server_killed_it_says_so_and_is_to_be_resumed(on_terminal: OnTerminal) -> None:
    run = on_terminal
    run.wait_until(lambda: run.shown() and (run.workspace / "documents").is_dir())
    [server] = run.servers()
    server.kill()
    codes: list[int] = []
    run.wait_until(lambda: codes.extend(code for code in [run.code()] if code is not None) or codes)
    assert codes == [1], run.shown()
    assert "the temporary Prefect server does not answer any more: " in run.shown()
    assert "Traceback" not in run.shown()


def test_a_server_of_the_user_s_that_dies_costs_no_work(small_sample: tuple[str, ...], tmp_path: Path) -> None:
    port, workspace = free_port(), tmp_path / "workspace"
    own = {"PREFECT_HOME": str(tmp_path / "prefect"), "PREFECT_API_URL": f"http://127.0.0.1:{port}/api"}
    environment = os.environ | own | {"PREFECT_CLIENT_MAX_RETRIES": "1"}  # of five, which take a minute each time
    (tmp_path / "prefect").mkdir()
    command = sample_command(workspace, small_sample)
    with serving_at(port, Path(own["PREFECT_HOME"]), environment) as serving:
        with (tmp_path / "output").open("wb") as output:
            run = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT)
        while run.poll() is None and not (workspace / "scores").is_dir():
            time.sleep(0.02)
        serving.kill()
        asked = time.monotonic()
        assert run.wait(timeout=240) == 1
    assert time.monotonic() - asked < 120
    said = [line for line in (tmp_path / "output").read_text().splitlines() if "| INFO " not in line]
    assert "Traceback" not in "".join(said)
    said = [line for line in said if not line.startswith(("reads  ", "columns  "))]  # the inventory
    assert len(said) <= 5  # two of them before the server was missed
    assert f"the Prefect server at http://127.0.0.1:{port}/api cannot be used (" in said[-1]
    before = {path: path.stat().st_ino for path in (workspace / "dataset" / "data").rglob("*.parquet")}
    del environment["PREFECT_API_URL"]
    again = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, check=False)
    assert again.returncode == 0, again.stderr
    assert before == {path: path.stat().st_ino for path in before} != {}  # the work had been done


def test_a_store_that_is_gone_for_good_ends_the_run_within_two_minutes(reach, sample_corpus, small_sample, tmp_path):
    store = S3Server()
    bucket = Bucket(store, "gone", "s3://gone")
    try:
        store.client.create_bucket(Bucket=bucket.name)
        reach(store.url)
        command = [sys.executable, "-m", "fineweb_mask.flows.cli", "run", "deployments/recipes/sample.yaml"]
        settings = (*small_sample, f"source.path={sample_corpus / 'corpus'}")
        command += ["--workspace", "s3://gone/ws", *(f"--set={setting}" for setting in settings)]
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
