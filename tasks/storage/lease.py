"""One run at a time in a workspace at a URL: a small object there, which its run renews while it works.

It is created and renewed with conditional writes (If-None-Match, If-Match), which Amazon's S3, MinIO, R2 and others
have; a store that ignores the conditions gives no protection, and other protocols than s3:// have no such object.
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

from fineweb_mask.models.errors import WorkspaceError
from fineweb_mask.models.runtime.stopping import StoppedError, request_stop
from fineweb_mask.tasks.storage.errors import RemoteError
from fineweb_mask.tasks.storage.object_store import Store, Tagged
from fineweb_mask.tasks.storage.retries import BRIEF_SECONDS

NAME = ".run.json"
RENEW_SECONDS = 60.0
STALE_SECONDS = 600.0
"""Age, by the clock of the store, at which an object that nobody renews is taken over."""

_log = logging.getLogger(__name__)


class HeldError(WorkspaceError):
    """Another run holds the workspace."""


@contextmanager
def lease(store: Store, remembered: Path) -> Iterator[None]:
    """Hold a store's folder for one run; nothing happens where the store has no conditional writes.

    Parameters
    ----------
    store
        The folder.
    remembered
        A local file that says which object this machine's last run made: one that was killed leaves it behind, and it
        need not be waited for.

    Raises
    ------
    HeldError
        If another run holds it.
    """
    if not store.has_conditions:
        yield
        return
    token = uuid.uuid4().hex
    held = _Held(store, token)
    held.take(remembered.read_text(encoding="utf-8") if remembered.is_file() else "")
    remembered.write_text(token, encoding="utf-8")
    ended = threading.Event()
    renewing = threading.Thread(target=held.renew_until, args=(ended,), name="lease", daemon=True)
    renewing.start()
    try:
        yield
    finally:
        ended.set()
        renewing.join(BRIEF_SECONDS)  # it may be waiting for a server that is gone
        held.release()


class _Held:
    """The object of one run."""

    def __init__(self, store: Store, token: str) -> None:
        self._store = store
        self._token = token
        self._beats = 0
        self._tag = ""

    def take(self, earlier: str) -> None:
        found: Tagged | None = None
        for _ in range(2):  # the second, if it was given up in between
            if self._write(None):
                return
            found = self._store.tagged(NAME)
            if found is not None:
                break
        if found is None:
            raise HeldError(f"another run begins in {self._store.url}: wait for it")
        owner = _owner(found.content)
        if owner.get("token") == self._token:  # written, and the answer was lost
            self._tag = found.tag
            return
        is_free = found.age >= STALE_SECONDS or owner.get("token") == earlier
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
                found = self._store.tagged(NAME)
            except RemoteError as error:
                _log.warning("the workspace's lock was not renewed: %s", error)
                continue
            if found is not None and _owner(found.content).get("token") == self._token:
                self._tag = found.tag
                continue
            _log.error("another run has taken %s over: this one stops", self._store.url)
            self._tag = ""
            request_stop()
            return

    def release(self) -> None:
        try:
            self._store.give_up(NAME, lambda content: _owner(content).get("token") == self._token)
        except (RemoteError, StoppedError) as error:  # what ended the run is the error to tell
            _log.warning("the workspace's lock was not given up, and is free in a while: %s", error)

    def _write(self, tag: str | None) -> bool:
        self._beats += 1
        content = {"host": platform.node(), "process": os.getpid(), "token": self._token, "renewed": self._beats}
        written = self._store.write_if(NAME, json.dumps(content).encode(), tag)
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
