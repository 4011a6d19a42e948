"""Run Prefect's temporary server so that it neither ends before its run nor outlives it, and starts again if it fails.

In its own session it gets no Ctrl-C of the run's terminal, and no signal to the run's process group: the run stops
first, and then stops it. It reads a pipe from the run, which the system closes when the run ends for any reason.

Prefect's own temporary server outlives a run that is killed, for good, and ends before one that is interrupted;
`prefect server start --background` never ends with a run, and there is one for all runs of a user.
"""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path
from types import FrameType

CANNOT_START = 3
"""Exit status of a server that cannot start, after which Prefect tries another port."""
OWN_ENVIRONMENT = {"PREFECT_UI_ENABLED": "0", "PREFECT__SERVER_EPHEMERAL": "1", "PREFECT__SERVER_FINAL": "1"}
MOST_RESTARTS = 5
ENDING_SECONDS = 5.0
"""Time that the server has to end by itself when its run is gone."""


_early: "list[tuple[int, subprocess.Popen[bytes]]]" = []  # the server that `start_early` started, until it is used


def start_early() -> None:
    """Start the server of a run that surely needs one: it takes seconds, as does what the run imports meanwhile."""
    if not _early and is_surely_used():
        with closing(socket.socket()) as found:
            found.bind(("127.0.0.1", 0))
            port = found.getsockname()[1]
        _early.append((port, _start(port, {**os.environ, **OWN_ENVIRONMENT})))


def _start(port: int, environment: dict[str, str]) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(  # noqa: S603 - this interpreter, this module
        [sys.executable, "-m", __name__, str(port)],
        stdin=subprocess.PIPE,  # is closed when this process ends for any reason
        start_new_session=True,
        env=environment,
    )


def install() -> None:
    """Have this process start its temporary Prefect server in this way, if it needs one."""
    from prefect.settings import PREFECT_API_URL

    if PREFECT_API_URL.value():
        return
    from prefect.server.api.server import SubprocessASGIServer

    class TemporaryServer(SubprocessASGIServer):
        """Prefect's own, in another process, which is replaced if it ends although the run goes on.

        Without one, Prefect would try for seconds to send each event, and a run would take hours to end.
        """

        _restarts_left = MOST_RESTARTS

        def _run_uvicorn_command(self) -> "subprocess.Popen[bytes]":
            from prefect.settings import get_current_settings

            settings = get_current_settings().to_environment_variables(exclude_unset=True)
            environment = {**os.environ, **settings, **OWN_ENVIRONMENT}
            return self._watched(_early.pop()[1] if _early else self._started(environment), environment)

        def _started(self, environment: dict[str, str]) -> "subprocess.Popen[bytes]":
            return _start(int(self.port or 0), environment)

        def _watched(
            self, process: "subprocess.Popen[bytes]", environment: dict[str, str]
        ) -> "subprocess.Popen[bytes]":
            threading.Thread(target=self._replace, args=(process, environment), daemon=True).start()
            return process

        def _replace(self, process: "subprocess.Popen[bytes]", environment: dict[str, str]) -> None:
            """Start another server once this one has ended, unless it could not start or was stopped."""
            if process.wait() != CANNOT_START and self._restarts_left:
                self._restarts_left -= 1
                self.server_process = self._watched(self._started(environment), environment)

        def stop(self) -> None:
            """Stop the server, which is not replaced."""
            self._restarts_left = 0
            super().stop()

    server = TemporaryServer()  # the one that Prefect finds; if there is one already, it is that
    if _early and not server.running:
        server.port = _early[0][0]


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


def serve(port: int) -> None:
    """Serve Prefect's API on a port of this machine until SIGTERM, or until standard input is closed.

    The exit status is `CANNOT_START` if the server cannot start, as Prefect expects.
    """
    import uvicorn

    class Server(uvicorn.Server):
        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            # What it cancels on its way out would be printed as errors.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
            super().handle_exit(sig, frame)

    factory = "prefect.server.api.server:create_app"
    server = Server(uvicorn.Config(factory, factory=True, port=port, log_level="error", lifespan="on"))
    threading.Thread(target=_end_with_standard_input, daemon=True).start()
    server.run()
    if not server.started:
        sys.exit(CANNOT_START)


def _end_with_standard_input() -> None:
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(ENDING_SECONDS)
    os._exit(1)


if __name__ == "__main__":
    serve(int(sys.argv[1]))
