"""Locate every stage's files in a workspace, and lock it for one run.

Promises: nothing in a file depends on the clock, the run, the machine or the workspace's own path, so equal inputs give
equal bytes.
"""

import errno
import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Self

from fineweb_mask.models.errors import WorkspaceError
from fineweb_mask.models.urls import is_url
from fineweb_mask.tasks.storage.lease import HeldError, lease
from fineweb_mask.tasks.storage.mirror import LOCAL_ONLY, ensure_local, mirror_at, mirror_in
from fineweb_mask.tasks.workspace.references import StageFile

DISK_REMEDIES = {
    errno.ENOSPC: "free some space there, or choose another workspace",
    errno.EDQUOT: "free some space there, or choose another workspace",
    errno.EROFS: "choose a workspace that can be written",
}


@contextmanager
def disk_errors_explained(place: Path) -> Iterator[None]:
    """Say of a full or read-only disk which file or folder it is about, and what to do; nothing there has changed.

    Raises
    ------
    LakeError
        In place of such an error.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in DISK_REMEDIES:
            raise
        where, why = error.filename or place, os.strerror(error.errno)
        raise WorkspaceError(
            f"{where}: {why}: {DISK_REMEDIES[error.errno]}; what was finished before is unchanged"
        ) from error


class Workspace:
    """The folder of one corpus, with the layout that every stage relies on.

    Parameters
    ----------
    root
        The folder, or a URL: then `root` of the workspace is the local folder that mirrors it (`Mirror`).
    scratch
        The folder in which the mirror lies; None is the user's cache folder.
    """

    def __init__(self, root: str | Path, scratch: str | Path | None = None) -> None:
        text = str(root).removeprefix("file://")
        mirror = mirror_at(text, scratch) if is_url(text) else mirror_in(Path(text).absolute())
        self.root = Path(text).absolute() if mirror is None else mirror.root
        self._mirror = mirror

    @property
    def url(self) -> str | None:
        """Where the workspace is, unless it is a folder of this machine."""
        return None if self._mirror is None else self._mirror.url

    def display_path(self, path: Path) -> str:
        """Return where a path of the workspace is, as a user knows it: at the URL, or here."""
        return str(path) if self._mirror is None else self._mirror.url_of(path)

    def shard_path(self, stage_folder: str, shard: str) -> Path:
        """Return the file of a shard in `documents`, `duplicates`, `scores`, `embeddings` or `masks`."""
        return self.root / stage_folder / f"{shard}.parquet"

    @property
    def fitted(self) -> Path:
        """What was fitted on this corpus."""
        return self.root / "fitted"

    @property
    def dataset(self) -> Path:
        """The product."""
        return self.root / "dataset"

    @property
    def reports(self) -> Path:
        """Reports and metrics."""
        return self.root / "reports"

    @property
    def cache(self) -> Path:
        """The results that Prefect persists."""
        return self.root / LOCAL_ONLY

    def relative(self, path: Path) -> str:
        """Return a path as it stands in a `StageFile`: relative to the workspace, unless it is elsewhere."""
        return path.relative_to(self.root).as_posix() if path.is_relative_to(self.root) else str(path)

    def resolve(self, file: StageFile) -> Path:
        """Return where a referenced file lies now, on this machine."""
        return ensure_local(self.root / file.path)

    def files(self, pattern: str) -> list[Path]:
        """Return the paths that match a pattern such as `fitted/*.json`, here or at the URL."""
        found = set(self.root.glob(pattern))
        if self._mirror is not None:
            found.update(self._mirror.names(pattern))
        return sorted(found)

    def holds(self, path: Path) -> bool:
        """Return whether there is such a file, or a folder with any in it."""
        here = any(path.iterdir()) if path.is_dir() else path.exists()
        if here or self._mirror is None:
            return here
        return self._mirror.held(path) is not None or self._mirror.holds_below(path)

    @contextmanager
    def exclusive(self) -> Iterator[Self]:
        """Hold the workspace for one run, and clear away what a killed run left half written.

        Raises
        ------
        LakeError
            If another run holds it.
        """
        with self._locked(), self._leased():
            for leftover in self.root.rglob(".*.partial"):
                shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
            if self._mirror is not None:
                self._mirror.store.abort_unfinished()
                self._mirror.synchronise()
            yield self

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Keep other processes of this machine out."""
        with disk_errors_explained(self.root):
            self.root.mkdir(parents=True, exist_ok=True)
        with disk_errors_explained(self.root), (self.root / ".lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise WorkspaceError(
                    f"another run is using the workspace {self.url or self.root}: wait for it, "
                    "or choose another with --workspace"
                ) from error
            yield

    @contextmanager
    def _leased(self) -> Iterator[None]:
        """Keep other machines out, where the workspace is at a URL."""
        with ExitStack() as held:
            if self._mirror is not None:
                try:
                    held.enter_context(lease(self._mirror.store, self.root / ".lease"))
                except HeldError as error:
                    raise WorkspaceError(str(error)) from error
            yield

    def check(self) -> None:
        """Raise `RemoteError` if the workspace is at a URL that is out of reach."""
        if self._mirror is not None:
            self._mirror.store.check()

    def look(self) -> None:
        """Take note of what others have written since, where the workspace is at a URL."""
        if self._mirror is None:
            return
        try:
            with self._locked():
                self._mirror.synchronise()
        except WorkspaceError:  # a run of this machine works there
            self._mirror.look()
