"""Start a Prefect server and a worker on this machine and deploy (`make serve`), and stop them again (`make stop`).

All files are kept in one folder. The user's own Prefect settings are neither read nor changed, except one: with
PREFECT_SERVER_API_AUTH_STRING=user:password, the server answers only those who have the password. Runs resolve relative
paths in this checkout, or in the copy that FINEWEB_MASK_HOME names.

Each process holds a lock on its pid file as long as it runs, so the pid in the file is never another program's.
Prefect's own `server start --background` has no log and refuses to start after a crash, and `server stop` signals
whichever process now has the pid. `filelock` cannot pass a lock on to a child process; `fcntl` can.
"""

import base64
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
from typing import Annotated

import httpx
import typer

from fineweb_mask.flows.processes.environment import ENVIRONMENT_DEFAULTS, without_proxy
from fineweb_mask.models.errors import FinewebMaskError

ROOT = Path(__file__).resolve().parents[1]
STATE = ROOT / ".serve"
HOST = "127.0.0.1"
PORT = 4200
POOL = "local"
HOME = "FINEWEB_MASK_HOME"
SERVER_AUTH, CLIENT_AUTH = "PREFECT_SERVER_API_AUTH_STRING", "PREFECT_API_AUTH_STRING"
START_SECONDS = 120.0  # the first start creates the database, which takes up to a minute on a busy machine
STOP_SECONDS = 20.0
POLL_SECONDS = 0.1
LOG_TAIL_LINES = 15
PREFECT = (sys.executable, "-m", "prefect")

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)
StateOption = Annotated[Path, typer.Option("--state", help="Folder of the server's database, logs and process ids.")]


class ServeError(FinewebMaskError, RuntimeError):
    """The server or the worker cannot be started or stopped."""


class Process:
    """A process that keeps running after this command ends."""

    def __init__(self, state: Path, name: str) -> None:
        self.name = name
        self.file = state / f"{name}.pid"
        self.log = state / f"{name}.log"

    @property
    def pid(self) -> int | None:
        """The id of the process and of its group, or None if it does not run."""
        try:
            with self.file.open() as stream:
                return None if _try_lock(stream.fileno()) else int(stream.read())
        except FileNotFoundError:
            return None

    def start(self, command: list[str], environment: dict[str, str]) -> None:
        """Start the process in a new process group; its output goes to the log."""
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
        """Stop the process and its children; return whether it was running."""
        group = self.pid
        if group is None:
            return False
        for kill in (signal.SIGTERM, signal.SIGKILL):
            os.killpg(group, kill)
            if _wait_until(lambda: self.pid is None and not _group_exists(group), STOP_SECONDS):
                self.file.unlink()
                return True
        raise ServeError(f"the {self.name} does not stop: process {group}")

    def wait(self, is_ready: Callable[[], bool]) -> None:
        """Wait until the process is ready; raise with the end of its log if it crashes or takes too long."""
        if _wait_until(lambda: self.pid is None or is_ready(), START_SECONDS) and self.pid is not None:
            return
        problem = "has crashed" if self.pid is None else f"is not ready after {START_SECONDS:.0f} s"
        tail = "\n".join(self.log.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:])
        raise ServeError(f"the {self.name} {problem}; the end of {self.log}:\n{tail}")


