"""A hub on this machine: what `huggingface_hub` asks of the real one to make a dataset repository and upload to it.

Run as a program: `python hub_server.py FOLDER`; it prints its port, and keeps every branch of a repository as a folder
`FOLDER/repos/<owner>/<name>/<branch>`. The token `hf_good` belongs to `me`. Every request is a line of
`FOLDER/requests.log`.
"""

import base64
import hashlib
import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock
from typing import Any
from urllib.parse import unquote, urlsplit

OWNERS = {"Bearer hf_good": "me"}
LOCK = Lock()


class Hub(BaseHTTPRequestHandler):
    """Answers one request."""

    protocol_version = "HTTP/1.1"
    folder: Path

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

    def refuse(self, status: int) -> None:
        self.reply(status, {"error": "refused"}, {"X-Error-Message": "refused"})

    def answer(self) -> None:
        content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.headers.get("Transfer-Encoding") == "chunked":
            content = self.chunks()
        path = unquote(urlsplit(self.path).path)
        with LOCK, (self.folder / "requests.log").open("a") as log:
            log.write(f"{self.command} {path}\n")
        parts = path.strip("/").split("/")
        owner = OWNERS.get(self.headers.get("Authorization", ""))
        if parts[0] == "lfs":  # as on the real hub, the address itself is the permission
            self.stored(parts[1], content)
        elif owner is None:
            self.refuse(401)
        elif path == "/api/validate-yaml":
            self.reply(200, {"errors": [], "warnings": []})
        elif path == "/api/repos/create":
            self.created(owner, json.loads(content))
        elif parts[:2] == ["api", "datasets"]:
            what, revision = parts[4:6] or ("revision", "main")
            self.repository(self.folder / "repos" / parts[2] / parts[3], what, revision, content)
        elif path.endswith(".git/info/lfs/objects/batch"):
            self.batch(json.loads(content))
        elif parts[:1] == ["datasets"]:  # /datasets/o/n/resolve/main/file
            _, owner_name, name, _, revision, *file = parts
            self.file(self.folder / "repos" / owner_name / name / revision / "/".join(file))
        else:
            self.refuse(404)

    do_GET = do_HEAD = do_POST = do_PUT = answer  # noqa: N815

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

    def repository(self, repository: Path, what: str, revision: str, content: bytes) -> None:
        branch = repository / revision
        if what == "branch" and not branch.exists():
            branch.mkdir()
            self.reply(200, {})
        elif what == "branch":
            self.refuse(409)
        elif not branch.is_dir():
            self.refuse(404)
        elif what == "tree":
            self.reply(200, [entry(path, branch) for path in sorted(branch.rglob("*")) if path.is_file()])
        elif what == "revision":
            self.reply(200, {"id": "/".join(repository.parts[-2:]), "sha": "1" * 40})
        elif what == "preupload":
            files = [preupload(branch / file["path"], file) for file in json.loads(content)["files"]]
            self.reply(200, {"files": files})
        else:
            for line in map(json.loads, content.splitlines()):
                self.commit(branch, line["key"], line["value"])
            owner, name = repository.parts[-2:]
            url = f"http://{self.headers['Host']}/datasets/{owner}/{name}/commit/{'1' * 40}"
            self.reply(200, {"success": True, "commitUrl": url, "commitOid": "1" * 40})

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

    def file(self, path: Path) -> None:
        if not path.is_file():
            return self.reply(404, {}, {"X-Error-Code": "EntryNotFound"})
        content = path.read_bytes()
        etag = f'"{hashlib.sha256(content).hexdigest()}"'
        return self.reply(200, content, {"ETag": etag, "X-Repo-Commit": "1" * 40})


def entry(path: Path, branch: Path) -> dict[str, Any]:
    return {
        "type": "file",
        "path": path.relative_to(branch).as_posix(),
        "size": path.stat().st_size,
        "oid": blob(path.read_bytes()),
    }


def blob(content: bytes) -> str:
    """Return the name that git gives a file's content."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def preupload(path: Path, wanted: dict[str, Any]) -> dict[str, Any]:
    large = wanted["path"].endswith(".parquet")
    there = path.read_bytes() if path.is_file() else None
    oid = None if there is None else hashlib.sha256(there).hexdigest() if large else blob(there)
    mode = "lfs" if large else "regular"
    return {"path": wanted["path"], "uploadMode": mode, "shouldIgnore": False, **({"oid": oid} if oid else {})}


if __name__ == "__main__":
    Hub.folder = Path(sys.argv[1])
    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        sys.stdout.write(f"{server.server_port}\n")
        sys.stdout.flush()
        server.serve_forever()
