"""A Prefect server, a worker and the deployments, on this machine: `make serve` starts them, `make stop` ends them.

All that they keep lies in one folder, and none of the user's own Prefect settings are read or changed. A process holds
a lock on its file in that folder for as long as it lives, so a process id in it is never another program's.
Runs read and write relative paths in the checkout, or in the copy of it that FINEWEB_MASK_HOME names.
"""

import fcntl
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, NoReturn

import httpx
import typer

from fineweb_mask.flows.commands._common import ENVIRONMENT_DEFAULTS
from fineweb_mask.models.errors import FinewebMaskError

ROOT = Path(__file__).resolve().parents[1]
STATE = ROOT / ".serve"
HOST = "127.0.0.1"
PORT = 4200
POOL = "local"
HOME = "FINEWEB_MASK_HOME"
START_SECONDS = 120.0  # the first start writes the database; a busy machine takes a minute
STOP_SECONDS = 20.0
POLL_SECONDS = 0.1
LOG_TAIL_LINES = 15
PREFECT = (sys.executable, "-m", "prefect")

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)
StateOption = Annotated[Path, typer.Option("--state", help="Folder of the server's database, logs and process ids.")]


class ServeError(FinewebMaskError, RuntimeError):
    """The server or the worker cannot be started or ended."""


class Process:
    """A process that outlives this command, found again by the lock that it holds."""

    def __init__(self, state: Path, name: str) -> None:
        self.name = name
        self.file = state / f"{name}.pid"
        self.log = state / f"{name}.log"

    @property
    def pid(self) -> int | None:
        """The process's id, which is also its group's, while it lives."""
        try:
            with self.file.open() as stream:
                if _try_lock(stream.fileno()):
                    return None
                return int(stream.read())
        except FileNotFoundError:
            return None

    def start(self, command: list[str], environment: dict[str, str]) -> None:
        """Start the process in a group of its own, its output in the log."""
        with self.file.open("w") as lock, self.log.open("w") as log:
            if not _try_lock(lock.fileno()):
                raise ServeError(f"the {self.name} is being started by another command")
            started = subprocess.Popen(
                command,
                cwd=ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=[lock.fileno()],
            )
            lock.write(str(started.pid))

    def stop(self) -> bool:
        """End the process and what it started; return whether there was anything to end."""
        group = self.pid
        if group is None:
            return False
        for kill in (signal.SIGTERM, signal.SIGKILL):
            os.killpg(group, kill)
            if _comes_true(lambda: self.pid is None and not _group_lives(group), STOP_SECONDS):
                self.file.unlink()
                return True
        raise ServeError(f"the {self.name} does not end: process {group}")

    def wait(self, ready: Callable[[], bool]) -> None:
        """Wait until the process is ready for use."""
        if _comes_true(lambda: self.pid is None or ready(), START_SECONDS) and self.pid is not None:
            return
        what = "ended" if self.pid is None else f"is not ready after {START_SECONDS:.0f} s"
        tail = "\n".join(self.log.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:])
        raise ServeError(f"the {self.name} {what}; the end of {self.log}:\n{tail}")


def _try_lock(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _group_lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def _comes_true(condition: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_SECONDS)
    return True


def address(port: int) -> str:
    """Return where the server's UI is; its API lies below, at /api."""
    return f"http://{HOST}:{port}"


def environment(state: Path, port: int) -> dict[str, str]:
    """Return the environment of server, worker and deploy: the user's, without their Prefect settings."""
    own = ("PREFECT_", HOME)  # the deployments name the folder by its variable, which the worker alone resolves
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(own)}
    return {
        **ENVIRONMENT_DEFAULTS,
        **inherited,
        "PREFECT_HOME": str(state / "prefect"),
        "PREFECT_API_URL": f"{address(port)}/api",
        "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
    }


