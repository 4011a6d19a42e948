"""An S3 server on this machine: a real process, and a proxy before it that fails as servers do."""

import http.client
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import boto3
import botocore.exceptions
from botocore.config import Config

KEY_ID, SECRET = "AKIAMARKEROFTHEKEY", "markerofthesecretkey/+0"  # looked for in all that is written


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def client(port: int) -> Any:
    """Return a client of its own, which the tests look through at what lies in the store."""
    return boto3.client(
        "s3",
        endpoint_url=f"http://127.0.0.1:{port}",
        aws_access_key_id="looking",
        aws_secret_access_key="on",
        region_name="us-east-1",
        config=Config(retries={"total_max_attempts": 3}, max_pool_connections=4),
    )


class S3Server:
    """A `moto_server` process; what it holds is gone when it is killed."""

    def __init__(self) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.client = client(self.port)
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(600):
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
            except OSError:
                time.sleep(0.05)
            else:
                return
        raise TimeoutError("moto_server did not start")

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def names(self, bucket: str, prefix: str = "") -> dict[str, int]:
        """Return the size of every object, by key."""
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
        return {item["Key"]: item["Size"] for page in pages for item in page.get("Contents", [])}

    def read(self, bucket: str, key: str) -> bytes:
        return self.client.get_object(Bucket=bucket, Key=key)["Body"].read()

    def unfinished(self, bucket: str) -> list[str]:
        """Return the keys of uploads that were begun and neither ended nor aborted."""
        return [upload["Key"] for upload in self.client.list_multipart_uploads(Bucket=bucket).get("Uploads", [])]


class Proxy:
    """Stands before the server: may answer in its stead, break off, be gone for a while; counts what it passes on."""

    def __init__(self, server: S3Server) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.failing = 0.0  # share of the requests that are answered 500 or 503
        self.cut_after: int | None = None  # bytes of the next large response, then the connection is closed
        self.requests: Counter[str] = Counter()
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
        self.requests[request.command] += 1
        if self._dice.random() < self.failing:
            self.failed += 1
            self._refuse(request, self._dice.choice((500, 503)))
            return
        connection = http.client.HTTPConnection("127.0.0.1", self._target, timeout=60)
        try:
            headers = {name: value for name, value in request.headers.items() if name.lower() != "expect"}
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

    def _refuse(self, request: BaseHTTPRequestHandler, status: int) -> None:
        code = {500: "InternalError", 503: "SlowDown"}[status]
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
        "AWS_MAX_ATTEMPTS": "1",  # what is tried again is for this package to try
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    }


def answered(status: int, code: str = "") -> botocore.exceptions.ClientError:
    """Return the error that a client of S3 raises of an answer."""
    response = {"Error": {"Code": code, "Message": "m"}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return botocore.exceptions.ClientError(response, "GetObject")


def translated(error: Exception, number: int) -> OSError:
    """Return an error as s3fs hands on a client's."""
    found = OSError(number, "translated")
    found.__cause__ = error
    return found
