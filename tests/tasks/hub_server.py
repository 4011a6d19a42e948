"""A hub on this machine: what `huggingface_hub` asks of the real one to make a dataset repository, fill and read it.

Run as a program: `python hub_server.py FOLDER [PORT]`; it prints its port, and keeps every branch of a repository as a
folder `FOLDER/repos/<owner>/<name>/<branch>`; what a branch held when its commit was asked for stays, as a folder named
after the commit. The token `hf_good` belongs to `me`; others read what is not private. Every request is a line of
`FOLDER/requests.log`, with `FAILED` before those that were not answered as asked: one of as many as
`FOLDER/failing` says.
"""

import base64
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from threading import Lock
from typing import Any, Self
from urllib.parse import parse_qs, quote, unquote, urlsplit

OWNERS = {"Bearer hf_good": "me"}
LOCK = Lock()
COUNTED = count(1)
SIGNATURE = "markerofthesignature"
"""In the addresses that large files are redirected to; looked for in all that is written."""
PAGE = 3
"""Entries in a page of a listing; the real hub's 1000 would never be reached."""


class Hub(BaseHTTPRequestHandler):
    """Answers one request."""

    protocol_version = "HTTP/1.1"
    folder: Path
    content: bytes  # of the request

    def log_message(self, *arguments: Any) -> None:
        """Say nothing."""

    def reply(self, status: int, body: Any = None, headers: dict[str, str] | None = None) -> None:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def refuse(self, status: int, message: str = "refused", code: str = "") -> None:
        self.reply(status, {"error": message}, {"X-Error-Message": message, **({"X-Error-Code": code} if code else {})})

    def answer(self) -> None:
        self.content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.headers.get("Transfer-Encoding") == "chunked":
            self.content = self.chunks()
        address = urlsplit(self.path)
        parts = [unquote(part) for part in address.path.strip("/").split("/")]
        failing = self.folder / "failing"
        with LOCK, (self.folder / "requests.log").open("a") as log:
            number, every = next(COUNTED), int(failing.read_text()) if failing.exists() else 0
            fails = every > 0 and number % every == 0
            log.write(f"{'FAILED ' if fails else ''}{self.command} /{'/'.join(parts)}\n")
        if fails:
            self.fail(number // every)
        else:
            self.route(parts, parse_qs(address.query))

    do_GET = do_HEAD = do_POST = do_PUT = answer  # noqa: N815

    def fail(self, times: int) -> None:
        """Throttle, be out of order, be gone, or break off."""
        kind = ("throttled", "unavailable", "gone", "cut")[times % 4]
        if kind == "throttled":
            limit = {"RateLimit": '"api";r=0;t=0', "RateLimit-Policy": '"fixed window";"api";q=500;w=300'}
            self.reply(429, {"error": "We had to rate limit your IP"}, limit)
        elif kind == "unavailable":
            self.reply(503, {"error": "try again"})
        else:
            self.close_connection = True
            if kind == "cut":
                self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n[{")

    def route(self, parts: list[str], query: dict[str, list[str]]) -> None:
        model = self.folder / "repos" / "/".join(parts[2:]) / "main"
        if parts[:2] == ["api", "models"] and model.is_dir():
            files = [{"rfilename": path.name, "size": path.stat().st_size} for path in files_below(model)]
            self.reply(200, {"id": "/".join(parts[2:]), "siblings": files})
            return
        if parts[2:3] == ["resolve"]:  # a model: repositories of models and datasets share the folders
            parts = ["datasets", *parts]
        sent = self.headers.get("Authorization")
        owner = OWNERS.get(sent or "")
        path = "/".join(parts)
        if parts[0] == "lfs":  # as on the real hub, the address itself is the permission
            self.stored(parts[1], self.content)
        elif parts[0] == "cdn":
            self.delivered(self.folder / "repos" / "/".join(parts[1:]), query)
        elif sent is not None and owner is None:
            self.refuse(401, "Invalid credentials in Authorization header")
        elif parts[0] in {"api", "datasets"} and self.repository_of(parts) is not None:
            self.of_repository(parts, owner, query)
        elif owner is None:
            self.refuse(401, "Invalid username or password.", "RepoNotFound")
        elif path == "api/validate-yaml":
            self.reply(200, {"errors": [], "warnings": []})
        elif path == "api/repos/create":
            self.created(owner, json.loads(self.content))
        else:
            self.refuse(404, "Repository not found", "RepoNotFound")

    def repository_of(self, parts: list[str]) -> Path | None:
        """Return the folder of the repository that an address is about, if there is one."""
        names = parts[parts.index("datasets") + 1 :][:2] if "datasets" in parts[:2] else []
        folder = self.folder / "repos" / "/".join(names).removesuffix(".git")
        return folder if len(names) == 2 and folder.is_dir() else None

    def of_repository(self, parts: list[str], owner: str | None, query: dict[str, list[str]]) -> None:
        repository = self.repository_of(parts)
        assert repository is not None
        created = repository / "created.json"
        is_private = created.is_file() and json.loads(created.read_text())["visibility"] == "private"
        rest = parts[parts.index("datasets") + 3 :]
        if owner is None and (is_private or self.command == "PUT"):
            self.refuse(401, "Invalid username or password.", "RepoNotFound")
        elif is_private and owner != repository.parent.name:
            self.refuse(404, "Repository not found", "RepoNotFound")
        elif parts[0] == "api":
            what, revision, *inside = rest or ["revision", "main"]
            self.repository(repository, what, revision, "/".join(inside), query)
        elif rest[:3] == ["info", "lfs", "objects"]:
            self.batch(json.loads(self.content))
        else:  # /datasets/o/n/resolve/main/file
            _, revision, *file = rest
            self.file(branch_of(repository, revision), "/".join(file))

    def chunks(self) -> bytes:
        found = b""
        while size := int(self.rfile.readline(), 16):
            found += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return found

    def created(self, owner: str, wanted: dict[str, Any]) -> None:
        if wanted["organization"] not in {None, owner}:
            return self.refuse(403)
        branch = self.folder / "repos" / owner / wanted["name"] / "main"
        url = f"http://{self.headers['Host']}/datasets/{owner}/{wanted['name']}"
        if branch.exists():
            return self.reply(409, {"error": "You already created this dataset repo", "url": url})
        branch.mkdir(parents=True)
        (branch / ".gitattributes").write_text("*.parquet filter=lfs diff=lfs merge=lfs -text\n")
        (branch.parent / "created.json").write_text(json.dumps(wanted))
        return self.reply(200, {"url": url})

    def repository(self, repository: Path, what: str, revision: str, inside: str, query: dict[str, list[str]]) -> None:
        branch = branch_of(repository, revision)
        if what == "branch" and not branch.exists():
            branch.mkdir()
            self.reply(200, {})
        elif what == "branch":
            self.refuse(409)
        elif not branch.is_dir():
            self.refuse(404, f"Invalid rev id: {revision}", "RevisionNotFound")
        elif what == "tree" and not (branch / inside).is_dir():
            self.refuse(404, f"{inside} does not exist on {revision!r}", "EntryNotFound")
        elif what == "tree":
            self.tree(branch, inside, query)
        elif what == "paths-info":
            wanted = [branch / path for path in parse_qs(self.content.decode())["paths"]]
            self.reply(200, [entry(path, branch) for path in wanted if path.exists()])
        elif what == "revision":
            with LOCK:
                self.reply(200, {"id": "/".join(repository.parts[-2:]), "sha": head(branch)})
        elif what == "preupload":
            files = [preupload(branch / file["path"], file) for file in json.loads(self.content)["files"]]
            self.reply(200, {"files": files})
        else:
            for line in map(json.loads, self.content.splitlines()):
                self.commit(branch, line["key"], line["value"])
            owner, name = repository.parts[-2:]
            url = f"http://{self.headers['Host']}/datasets/{owner}/{name}/commit/{'1' * 40}"
            self.reply(200, {"success": True, "commitUrl": url, "commitOid": "1" * 40})

    def tree(self, branch: Path, inside: str, query: dict[str, list[str]]) -> None:
        recursive = query.get("recursive", ["false"])[0].lower() == "true"
        folder = branch / inside
        found = sorted(folder.rglob("*") if recursive else folder.iterdir())
        start = int(query.get("cursor", ["0"])[0])
        more = f"http://{self.headers['Host']}{self.path.partition('?')[0]}?recursive={recursive}&cursor={start + PAGE}"
        link = {"Link": f'<{more}>; rel="next"'} if start + PAGE < len(found) else {}
        self.reply(200, [entry(path, branch) for path in found[start : start + PAGE]], link)

    def commit(self, branch: Path, key: str, value: dict[str, Any]) -> None:
        if key == "header":
            return
        path = branch / value["path"]
        if key == "deletedFile":
            path.unlink()
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        stored = base64.b64decode(value["content"]) if key == "file" else self.lfs(value["oid"]).read_bytes()
        path.write_bytes(stored)

    def lfs(self, oid: str) -> Path:
        return self.folder / "lfs" / oid

    def batch(self, wanted: dict[str, Any]) -> None:
        objects = []
        for one in wanted["objects"]:
            base = f"http://{self.headers['Host']}/lfs/{one['oid']}"
            actions = None if self.lfs(one["oid"]).exists() else {"upload": {"href": base}}
            objects.append({**one, **({"actions": actions} if actions else {})})
        self.reply(200, {"transfer": "basic", "objects": objects})

    def stored(self, oid: str, content: bytes) -> None:
        if hashlib.sha256(content).hexdigest() != oid:
            return self.refuse(400)
        self.lfs(oid).parent.mkdir(exist_ok=True)
        self.lfs(oid).write_bytes(content)
        return self.reply(200, {})

    def file(self, branch: Path, name: str) -> None:
        path = branch / name
        if not branch.is_dir():
            return self.refuse(404, f"Invalid rev id: {branch.name}", "RevisionNotFound")
        if not path.is_file():
            return self.refuse(404, "Entry not found", "EntryNotFound")
        headers = {"X-Repo-Commit": blob(branch.name.encode())}
        if not is_large(name):
            return self.send(path, headers)
        port = self.headers["Host"].partition(":")[2]  # another host than the hub's, to which no token may go
        there = f"http://localhost:{port}/cdn/{quote(path.relative_to(self.folder / 'repos').as_posix())}"
        size = {"X-Linked-Size": str(path.stat().st_size), "X-Linked-ETag": f'"{sha256(path.read_bytes())}"'}
        return self.reply(302, b"", headers | size | {"Location": f"{there}?X-Amz-Signature={SIGNATURE}"})

    def delivered(self, path: Path, query: dict[str, list[str]]) -> None:
        if query.get("X-Amz-Signature") != [SIGNATURE] or self.headers.get("Authorization") is not None:
            self.refuse(403, "the signature is wrong, or a token came here")
        else:
            self.send(path, {})

    def send(self, path: Path, headers: dict[str, str]) -> None:
        content = path.read_bytes()
        headers = headers | {"ETag": f'"{sha256(content)}"', "Accept-Ranges": "bytes"}
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
        if wanted is None:
            return self.reply(200, content, headers)
        first, last = int(wanted[1]), min(int(wanted[2] or len(content) - 1), len(content) - 1)
        if first > last:
            return self.reply(416, b"", {"Content-Range": f"bytes */{len(content)}"})
        part = {"Content-Range": f"bytes {first}-{last}/{len(content)}"}
        return self.reply(206, content[first : last + 1], headers | part)


def branch_of(repository: Path, revision: str) -> Path:
    return repository / quote(revision, safe="")


def head(branch: Path) -> str:
    """Return the commit that a branch is at, and keep what it holds."""
    if re.fullmatch(r"[0-9a-f]{40}", branch.name):
        return branch.name
    files = [(path.relative_to(branch).as_posix(), blob(path.read_bytes())) for path in files_below(branch)]
    commit = hashlib.sha1(json.dumps(files).encode()).hexdigest()
    if not (branch.parent / commit).is_dir():
        shutil.copytree(branch, branch.parent / commit)
    return commit


def files_below(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def is_large(name: str) -> bool:
    """Return whether the hub keeps a file beside git, and serves it from another host."""
    return name.endswith((".parquet", ".gz"))


def entry(path: Path, branch: Path) -> dict[str, Any]:
    name = path.relative_to(branch).as_posix()
    if path.is_dir():
        return {"type": "directory", "path": name, "size": 0, "oid": hashlib.sha1(name.encode()).hexdigest()}
    content = path.read_bytes()
    found: dict[str, Any] = {"type": "file", "path": name, "size": len(content), "oid": blob(content)}
    if is_large(name):
        pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{sha256(content)}\nsize {len(content)}\n"
        found |= {
            "oid": blob(pointer.encode()),
            "lfs": {"oid": sha256(content), "size": len(content), "pointerSize": len(pointer)},
            "xetHash": sha256(content[::-1]),
        }
    return found


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def blob(content: bytes) -> str:
    """Return the name that git gives a file's content."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def preupload(path: Path, wanted: dict[str, Any]) -> dict[str, Any]:
    large = is_large(wanted["path"])
    there = path.read_bytes() if path.is_file() else None
    oid = None if there is None else hashlib.sha256(there).hexdigest() if large else blob(there)
    mode = "lfs" if large else "regular"
    return {"path": wanted["path"], "uploadMode": mode, "shouldIgnore": False, **({"oid": oid} if oid else {})}


class HubServer:
    """The hub as its own process; what it holds stays when it is killed and started again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._port = 0
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()

    def start(self) -> None:
        command = [sys.executable, __file__, str(self.folder), str(self._port)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self._port = int(self._process.stdout.readline())

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    @property
    def requests(self) -> list[str]:
        """All requests so far, such as `GET /api/datasets/me/data/tree/main`."""
        log = self.folder / "requests.log"
        return log.read_text().splitlines() if log.exists() else []

    def files(self, branch: str) -> dict[str, bytes]:
        """Return what a branch, such as `me/data/main`, holds."""
        root = self.folder / "repos" / branch
        return {path.relative_to(root).as_posix(): path.read_bytes() for path in files_below(root)}

    def write(self, branch: str, name: str, content: bytes) -> None:
        """Put a file into a branch, as another's commit does."""
        path = self.folder / "repos" / branch / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)

    def make_private(self, repository: str) -> None:
        """Have only its owner see a repository, such as `me/data`."""
        (self.folder / "repos" / repository / "created.json").write_text('{"visibility": "private"}')

    def fail(self, every: int) -> None:
        """Have one of so many requests fail from now on; 0 is none."""
        (self.folder / "failing").write_text(str(every))


def ask_only(url: str, monkeypatch: Any, folder: Path) -> None:
    """Have this process's client, which read its environment when it was imported, ask a hub, with nothing of the user.

    Its cache is below `folder`.
    """
    from huggingface_hub import constants

    for name in [name for name in os.environ if name.startswith("HF_")]:
        monkeypatch.delenv(name)
    template = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(constants.ENDPOINT, url)
    places = {"ENDPOINT": url, "HUGGINGFACE_CO_URL_TEMPLATE": template, "HF_HUB_DISABLE_XET": True}
    places |= {"HF_HUB_CACHE": str(folder / "hub-cache"), "HF_TOKEN_PATH": str(folder / "no-token")}
    for name, value in places.items():
        monkeypatch.setattr(constants, name, value)


if __name__ == "__main__":
    Hub.folder = Path(sys.argv[1])
    ThreadingHTTPServer.allow_reuse_address = True
    with ThreadingHTTPServer(("127.0.0.1", int(sys.argv[2])), Hub) as server:
        sys.stdout.write(f"{server.server_port}\n")
        sys.stdout.flush()
        server.serve_forever()
