"""Locate every stage's files in a workspace, and lock it for one run.

Guarantees: no file's content depends on the clock, the run, the machine or the workspace's own path, so equal inputs
give equal bytes.
"""

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Self

from filelock import FileLock, Timeout

from fineweb_mask.models.errors import WorkspaceError
from fineweb_mask.models.urls import is_url
from fineweb_mask.tasks.storage.lease import lease
from fineweb_mask.tasks.storage.mirror import LOCAL_ONLY, ensure_local, mirror_at, mirror_in
from fineweb_mask.tasks.workspace.references import StageFile

DISK_REMEDIES = {
    errno.ENOSPC: "free some space there, or choose another workspace",
    errno.EDQUOT: "free some space there, or choose another workspace",
    errno.EROFS: "choose a workspace that can be written",
}


@contextmanager
def disk_errors_explained(folder: Path) -> Iterator[None]:
    """Turn "disk full" and "read-only" errors into messages that name the path, or else `folder`, and the remedy.

    Raises
    ------
    WorkspaceError
        In place of such an error.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in DISK_REMEDIES:
            raise
        where, why = error.filename or folder, os.strerror(error.errno)
        raise WorkspaceError(
            f"{where}: {why}: {DISK_REMEDIES[error.errno]}; what was finished before is unchanged"
        ) from error


class Workspace:
    """The folder of one corpus, with the layout that every stage relies on.

    Parameters
    ----------
    root
        A folder or a URL. For a URL, the attribute `root` is the local folder that mirrors it (`Mirror`).
    scratch
        Parent folder of the mirror; by default the one that this process uses for the URL already, else the folder in
        FINEWEB_MASK_SCRATCH, else the user's cache folder.
    scratch_bytes
        Most bytes of its files on this machine; by default what this process was told before, else 90% of what is free.

    Examples
    --------
    >>> workspace = Workspace("/data/web")
    >>> workspace.shard_path("scores", "en/000")
    PosixPath('/data/web/scores/en/000.parquet')
    """

    def __init__(self, root: str | Path, scratch: str | Path | None = None, scratch_bytes: int | None = None) -> None:
        text = str(root).removeprefix("file://")
        mirror = mirror_at(text, scratch, scratch_bytes) if is_url(text) else mirror_in(Path(text).absolute())
        self.root = Path(text).absolute() if mirror is None else mirror.root
        self.url = None if mirror is None else mirror.url  # None for a local folder
        self.fitted = self.root / "fitted"  # models and statistics that were fitted on this corpus
        self.arrivals = self.fitted / "arrivals.json"  # names of the shards, in the order in which they came
        self.groups = self.fitted / "groups.json"  # of shards that are selected from together
        self.dataset = self.root / "dataset"  # the pipeline's product
        self.reports = self.root / "reports"  # reports and metrics
        self.cache = self.root / LOCAL_ONLY  # stays on this machine: spilled data, how long jobs took
        self._mirror = mirror

    @property
    def address(self) -> str:
        """What opens the workspace on every machine that reaches it: its URL, or its folder."""
        return self.url or str(self.root)

    def display_path(self, path: Path) -> str:
        """Return a path of the workspace as users know it: the URL of a mirrored file, or the local path."""
        return str(path) if self._mirror is None else self._mirror.url_of(path)

    def shard_path(self, stage_folder: str, shard: str) -> Path:
        """Return a shard's file in `documents`, `duplicates`, `scores`, `embeddings` or `masks`."""
        return self.root / stage_folder / f"{shard}.parquet"

    def relative(self, path: Path) -> str:
        """Return a path for a `StageFile`: relative to the workspace if it is inside, else absolute."""
        return path.relative_to(self.root).as_posix() if path.is_relative_to(self.root) else str(path)

    def resolve(self, file: StageFile) -> Path:
        """Return the local path of a referenced file, downloading it if necessary."""
        return self.local(file.path)

    def local(self, path: str) -> Path:
        """Return a file or folder of the workspace, downloading it if necessary; an absolute path stays as it is."""
        target = self.root / path
        if self._mirror is not None and target.is_relative_to(self.root):
            self._mirror.look_for(target)  # another machine may have written it after this one listed the files
        return ensure_local(target)

    def files(self, pattern: str) -> list[Path]:
        """Return the paths, local or remote, that match a pattern such as `fitted/*.json`, sorted."""
        found = set(self.root.glob(pattern))
        if self._mirror is not None:
            found.update(self._mirror.glob(pattern))
        return sorted(found)

    def exists(self, path: Path) -> bool:
        """Return whether a file, or a folder that is not empty, exists locally or remotely."""
        is_local = any(path.iterdir()) if path.is_dir() else path.exists()
        return is_local or (self._mirror is not None and self._mirror.exists(path))

    @contextmanager
    def exclusive(self) -> Iterator[Self]:
        """Lock the workspace for one run, and delete the partial files of killed runs.

        Raises
        ------
        WorkspaceError
            If another run holds the lock.
        """
        with self._locked(), ExitStack() as leased:
            if self._mirror is not None:
                leased.enter_context(lease(self._mirror.store, self.root / ".lease"))
            for leftover in self.root.rglob(".*.partial"):
                shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
            if self._mirror is not None:
                self._mirror.synchronise()
            yield self

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Lock out other processes of this machine; the lock of a killed process is released by the system."""
        lock = FileLock(self.root / ".lock")
        with disk_errors_explained(self.root):
            self.root.mkdir(parents=True, exist_ok=True)
            try:
                lock.acquire(blocking=False)
            except Timeout as error:
                raise WorkspaceError(
                    f"another run is using the workspace {self.url or self.root}: wait for it, "
                    "or choose another with --workspace"
                ) from error
            try:
                yield
            finally:
                lock.release()

    def check_reachable(self) -> None:
        """Raise `RemoteError` if the workspace is at a URL that cannot be listed."""
        if self._mirror is not None:
            self._mirror.store.check()

    def refresh_listing(self) -> None:
        """List a remote workspace again, to see the files that other machines have written."""
        if self._mirror is None:
            return
        try:
            with self._locked():
                self._mirror.synchronise()
        except WorkspaceError:  # a run of this machine is using it, so its local files must stay
            self._mirror.refresh_listing()
