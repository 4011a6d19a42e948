"""Run a Prefect server and a worker on this machine, deploy, and wait for Ctrl-C (`make serve`).

All files are kept in one folder. The user's own Prefect settings are neither read nor changed. Runs resolve relative
paths in this checkout, or in the copy that FINEWEB_MASK_HOME names.
"""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, NoReturn

import httpx
import typer

from fineweb_mask.flows.processes.environment import ENVIRONMENT_DEFAULTS, without_proxy
from fineweb_mask.flows.processes.temporary_server import empty_database
from fineweb_mask.models.errors import FinewebMaskError
from fineweb_mask.tasks.storage.atomic import atomic_write

ROOT = Path(__file__).resolve().parents[1]
HOST = "127.0.0.1"
POOL = "local"
HOME = "FINEWEB_MASK_HOME"
START_SECONDS = 120.0  # the first start creates the database, which takes up to a minute on a busy machine
STOP_SECONDS = 20.0
POLL_SECONDS = 0.1
PREFECT = (sys.executable, "-m", "prefect")


class ServeError(FinewebMaskError, RuntimeError):
    """The server or the worker cannot be started, or has ended."""


class Process:
    """A process in its own session, whose output goes to a log; no signal of the terminal reaches it."""

    def __init__(self, state: Path, name: str, command: list[str], environment: dict[str, str]) -> None:
        self.name, self.log = name, state / f"{name}.log"
        with self.log.open("w") as log:
            self._process = subprocess.Popen(
                [*PREFECT, *command],
                cwd=ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.pid = self._process.pid

    def stop(self) -> None:
        """Stop the process and its children."""
        for kill in (signal.SIGTERM, signal.SIGKILL):
            deadline = time.monotonic() + STOP_SECONDS
            with suppress(ProcessLookupError):  # all have ended
                os.killpg(self._process.pid, kill)
                while time.monotonic() < deadline:
                    self._process.poll()  # until it is asked, one that has ended is there
                    os.killpg(self._process.pid, 0)
                    time.sleep(POLL_SECONDS)

    def wait(self, is_ready: Callable[[], bool]) -> None:
        """Return when the process is ready; raise if it has ended, or takes too long."""
        deadline = time.monotonic() + START_SECONDS
        while (has_ended := self._process.poll() is not None) or not is_ready():
            if has_ended or time.monotonic() > deadline:
                problem = "has ended" if has_ended else f"is not ready after {START_SECONDS:.0f} s"
                raise ServeError(f"the {self.name} {problem}: read {self.log}")
            time.sleep(POLL_SECONDS)


def _environment(state: Path, port: int) -> dict[str, str]:
    """Return the user's environment with Prefect settings for this server instead of the user's own.

    It lacks FINEWEB_MASK_HOME: deployments name the variable, and only the worker knows its value.
    """
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", HOME))}
    own = {"PREFECT_HOME": str(state / "prefect"), "PREFECT_API_URL": f"http://{HOST}:{port}/api"}
    inherited |= without_proxy(inherited)
    return {**ENVIRONMENT_DEFAULTS, **inherited, **own, "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false"}


def _require_free(port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            raise ServeError(f"port {port} is taken by another program: make serve PORT={port + 1}") from error


def _copy_database(database: Path) -> None:
    """Begin with the empty database that a temporary server has made, if one has: it saves the seconds that takes."""
    if not database.exists():
        with suppress(OSError), atomic_write(database) as partial:
            shutil.copyfile(empty_database(), partial)


def _api(port: int) -> httpx.Client:
    return httpx.Client(base_url=f"http://{HOST}:{port}/api", trust_env=False)  # through no proxy


def _is_healthy(api: httpx.Client) -> bool:
    try:
        return api.get("health").is_success
    except httpx.TransportError:
        return False


def _has_worker(api: httpx.Client) -> bool:
    response = api.post(f"work_pools/{POOL}/workers/filter", json={})
    return response.is_success and any(worker["status"] == "ONLINE" for worker in response.json())


def _crash_lost_runs(api: httpx.Client) -> None:
    """Mark the runs of a stopped worker as crashed: the next run of their deployment would wait for them."""
    unfinished = {"state": {"type": {"any_": ["PENDING", "RUNNING", "CANCELLING"]}}}
    lost = api.post("flow_runs/filter", json={"flow_runs": unfinished, "work_pools": {"name": {"any_": [POOL]}}})
    crashed = {"type": "CRASHED", "message": "its worker was stopped; a new run resumes from here"}
    for run in lost.raise_for_status().json():
        api.post(f"flow_runs/{run['id']}/set_state", json={"state": crashed}).raise_for_status()


@contextmanager
def running_server(state: Path, port: int) -> Iterator[Process]:
    """Run a server in the block, which begins once it answers; runs that a worker of before had not ended are crashed.

    Raises
    ------
    ServeError
        If the port is taken, or the server does not start.
    """
    _require_free(port)
    state.mkdir(parents=True, exist_ok=True)
    _copy_database(state / "prefect" / "prefect.db")
    command = ["server", "start", "--host", HOST, f"--port={port}"]
    server = Process(state, "server", command, _environment(state, port))
    try:
        with _api(port) as api:
            server.wait(lambda: _is_healthy(api))
            _crash_lost_runs(api)
        yield server
    finally:
        server.stop()


@contextmanager
def running_worker(state: Path, port: int) -> Iterator[Process]:
    """Run a worker of that server in the block, which begins once it is online and everything is deployed.

    Raises
    ------
    ServeError
        If the worker does not start, or something cannot be deployed.
    """
    environment = _environment(state, port)
    queues = ["default", "gpu"] if shutil.which("nvidia-smi") else ["default"]
    command = ["worker", "start", f"--pool={POOL}", "--type=process", *(f"--work-queue={one}" for one in queues)]
    own = {"PREFECT_WORKER_QUERY_SECONDS": "2", HOME: os.environ.get(HOME, str(ROOT))}
    worker = Process(state, "worker", command, environment | own)
    try:
        with _api(port) as api:
            worker.wait(lambda: _has_worker(api))
        deploy = [*PREFECT, "--no-prompt", "deploy", "--all", "--prefect-file", "deployments/prefect.yaml"]
        done = subprocess.run(deploy, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise ServeError(f"cannot deploy:\n{done.stdout}{done.stderr}")
        yield worker
    finally:
        worker.stop()


def serve(
    *,
    port: Annotated[int, typer.Option(min=1, max=65_535, help="Port of the server.")] = 4200,
    state: Annotated[Path, typer.Option(help="Folder of the server's database and of the logs.")] = ROOT / ".serve",
) -> None:
    """Start a server and a worker, deploy, say when they are ready, and stop them at Ctrl-C."""
    state, url = state.absolute(), f"http://{HOST}:{port}"
    with suppress(KeyboardInterrupt), running_server(state, port) as server, running_worker(state, port) as worker:
        prefect = Path(sys.executable).with_name("prefect")
        shown = prefect.relative_to(Path.cwd()) if prefect.is_relative_to(Path.cwd()) else prefect
        typer.echo(
            f"Prefect UI      {url}\n"
            f"run the sample  PREFECT_API_URL={url}/api {shown} deployment run 'curate/sample' --watch\n"
            f"logs            {server.log}, {worker.log}\n"
            "Ctrl-C ends the server and the worker"
        )
        while True:
            for process in (server, worker):
                process.wait(lambda: True)
            time.sleep(POLL_SECONDS)


def _interrupt(*_: object) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    for ending in (signal.SIGTERM, signal.SIGHUP):  # the latter if its terminal is closed
        signal.signal(ending, _interrupt)
    try:
        typer.run(serve)
    except ServeError as error:
        sys.exit(f"serve: {error}")