def _start_server(server: Process, state: Path, port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            raise ServeError(f"port {port} is taken by another program: make serve PORT={port + 1}") from error
    server.start([*PREFECT, "server", "start", "--host", HOST, "--port", str(port)], environment(state, port))
    (state / "port").write_text(str(port))


def _start_worker(worker: Process, state: Path, port: int) -> None:
    queues = ["default", "gpu"] if shutil.which("nvidia-smi") else ["default"]
    command = [*PREFECT, "worker", "start", "--pool", POOL, "--type", "process"]
    own = {"PREFECT_WORKER_QUERY_SECONDS": "2", HOME: os.environ.get(HOME, str(ROOT))}
    worker.start([*command, *(f"--work-queue={queue}" for queue in queues)], environment(state, port) | own)


def _port_of_before(state: Path) -> int | None:
    """Return the port of a server that died: who used it finds the new one there."""
    try:
        return int((state / "port").read_text())
    except (FileNotFoundError, ValueError):
        return None


def _is_healthy(port: int) -> bool:
    try:
        return httpx.get(f"{address(port)}/api/health").is_success
    except httpx.TransportError:
        return False


def _has_worker(port: int) -> bool:
    response = httpx.post(f"{address(port)}/api/work_pools/{POOL}/workers/filter", json={})
    return response.is_success and any(worker["status"] == "ONLINE" for worker in response.json())


def _end_lost_runs(port: int) -> None:
    """Record as crashed what ran when the worker was stopped; the next run of its deployment would wait for it."""
    unfinished = {"state": {"type": {"any_": ["PENDING", "RUNNING", "CANCELLING"]}}}
    with httpx.Client(base_url=f"{address(port)}/api/flow_runs") as runs:
        lost = runs.post("/filter", json={"flow_runs": unfinished, "work_pools": {"name": {"any_": [POOL]}}})
        crashed = {"type": "CRASHED", "message": "its worker was stopped; a new run goes on from here"}
        for run in lost.raise_for_status().json():
            runs.post(f"/{run['id']}/set_state", json={"state": crashed}).raise_for_status()


def deploy(state: Path, port: int) -> None:
    """Deploy all of `prefect.yaml`, as a user would."""
    command = [*PREFECT, "--no-prompt", "deploy", "--all", "--prefect-file", "deployments/prefect.yaml"]
    done = subprocess.run(command, cwd=ROOT, env=environment(state, port), capture_output=True, text=True, check=False)
    (state / "deploy.log").write_text(done.stdout + done.stderr)
    if done.returncode:
        raise ServeError(f"cannot deploy:\n{done.stdout}{done.stderr}")


@contextmanager
def _alone(state: Path) -> Iterator[None]:
    """Let one command at a time change what runs."""
    state.mkdir(parents=True, exist_ok=True)
    with (state / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def start_all(state: Path, port: int | None) -> int:
    """Start what does not run yet, and deploy; return the server's port once all is ready.

    Raises
    ------
    ServeError
        If the port is taken, or something does not start.
    """
    with _alone(state):
        server, worker = Process(state, "server"), Process(state, "worker")
        if server.pid is None:
            worker.stop()
            port = port or _port_of_before(state) or PORT
            _start_server(server, state, port)
        else:
            running = int((state / "port").read_text())
            if port not in {None, running}:
                raise ServeError(f"already running at {address(running)}: make stop first to change its port")
            port = running
        server.wait(lambda: _is_healthy(port))
        if worker.pid is None:
            _end_lost_runs(port)
            _start_worker(worker, state, port)
        worker.wait(lambda: _has_worker(port))
        deploy(state, port)
        return port


@app.command()
def start(
    *,
    port: Annotated[int | None, typer.Option(min=1, max=65_535, help=f"Port of the server. [default: {PORT}]")] = None,
    state: StateOption = STATE,
) -> None:
    """Start a server and a worker, deploy, and return when they are ready."""
    try:
        port = start_all(state.absolute(), port)
    except ServeError as error:
        _fail(error)
    prefect = Path(sys.executable).with_name("prefect")
    shown = prefect.relative_to(Path.cwd()) if prefect.is_relative_to(Path.cwd()) else prefect
    typer.echo(
        f"Prefect UI      {address(port)}\n"
        f"run the sample  PREFECT_API_URL={address(port)}/api {shown} deployment run 'curate/sample' --watch\n"
        f"logs            {state / 'server.log'}, {state / 'worker.log'}"
    )


@app.command()
def stop(*, state: StateOption = STATE) -> None:
    """End the worker and the server that `start` started, and nothing else."""
    state = state.absolute()
    if not state.is_dir():
        typer.echo("nothing is running")
        return
    try:
        with _alone(state):
            ended = [name for name in ("worker", "server") if Process(state, name).stop()]
            (state / "port").unlink(missing_ok=True)
    except ServeError as error:
        _fail(error)
    typer.echo(f"ended: {', '.join(ended)}" if ended else "nothing is running")


def _fail(error: ServeError) -> NoReturn:
    typer.echo(f"serve: {error}", err=True)
    raise typer.Exit(1)


if __name__ == "__main__":
    app()