def _try_lock(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _group_exists(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def _wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_SECONDS)
    return True


@contextmanager
def _exclusive(state: Path) -> Iterator[None]:
    """Make other `start` and `stop` commands wait until the block ends."""
    state.mkdir(parents=True, exist_ok=True)
    with (state / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _environment(state: Path, api: str) -> dict[str, str]:
    """Return the user's environment with Prefect settings for this server instead of the user's own.

    It lacks FINEWEB_MASK_HOME: deployments name the variable, and only the worker knows its value.
    """
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", HOME))}
    own = {"PREFECT_HOME": str(state / "prefect"), "PREFECT_API_URL": api}
    if auth := os.environ.get(SERVER_AUTH):
        own |= {SERVER_AUTH: auth, CLIENT_AUTH: auth}
    inherited |= without_proxy(inherited)
    return {**ENVIRONMENT_DEFAULTS, **inherited, **own, "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false"}


def _require_free(port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            raise ServeError(f"port {port} is taken by another program: make serve PORT={port + 1}") from error


def _is_healthy(api: httpx.Client) -> bool:
    try:
        return api.get("health").is_success
    except httpx.TransportError:
        return False


def _client(api: str) -> httpx.Client:
    """Return a client of the server's API, with its password if there is one."""
    auth = os.environ.get(SERVER_AUTH)
    headers = {"Authorization": f"Basic {base64.b64encode(auth.encode()).decode()}"} if auth else {}
    return httpx.Client(base_url=api, headers=headers, trust_env=False)  # through no proxy


def _require_access(api: httpx.Client) -> None:
    if api.get("admin/version").status_code == httpx.codes.UNAUTHORIZED:
        raise ServeError(f"the server was started with another password: set {SERVER_AUTH} to it, or make stop first")


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


def _deploy(state: Path, environment: dict[str, str]) -> None:
    command = [*PREFECT, "--no-prompt", "deploy", "--all", "--prefect-file", "deployments/prefect.yaml"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    (state / "deploy.log").write_text(done.stdout + done.stderr)
    if done.returncode:
        raise ServeError(f"cannot deploy:\n{done.stdout}{done.stderr}")


@app.command()
def start(
    *,
    port: Annotated[int | None, typer.Option(min=1, max=65_535, help=f"Port of the server. [default: {PORT}]")] = None,
    state: StateOption = STATE,
) -> None:
    """Start a server and a worker unless they run already, deploy, and return when they are ready."""
    state = state.absolute()
    server, worker, port_file = Process(state, "server"), Process(state, "worker"), state / "port"
    with _exclusive(state):
        last_port = int(port_file.read_text() or PORT) if port_file.exists() else PORT
        if server.pid is not None and port not in {None, last_port}:
            raise ServeError(f"already running at http://{HOST}:{last_port}: make stop first to change its port")
        port = port or last_port
        url = f"http://{HOST}:{port}"
        environment = _environment(state, f"{url}/api")
        if server.pid is None:
            worker.stop()
            _require_free(port)
            server.start([*PREFECT, "server", "start", "--host", HOST, "--port", str(port)], environment)
            port_file.write_text(str(port))
        with _client(f"{url}/api") as api:
            server.wait(lambda: _is_healthy(api))
            _require_access(api)
            if worker.pid is None:
                _crash_lost_runs(api)
                queues = ["default", "gpu"] if shutil.which("nvidia-smi") else ["default"]
                command = [*PREFECT, "worker", "start", f"--pool={POOL}", "--type=process"]
                own = {"PREFECT_WORKER_QUERY_SECONDS": "2", HOME: os.environ.get(HOME, str(ROOT))}
                worker.start([*command, *(f"--work-queue={queue}" for queue in queues)], environment | own)
            worker.wait(lambda: _has_worker(api))
        _deploy(state, environment)
    prefect = Path(sys.executable).with_name("prefect")
    shown = prefect.relative_to(Path.cwd()) if prefect.is_relative_to(Path.cwd()) else prefect
    auth = f"{CLIENT_AUTH}=... " if os.environ.get(SERVER_AUTH) else ""
    typer.echo(
        f"Prefect UI      {url}\n"
        f"run the sample  PREFECT_API_URL={url}/api {auth}{shown} deployment run 'curate/sample' --watch\n"
        f"logs            {server.log}, {worker.log}"
    )


@app.command()
def stop(*, state: StateOption = STATE) -> None:
    """Stop the worker and the server that `start` started, and nothing else."""
    state = state.absolute()
    stopped = []
    if state.is_dir():
        with _exclusive(state):
            stopped = [name for name in ("worker", "server") if Process(state, name).stop()]
            (state / "port").unlink(missing_ok=True)
    typer.echo(f"ended: {', '.join(stopped)}" if stopped else "nothing is running")


if __name__ == "__main__":
    try:
        app()
    except ServeError as error:
        sys.exit(f"serve: {error}")
