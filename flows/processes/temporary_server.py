"""Run Prefect's temporary server so that it neither ends before its run nor outlives it, and starts again if it fails.

In its own session it gets no Ctrl-C of the run's terminal, and no signal to the run's process group: the run stops
first, and then stops it. It reads a pipe from the run, which the system closes when the run ends for any reason.

Its database is its own, in a folder that ends with it, and the user's settings of servers are not for it: a database in
the home folder may be of another version of Prefect, and a server may ask for a password.

Prefect's own temporary server outlives a run that is killed, for good, and ends before one that is interrupted;
`prefect server start --background` never ends with a run, and there is one for all runs of a user.
"""

import asyncio
import atexit
import os
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from types import FrameType

from fineweb_mask.flows.processes.environment import ENVIRONMENT_DEFAULTS
from fineweb_mask.models.errors import FinewebMaskError

OWN_ENVIRONMENT = {
    "PREFECT_UI_ENABLED": "0",
    "PREFECT__SERVER_EPHEMERAL": "1",
    "PREFECT__SERVER_FINAL": "1",
    "PREFECT_API_DATABASE_MIGRATE_ON_START": "0",  # its database is made before
    "PREFECT_API_BLOCKS_REGISTER_ON_START": "0",  # no flow here uses any
}
DATABASE = "prefect.db"
MOST_RESTARTS = 5
ENDING_SECONDS = 5.0
"""Time that the server has to end by itself when its run is gone."""
LAST_BYTES = 1 << 16
"""Bytes of what the server printed that are searched for its last error."""
ERROR_LINE = re.compile(r"[\w.]+(Error|Exception)\b")
"""How the line of a traceback begins that says what is wrong; others may follow."""


class TemporaryServerError(FinewebMaskError, RuntimeError):
    """The temporary Prefect server does not start, or it has ended and no other takes its place."""


