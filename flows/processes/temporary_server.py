"""Run Prefect's temporary server so that it neither ends before its run nor outlives it.

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
from contextlib import closing, suppress
from importlib.metadata import version
from pathlib import Path

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
ENDING_SECONDS = 5.0
"""Time that the server has to end by itself when its run is gone."""
LAST_BYTES = 1 << 16
"""Bytes of what the server printed that are searched for its last error."""
ERROR_LINE = re.compile(r"[\w.]+(Error|Exception)\b")
"""How the line of a traceback begins that says what is wrong; others may follow."""


class TemporaryServerError(FinewebMaskError, RuntimeError):
    """The temporary Prefect server does not start."""


class TemporaryServer:
    """A server in its own process, which ends with this process."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="fineweb-mask-prefect-"))
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - a process writes to it
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.address = f"http://127.0.0.1:{listener.getsockname()[1]}/api"
            self.process = subprocess.Popen(  # noqa: S603 - this interpreter, this module
                [sys.executable, "-m", __name__, str(listener.fileno()), str(self._folder)],
                stdin=subprocess.PIPE,  # is closed when this process ends for any reason
                stdout=self._errors,
                stderr=self._errors,
                start_new_session=True,
                pass_fds=[listener.fileno()],
            )
        atexit.register(self.stop)

    def wait(self, seconds: float) -> None:
        """Return once the server answers.

        Raises
        ------
        TemporaryServerError
            If it has ended before, or does not answer in time.
        """
        import httpx

        with suppress(httpx.TransportError), httpx.Client(trust_env=False) as client:  # through no proxy
            client.get(f"{self.address}/health", timeout=seconds).raise_for_status()
            return
        why = f"does not answer within {seconds:g} s" if self.process.poll() is None else "does not start"
        last = self.last_error()
        self.stop()
        raise TemporaryServerError(
            f"the temporary Prefect server {why}: {last}: mend that, set a longer "
            "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS where the machine is busy, or run with a server of your "
            "own in PREFECT_API_URL"
        )

    def last_error(self) -> str:
        """Return the last line of an error that the server printed, or the last line."""
        end = os.fstat(self._errors.fileno()).st_size
        said = os.pread(self._errors.fileno(), LAST_BYTES, max(0, end - LAST_BYTES)).decode(errors="replace")
        lines = [line for line in said.splitlines() if line.strip()]
        errors = [line for line in lines if ERROR_LINE.match(line)]
        return (errors or lines or ["it says nothing"])[-1].strip()

    def stop(self) -> None:
        """Stop the server, and delete what it has written."""
        self.process.terminate()
        try:
            self.process.wait(ENDING_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)


_servers: list[TemporaryServer] = []  # of this process; the last one runs


def started() -> TemporaryServer:
    """Return the temporary server of this process, a new one if there is none, or the last has ended."""
    if not _servers or _servers[-1].process.poll() is not None:
        _servers.append(TemporaryServer())
    return _servers[-1]


def address() -> str:
    """Return the address of the API of the temporary server of this process; empty if there is none."""
    return _servers[-1].address if _servers else ""


def last_error() -> str:
    """Return the last error that the temporary server of this process printed."""
    return _servers[-1].last_error()


def serve(listener: int, folder: Path) -> None:
    """Serve Prefect's API at a socket that listens until SIGTERM, or until standard input is closed.

    Parameters
    ----------
    listener
        The socket's file descriptor.
    folder
        Holds what the server keeps; deleted when standard input is closed.
    """
    threading.Thread(target=_end_with_standard_input, args=(folder,), daemon=True).start()
    os.chdir(folder)  # where no file has settings of Prefect
    for name in [name for name in os.environ if name.startswith("PREFECT_") and name not in ENVIRONMENT_DEFAULTS]:
        del os.environ[name]
    os.environ.update({**OWN_ENVIRONMENT, "PREFECT_HOME": str(folder)})
    import uvicorn

    _make_database()
    config = uvicorn.Config("prefect.server.api.server:create_app", factory=True, log_level="error", lifespan="on")
    uvicorn.Server(config).run(sockets=[socket.socket(fileno=listener)])


def empty_database() -> Path:
    """Return where an empty database of this version of Prefect is kept, once a server here has made one."""
    from fineweb_mask.tasks.storage.remote.copies import default_scratch

    return default_scratch() / f"prefect-{version('prefect')}.db"


def _make_database() -> None:
    """Make an empty database; a copy of the one that is kept saves the seconds it takes."""
    from fineweb_mask.tasks.storage.atomic import atomic_write

    kept = empty_database()
    with suppress(OSError):
        shutil.copyfile(kept, DATABASE)
        return
    from prefect.server.database import provide_database_interface

    asyncio.run(provide_database_interface().create_db())
    with suppress(OSError), atomic_write(kept) as partial, closing(sqlite3.connect(DATABASE)) as own:
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
