"""A server that answers everything alike."""

import json
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest


@pytest.fixture
def serve() -> Iterator[Callable[..., str]]:
    """Return the function that starts a server with one answer to everything, and returns its URL."""
    servers = []

    def start(status: int, body: object = None, **headers: str) -> str:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()

        class Answers(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(status)
                for name, value in {"Content-Length": str(len(content)), **headers}.items():
                    self.send_header(name.replace("_", "-"), value)
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: object) -> None:
                pass

        servers.append(ThreadingHTTPServer(("127.0.0.1", 0), Answers))
        Thread(target=servers[-1].serve_forever, args=(0.05,), daemon=True).start()
        return f"http://127.0.0.1:{servers[-1].server_port}/api"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()
