"""Lock a remote workspace with a small object that the running process renews.

The object is created and renewed with conditional writes (If-None-Match, If-Match). A store that ignores the conditions
is refused, before anything is written to it.
"""

import json
import logging
import os
import platform
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from fineweb_mask.models.errors import WorkspaceError
from fineweb_mask.models.runtime.stopping import StoppedError, request_stop
from fineweb_mask.tasks.storage.remote.errors import RemoteError
from fineweb_mask.tasks.storage.remote.object_store import Store, Tagged
from fineweb_mask.tasks.storage.remote.retries import BRIEF_SECONDS, brief_retries

if TYPE_CHECKING:
    from obstore import UpdateVersion

NAME = ".run.json"
RENEW_SECONDS = 60.0
STALE_SECONDS = 600.0
"""Age, by the store's clock, at which another run may take over an object that is not renewed."""

_log = logging.getLogger(__name__)


class HeldError(WorkspaceError):
    """Another run holds the workspace."""


@contextmanager
def lease(store: Store, token_file: Path) -> Iterator[None]:
    """Lock a remote folder while the block runs.

    The local `token_file` keeps the token of this machine's last lease. If that run was killed, its lease can be taken
    over at once.

    Raises
    ------
    HeldError
        If another run holds the lock.
    RemoteError
        If the store ignores the conditions that the lock relies on.
    """
    token = uuid.uuid4().hex
    held = _Lease(store, token)
    held.acquire(token_file.read_text(encoding="utf-8") if token_file.is_file() else "")
    store.check_conditions(NAME)
    token_file.write_text(token, encoding="utf-8")
    ended = threading.Event()
    renewing = threading.Thread(target=held.renew_until, args=(ended,), name="lease", daemon=True)
    renewing.start()
    try:
        yield
    finally:
        ended.set()
        renewing.join(BRIEF_SECONDS)  # it may be waiting for an unreachable server
        held.release()


class _Lease:
    """The lock object of one run."""

    def __init__(self, store: Store, token: str) -> None:
        self._store = store
        self._token = token
        self._beats = 0
        self._tag: UpdateVersion = {}

    def acquire(self, last_token: str) -> None:
        found: Tagged | None = None
        for _ in range(2):  # a second time if it was released in between
            if self._write(None):
                return
            found = self._store.read_tagged(NAME)
            if found is not None:
                break
        if found is None:
            raise HeldError(f"another run is starting in {self._store.url}: wait for it")
        owner = _owner(found.content)
        if owner.get("token") == self._token:  # this call wrote it, but the response was lost
            self._tag = found.tag
            return
        is_free = (
            owner.get("token") == last_token or (self._store.now() - found.written).total_seconds() >= STALE_SECONDS
        )
        if not is_free or not self._write(found.tag):
            raise HeldError(
                f"another run (on {str(owner.get('host'))[:80]!r}) is using the workspace {self._store.url}: wait for "
                "it, or choose another with --workspace; if it was killed, the workspace is free "
                f"{STALE_SECONDS / 60:.0f} minutes after that"
            )

    def renew_until(self, ended: threading.Event) -> None:
        while not ended.wait(RENEW_SECONDS):
            try:
                if self._write(self._tag):
                    continue
                found = self._store.read_tagged(NAME)
            except RemoteError as error:
                _log.warning("the workspace's lock was not renewed: %s", error)
                continue
            if found is not None and _owner(found.content).get("token") == self._token:
                self._tag = found.tag
                continue
            _log.error("another run has taken over %s: stopping this run", self._store.url)
            request_stop()
            return

    def release(self) -> None:
        try:
            with brief_retries():
                found = self._store.read_tagged(NAME)
                if found is not None and _owner(found.content).get("token") == self._token:
                    self._store.delete([NAME])
        except (RemoteError, StoppedError) as error:  # do not hide the error that ended the run
            _log.warning("the workspace's lock was not released; it expires by itself: %s", error)

    def _write(self, tag: "UpdateVersion | None") -> bool:
        self._beats += 1
        content = {"host": platform.node(), "process": os.getpid(), "token": self._token, "renewed": self._beats}
        written = self._store.write_if_unchanged(NAME, json.dumps(content).encode(), tag)
        if written is None:
            return False
        self._tag = written
        return True


def _owner(content: bytes) -> dict[str, object]:
    try:
        owner = json.loads(content)
    except ValueError:
        return {}
    return owner if isinstance(owner, dict) else {}
