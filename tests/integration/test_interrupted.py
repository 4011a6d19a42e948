"""A run that is killed or interrupted in any stage: the next one goes on from there, and ends the same.

Its temporary Prefect server, if it has one, ends after it and with it.
"""

import contextlib
import json
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
import pyarrow.parquet as pq
import pytest

from fineweb_mask.flows.summary import RunSummary
from tests.integration.conftest import sample_command, with_server
from tests.s3 import free_port

pytestmark = pytest.mark.long  # a server, a worker or a browser, or whole runs, some of which are killed

ROOT = Path(__file__).resolve().parents[2]
RunSample = Callable[..., RunSummary]
Outcome = Callable[[Path], dict[str, bytes]]
Start = Callable[..., subprocess.Popen[bytes]]
FOLDERS = {  # where a stage writes what it has not finished
    "ingest": "documents",
    "embed": "embeddings",
    "dedup": "repeats",
    "select": "masks",
    "materialize": "dataset-parts",
    "report": "reports",
}


@pytest.fixture
def start(
    server: None, small_sample: tuple[str, ...], tmp_path: Path
) -> Iterator[Callable[[], subprocess.Popen[bytes]]]:
    """Start a run of the sample in a process of its own; it is ended with the test."""
    started = []

    def run(*arguments: str, deaf_to_ctrl_c: bool = False) -> subprocess.Popen[bytes]:
        command = sample_command(tmp_path / "workspace", small_sample, *arguments)
        # What is ignored here is ignored there; what is handled here is as usual there.
        before = signal.signal(signal.SIGINT, signal.SIG_IGN if deaf_to_ctrl_c else signal.default_int_handler)
        with (tmp_path / "output").open("wb") as output:
            started.append(
                subprocess.Popen(command, cwd=ROOT, env=with_server(), stdout=output, stderr=subprocess.STDOUT)
            )
        signal.signal(signal.SIGINT, before)
        return started[-1]

    yield run
    for process in started:
        if process.poll() is None:
            process.kill()
            process.wait()


def wait_for_stage(process: subprocess.Popen[bytes], workspace: Path, stage: str) -> None:
    """Return as soon as a stage has begun to write."""
    deadline = time.monotonic() + 300  # where all cores are busy
    while not any((workspace / FOLDERS[stage]).rglob(".*.partial")):
        assert process.poll() is None, f"the run ended before {stage} was seen to write"
        assert time.monotonic() < deadline
        time.sleep(0.0005)


def requests_refused(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


def leftovers(workspace: Path) -> list[Path]:
    return [path for path in workspace.rglob("*") if path.name.endswith(".partial")]


def test_killed_or_interrupted_in_any_stage_it_ends_as_if_nothing_had_happened(
    start: Start, run_sample: RunSample, outcome: Outcome, finished: Path, tmp_path: Path
) -> None:
    workspace, asked = tmp_path / "workspace", {"embed": (signal.SIGINT, 130), "dedup": (signal.SIGTERM, 143)}
    for stage in FOLDERS:
        again = () if stage == "ingest" else ("--refresh", stage)  # the run killed before may have got further
        process = start(*again, deaf_to_ctrl_c=stage == "dedup")  # as in the background of a script
        wait_for_stage(process, workspace, stage)
        if stage not in asked:
            process.kill()
            process.wait()
            continue
        name, code = asked[stage]
        process.send_signal(name)
        assert process.wait(timeout=20) == code
        assert "run the same command again to resume" in (tmp_path / "output").read_text()
        assert not leftovers(workspace)
        assert not (workspace / "dataset").exists()
        for path in workspace.rglob("*.parquet"):
            pq.read_table(path)
    summary = run_sample(workspace)
    spent = {stage.stage: (stage.files, stage.cached) for stage in summary.stages}
    assert spent["ingest"] == spent["score"] == spent["embed"] == (4, 4)
    assert spent["select"] == spent["materialize"] == (1, 1)
    assert outcome(workspace) == outcome(finished)
    assert not leftovers(workspace)


def test_damaged_files_are_built_again_by_the_run_that_reads_them(
    workspace: Path, run_sample: RunSample, outcome: Outcome, finished: Path
) -> None:
    damaged = [min((workspace / folder).glob("*.parquet")) for folder in ("documents", "scores", "duplicates")]
    for path in damaged:
        content = bytearray(path.read_bytes())
        content[40] ^= 1  # in the first page: the file is taken for current until it is read
        path.write_bytes(content)
    summary = run_sample(workspace, refresh=["embed", "select", "materialize"])
    assert summary.status == "done"
    assert outcome(workspace) == outcome(finished)
    for path in damaged:
        assert path.read_bytes() == (finished / path.relative_to(workspace)).read_bytes()
    ends = [json.loads(path.read_text())["error"] or "" for path in (workspace / "runs").glob("*.json")]
    assert sorted(path.name for path in damaged for end in ends if path.name in end) == sorted(
        path.name for path in damaged
    )


class OnTerminal:
    """A run on a terminal of its own, with a temporary server."""

    def __init__(self, small_sample: tuple[str, ...], folder: Path) -> None:
        self.workspace = folder / "workspace"
        command = sample_command(self.workspace, small_sample, "--until", "score")
        environment = os.environ | {"PREFECT_HOME": str(folder / "prefect")}
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


def test_its_server_killed_another_takes_its_place(on_terminal: OnTerminal) -> None:
    run = on_terminal
    run.wait_until(lambda: run.shown() and (run.workspace / "documents").is_dir())
    [server] = run.servers()
    server.kill()
    codes: list[int] = []
    run.wait_until(lambda: codes.extend(code for code in [run.code()] if code is not None) or codes)
    assert codes == [0], run.shown()
    assert len(list((run.workspace / "scores").glob("*.parquet"))) == 4
    assert "Traceback" not in run.shown()


def test_a_server_of_the_user_s_that_dies_costs_no_work(small_sample: tuple[str, ...], tmp_path: Path) -> None:
    port, workspace = free_port(), tmp_path / "workspace"
    own = {"PREFECT_HOME": str(tmp_path / "prefect"), "PREFECT_API_URL": f"http://127.0.0.1:{port}/api"}
    environment = os.environ | own | {"PREFECT_CLIENT_MAX_RETRIES": "1"}  # of five, which take a minute each time
    (tmp_path / "prefect").mkdir()
    server = [sys.executable, "-m", "fineweb_mask.flows.processes.temporary_server", str(port), own["PREFECT_HOME"]]
    command = sample_command(workspace, small_sample)
    with subprocess.Popen(server, env=environment, stdin=subprocess.PIPE) as serving:
        while requests_refused(port):
            time.sleep(0.1)
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
    assert f"the Prefect server at http://127.0.0.1:{port}/api does not answer any more: start it, and" in said[-1]
    before = {path: path.stat().st_ino for path in (workspace / "dataset" / "data").rglob("*.parquet")}
    del environment["PREFECT_API_URL"]
    again = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, check=False)
    assert again.returncode == 0, again.stderr
    assert before == {path: path.stat().st_ino for path in before} != {}  # the work had been done