class _Server:
    """A server in a process of its own, which is replaced if it ends although the run goes on.

    Without one, Prefect would try for seconds to send each event, and a run would take hours to end.
    """

    def __init__(self) -> None:
        self.port = 0  # until it answers
        self.failure: TemporaryServerError | None = None
        self._folder = Path(tempfile.mkdtemp(prefix="fineweb-mask-prefect-"))
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - a process writes to it
        self._answered = threading.Event()  # or it has ended before
        self._restarts_left = MOST_RESTARTS
        self._start()
        atexit.register(self.stop)

    def _start(self) -> None:
        self.process = subprocess.Popen(  # noqa: S603 - this interpreter, this module
            [sys.executable, "-m", __name__, str(self.port), str(self._folder)],
            stdin=subprocess.PIPE,  # is closed when this process ends for any reason
            stdout=subprocess.PIPE,
            stderr=self._errors,
            start_new_session=True,
        )
        threading.Thread(target=self._watch, args=(self.process,), daemon=True).start()

    def _watch(self, process: "subprocess.Popen[bytes]") -> None:
        """Learn the port once a process answers, and start another one if it ends afterwards, unless it was stopped."""
        has_answered = False
        with process:
            for line in process.stdout or ():
                self.port, has_answered = int(line), True
                self._answered.set()
        if has_answered and self._restarts_left:
            self._restarts_left -= 1
            self._start()
        self._answered.set()

    def wait(self, seconds: float) -> int:
        """Return the port once the server answers.

        Raises
        ------
        TemporaryServerError
            If it has ended before, or does not answer in time.
        """
        in_time = self._answered.wait(seconds)
        if not self.port and self.failure is None:
            why = "does not start" if in_time else f"does not answer within {seconds:g} s"
            self.failure = TemporaryServerError(
                f"the temporary Prefect server {why}: {self.last_error()}: mend that, set a longer "
                "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS where the machine is busy, or run with a server of "
                "your own in PREFECT_API_URL"
            )
            self.stop()
        if self.failure is not None:
            raise self.failure
        return self.port

    def last_error(self) -> str:
        """Return the last line of an error that its processes printed, or the last line."""
        end = os.fstat(self._errors.fileno()).st_size
        said = os.pread(self._errors.fileno(), LAST_BYTES, max(0, end - LAST_BYTES)).decode(errors="replace")
        lines = [line for line in said.splitlines() if line.strip()]
        errors = [line for line in lines if ERROR_LINE.match(line)]
        return (errors or lines or ["it says nothing"])[-1].strip()

    def stop(self) -> None:
        """Stop the server, which is not replaced, and delete what it has written."""
        self._restarts_left = 0
        self.process.terminate()
        try:
            self.process.wait(ENDING_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._errors.close()
        shutil.rmtree(self._folder, ignore_errors=True)


_server: _Server | None = None  # of this process
_starting = threading.Lock()


def start_early() -> None:
    """Start the server of a run that surely needs one: it takes seconds, as does what the run imports meanwhile."""
    global _server  # noqa: PLW0603
    if _server is None and is_surely_used():
        _server = _Server()


@contextmanager
def used() -> Iterator[None]:
    """Have Prefect use the temporary server of this process in the block, if it is set to use no other.

    Prefect would import its whole server to start one of its own: four seconds.

    Raises
    ------
    TemporaryServerError
        If the server does not start.
    """
    global _server  # noqa: PLW0603
    from prefect.settings import (
        PREFECT_API_URL,
        PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS,
        PREFECT_UI_URL,
        temporary_settings,
    )

    if PREFECT_API_URL.value():
        yield
        return
    with _starting:
        if _server is None or _server.failure is not None:
            _server = _Server()
        _server.wait(PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS.value())
    with temporary_settings({PREFECT_API_URL: address(), PREFECT_UI_URL: ""}):
        yield


def address() -> str:
    """Return the address of the API of the temporary server of this process; empty if there is none."""
    return f"http://127.0.0.1:{_server.port}/api" if _server else ""


def last_error() -> str:
    """Return the last error that the temporary server of this process printed."""
    return _server.last_error() if _server else "it has been stopped"


def is_surely_used() -> bool:
    """Return whether a run would surely use a temporary server, which nobody watches; Prefect is not imported.

    False where any of Prefect's settings files may name a server: its profiles, or a file of the current folder.
    """
    if os.environ.get("PREFECT_API_URL") or os.environ.get("PREFECT_PROFILE"):
        return False
    home = Path(os.environ.get("PREFECT_HOME", Path.home() / ".prefect")).expanduser()
    profiles = Path(os.environ.get("PREFECT_PROFILES_PATH", home / "profiles.toml"))
    files = (profiles, Path(".env"), Path("prefect.toml"), Path("pyproject.toml"))
    return not any("prefect_api" in text or "tool.prefect" in text for text in map(_lower_text, files))


def _lower_text(path: Path) -> str:
    try:
        text = path.read_text(errors="replace").lower()
    except OSError:
        return ""
    return f"{text} prefect_api" if path.name == "prefect.toml" else text


def serve(port: int, folder: Path) -> None:
    """Serve Prefect's API on a port of this machine until SIGTERM, or until standard input is closed.

    Parameters
    ----------
    port
        0 takes one that is free. It is printed once the server answers.
    folder
        Holds what the server keeps; deleted when standard input is closed.
    """
    threading.Thread(target=_end_with_standard_input, args=(folder,), daemon=True).start()
    os.chdir(folder)  # where no file has settings of Prefect
    for name in [name for name in os.environ if name.startswith("PREFECT_") and name not in ENVIRONMENT_DEFAULTS]:
        del os.environ[name]
    os.environ.update({**OWN_ENVIRONMENT, "PREFECT_HOME": str(folder)})
    import uvicorn

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            os.write(sys.stdout.fileno(), b"%d\n" % self.servers[0].sockets[0].getsockname()[1])

        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            # What it cancels on its way out would be taken for errors.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
            super().handle_exit(sig, frame)

    if not Path(DATABASE).exists():
        _make_database()
    factory = "prefect.server.api.server:create_app"
    Server(uvicorn.Config(factory, factory=True, port=port, log_level="error", lifespan="on")).run()


def _make_database() -> None:
    """Make an empty database; a copy of one that this version of Prefect made before saves the seconds it takes."""
    from fineweb_mask.tasks.storage.atomic import atomic_write
    from fineweb_mask.tasks.storage.remote.copies import default_scratch

    made = default_scratch() / f"prefect-{version('prefect')}.db"
    with suppress(OSError, sqlite3.Error):
        shutil.copyfile(made, DATABASE)
        with closing(sqlite3.connect(DATABASE)) as copy:
            copy.execute("SELECT version_num FROM alembic_version")
            if copy.execute("PRAGMA integrity_check").fetchone() == ("ok",):
                return
    Path(DATABASE).unlink(missing_ok=True)
    from prefect.server.database import provide_database_interface

    asyncio.run(provide_database_interface().create_db())
    with suppress(OSError), atomic_write(made) as partial, closing(sqlite3.connect(DATABASE)) as own:
        own.execute("VACUUM INTO ?", (str(partial),))


def _end_with_standard_input(folder: Path) -> None:
    while os.read(0, 1):
        pass
    shutil.rmtree(folder, ignore_errors=True)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(ENDING_SECONDS)
    os._exit(1)


if __name__ == "__main__":
    serve(int(sys.argv[1]), Path(sys.argv[2]))
