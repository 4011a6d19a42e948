"""S3 servers on this machine: real processes, and a proxy before one that fails as servers do."""

import http.client
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from contextlib import closing, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import boto3
from botocore.config import Config

KEY_ID, SECRET = "AKIAMARKEROFTHEKEY", "markerofthesecretkey/+0"  # looked for in all that is written


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def command(name: str) -> str:
    """Return the path of a program that a package of the tests brings."""
    found = shutil.which(name, path=sysconfig.get_path("scripts"))
    assert found is not None, f"{name} is not installed: pip install -e '.[dev]'"
    return found


class Server(ABC):
    """A process that serves S3 on loopback, and a client of its own, which the tests look through at what it holds."""

    def __init__(self) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.client = boto3.client(
            "s3",
            endpoint_url=self.url,
            aws_access_key_id=KEY_ID,
            aws_secret_access_key=SECRET,
            region_name="us-east-1",
            config=Config(retries={"total_max_attempts": 3}, max_pool_connections=4),
        )
        self.start()

    @abstractmethod
    def command(self) -> list[str]:
        """Return what starts the process."""

    def start(self) -> None:
        self._process = subprocess.Popen(self.command(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(600):
            assert self._process.poll() is None, f"{type(self).__name__} ended at once"
            with suppress(OSError, http.client.HTTPException):
                with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)) as asked:
                    asked.request("GET", "/")
                    asked.getresponse().read()
                return
            time.sleep(0.05)
        raise TimeoutError(f"{type(self).__name__} did not start")

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def unfinished(self, bucket: str) -> list[str]:
        """Return the keys of uploads that were started and neither ended nor aborted."""
        return [upload["Key"] for upload in self.client.list_multipart_uploads(Bucket=bucket).get("Uploads", [])]


class S3Server(Server):
    """A `moto_server`: starts at once, takes any credentials, has forgotten everything when it is killed."""

    def command(self) -> list[str]:
        return [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)]


class SeaweedServer(Server):
    """A SeaweedFS: checks signatures, lets anyone read public buckets, and keeps its data when it is killed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        allowed = [{"credentials": [{"accessKey": KEY_ID, "secretKey": SECRET}], "name": "tests", "actions": ["Admin"]}]
        public = {"name": "anonymous", "actions": ["Read:public", "List:public"]}
        parts = ("master", "volume", "filer")
        folder.joinpath("data").mkdir(parents=True)
        folder.joinpath("s3.json").write_text(json.dumps({"identities": [*allowed, public]}))
        for left in (2, 1, 0):  # of its eight ports, another process may take one before it does
            self._ports = [f"-{part}.port{kind}={free_port()}" for part in parts for kind in ("", ".grpc")]
            try:
                super().__init__()
                break
            except AssertionError:
                if not left:
                    raise

    def command(self) -> list[str]:
        return [
            *(command("weed"), "server", f"-dir={self._folder / 'data'}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1"),
            *(*self._ports, "-s3", f"-s3.port={self.port}", f"-s3.port.grpc={free_port()}"),
            *("-s3.port.iceberg=0", "-s3.port.lance=0", "-volume.max=1000", "-master.volumeSizeLimitMB=64"),
            f"-s3.config={self._folder / 's3.json'}",
        ]

    def start(self) -> None:
        super().start()
        for _ in range(600):  # it answers before it can store anything
            with suppress(Exception):
                self.client.create_bucket(Bucket="started")
            with suppress(Exception):
                self.client.put_object(Bucket="started", Key="a", Body=b"x")
                return
            time.sleep(0.1)
        raise TimeoutError("SeaweedFS stores nothing")


class Proxy:
    """Stands before the server: may answer in its stead, break off, be gone for a while; counts what it passes on."""

    def __init__(self, server: Server) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.failing = 0.0  # share of the requests that are refused
        self.refusals = [(500, "InternalError"), (503, "SlowDown")]  # status and code of what they are answered
        self.refused_parts: int | None = None  # refuse only parts of uploads, from this number on
        self.cut_after: int | None = None  # bytes of the next large response, then the connection is closed
        self.serves_ranges = True
        self.sent: Counter[str] = Counter()  # bytes, by path of a GET
        self.failed = 0
        self.cuts = 0
        self._dice = random.Random(7)
        self._target = server.port
        self._listening: ThreadingHTTPServer | None = None
        self.start()

    def start(self) -> None:
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self) -> None:
                proxy._answer(self)

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = answer  # noqa: N815 - http.server's names

            def log_message(self, *arguments: Any) -> None:
                pass

        class Listening(ThreadingHTTPServer):
            daemon_threads = True
            block_on_close = False

            def __init__(self, *arguments: Any) -> None:
                self.open: set[socket.socket] = set()
                super().__init__(*arguments)

            def get_request(self) -> Any:
                taken = super().get_request()
                self.open.add(taken[0])
                return taken

            def handle_error(self, *arguments: Any) -> None:
                """A client went away, or a connection was cut on purpose."""

        self._listening = Listening(("127.0.0.1", self.port), Handler)
        threading.Thread(target=self._listening.serve_forever, args=(0.02,), daemon=True).start()

    def kill(self) -> None:
        """Refuse connections and break those that there are."""
        listening, self._listening = self._listening, None
        if listening is not None:
            listening.shutdown()
            listening.server_close()
            for connection in listening.open:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def _answer(self, request: BaseHTTPRequestHandler) -> None:
        path = request.path.partition("?")[0]
        body = request.rfile.read(int(request.headers.get("Content-Length") or 0))
        if self._is_refused(request) and self._dice.random() < self.failing:
            self.failed += 1
            self._refuse(request, *self._dice.choice(self.refusals))
            return
        connection = http.client.HTTPConnection("127.0.0.1", self._target, timeout=60)
        try:
            left_out = {"expect"} if self.serves_ranges else {"expect", "range"}
            headers = {name: value for name, value in request.headers.items() if name.lower() not in left_out}
            connection.request(request.command, request.path, body=body, headers=headers)
            response = connection.getresponse()
            content = response.read()
        except OSError:
            request.close_connection = True
            return
        finally:
            connection.close()
        request.send_response_only(response.status)
        for name, value in response.getheaders():
            if name.lower() not in {"transfer-encoding", "connection", "content-length"}:
                request.send_header(name, value)
        length = response.getheader("Content-Length") if request.command == "HEAD" else len(content)
        request.send_header("Content-Length", str(length or 0))
        request.end_headers()
        if self.cut_after is not None and len(content) > self.cut_after:
            content, self.cut_after = content[: self.cut_after], None
            self.cuts += 1
            request.close_connection = True
        if request.command != "HEAD":
            request.wfile.write(content)
        if request.command == "GET":
            self.sent[path] += len(content)

    def _is_refused(self, request: BaseHTTPRequestHandler) -> bool:
        if self.refused_parts is None:
            return True
        part = parse_qs(urlsplit(request.path).query).get("partNumber")
        return part is not None and int(part[0]) >= self.refused_parts

    def _refuse(self, request: BaseHTTPRequestHandler, status: int, code: str) -> None:
        content = f"<Error><Code>{code}</Code><Message>try again</Message></Error>".encode()
        request.send_response_only(status)
        request.send_header("Content-Type", "application/xml")
        request.send_header("Content-Length", str(len(content)))
        request.end_headers()
        if request.command != "HEAD":
            request.wfile.write(content)


def environment(url: str) -> dict[str, str]:
    """Return what a user sets to reach the server."""
    return {
        "AWS_ACCESS_KEY_ID": KEY_ID,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_ENDPOINT_URL": url,
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    }
