"""Locate every stage's files in a workspace, and lock what several runs may not do at the same time.

Guarantees: no file's content depends on the clock, the run, the machine or the workspace's own path, so equal inputs
give equal bytes.
"""

import fcntl
import logging
import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Self, TextIO

from fineweb_mask.models.errors import WorkspaceError
from fineweb_mask.models.runtime.stopping import raise_if_stopped
from fineweb_mask.models.urls import is_url
from fineweb_mask.tasks.storage.atomic import roots_in_use
from fineweb_mask.tasks.storage.remote.copies import ensure_local, remote_folder, size_of
from fineweb_mask.tasks.workspace.references import StageFile, StageKey, path_of

CACHE = "cache"
"""Folder for what stays on this machine: how long jobs took, spilled data."""

MARKER = ".fineweb-mask"
"""File in a local workspace by which a run knows that it may replace and remove files there."""

LAST_RUN = "run.json"
"""File with the recipe of the last run; by it, a workspace at a URL is known."""

RECIPE = "recipe.yaml"
"""The recipe that `run` makes for documents."""

NOT_THE_USERS = frozenset({CACHE, RECIPE, "lost+found"})
"""What may be in an empty workspace: a check before a run and `run` make the first two, a disk has the last."""

PARTIAL = re.compile(r"\.(.*\.)?[0-9a-f]{32}\.partial|\.[a-z]+-[a-z0-9_]{8}\.partial", re.DOTALL)
"""Names of the files and folders that a run makes, and removes or renames when they are whole."""

LOCK_SECONDS = 0.1
"""Time between two attempts to lock a file."""

logger = logging.getLogger(__name__)


def _unusable(folder: Path, error: OSError) -> WorkspaceError:
    """Return the error for a workspace that is, or cannot be made, not a folder to write to."""
    where = "" if error.filename in {None, str(folder)} else f" ({error.filename})"
    return WorkspaceError(
        f"workspace: {folder} cannot be used: {error.strerror}{where}: give a folder that can be written"
    )


def _try_lock(file: TextIO, kind: int) -> bool:
    """Lock a file, or return False if it is locked."""
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _wait_for(file: TextIO, kind: int, why: str) -> None:
    """Lock a file, and log why if that does not succeed at once."""
    if _try_lock(file, kind):
        return
    logger.warning("%s", why)
    while not _try_lock(file, kind):
        raise_if_stopped()
        time.sleep(LOCK_SECONDS)


class Workspace:
    """The folder of one corpus, with the layout that every stage relies on.

    Parameters
    ----------
    root
        A folder or a URL. For a URL, the attribute `root` is the folder of this process's copies (`RemoteFolder`).

    Examples
    --------
    >>> from fineweb_mask.tasks.workspace.references import digest
    >>> key = StageKey(stage="score", version=1, settings=digest({"weight": 1.0}), inputs=digest(["a", "b"]))
    >>> Workspace("/data/web").shard_path("scores", "en/000", key)
    PosixPath('/data/web/scores/en/000.e2420cf1dada345e.parquet')
    """

    def __init__(self, root: str | Path) -> None:
        text = str(root).removeprefix("file://")
        remote = remote_folder(text) if is_url(text) else None
        self.root = Path(text).absolute() if remote is None else remote.root
        self.here = self.root if remote is None else remote.here  # for locks: stays on this machine
        self.url = None if remote is None else remote.url  # None for a local folder
        self.fitted = self.root / "fitted"  # models and statistics that were fitted on this corpus
        self.erased = self.fitted / "erased.json"  # rows of source files, by shard
        self.columns = self.fitted / "columns.json"  # of the documents, which stay while the corpus grows
        self.dataset = self.root / "dataset"  # the pipeline's product
        self.dataset_record = self.dataset / "provenance.json"  # written last
        self.reports = self.root / "reports"  # reports and metrics
        self.index = self.root / "index.parquet"  # the footers of stage files
        self.cache = self.here / CACHE
        self.seconds = self.cache / "seconds.txt"  # how long jobs took
        self._remote = remote

    @property
    def address(self) -> str:
        """What opens the workspace on every machine that reaches it: its URL, or its folder."""
        return self.url or str(self.root)

    def display_path(self, path: Path) -> str:
        """Return a path of the workspace as users know it: the URL of a remote file, or the local path."""
        return str(path) if self._remote is None else self._remote.url_of(self._remote.name_of(path))

    def shard_path(self, stage_folder: str, shard: str, key: StageKey) -> Path:
        """Return a shard's file of this key in `documents`, `hashes`, `scores`, `embeddings` or `masks`."""
        return self.root / path_of(stage_folder, shard, key)

    def sizes(self, folder: str, suffix: str = ".parquet") -> dict[str, int]:
        """Return the size in bytes of each file below a folder that ends so, by its path in the workspace."""
        if self._remote is not None:
            return {name: size for name, size in self._remote.sizes(folder).items() if name.endswith(suffix)}
        found = {}
        for parent, folders, names in os.walk(self.root / folder):
            folders[:] = [name for name in folders if not name.startswith(".")]
            below = Path(parent).relative_to(self.root).as_posix()  # no path is made of each of 100,000 files
            for name in names:
                if name.endswith(suffix) and not name.startswith("."):
                    found[f"{below}/{name}"] = os.stat(f"{parent}/{name}").st_size  # noqa: PTH116
        return found

    def remove_empty_folders(self, folder: str) -> None:
        """Remove the empty folders below a local folder, hidden ones included."""
        for parent, _, _ in os.walk(self.root / folder, topdown=False):
            with suppress(OSError):  # it is not empty
                Path(parent).rmdir()

    def relative(self, path: Path) -> str:
        """Return a path for a `StageFile`: relative to the workspace if it is inside, else absolute."""
        return path.relative_to(self.root).as_posix() if path.is_relative_to(self.root) else str(path)

    def resolve(self, file: StageFile) -> Path:
        """Return the path of a referenced file, by which it is read; what needs a file of this machine calls `local`.

        Raises
        ------
        FileNotFoundError
            If the reference is to no file.
        """
        if not file.path:
            raise FileNotFoundError(f"{self.display_path(self.root)}: {file.stage} {file.name} has no file")
        return self.root / file.path

    def local(self, path: str) -> Path:
        """Return a file or folder of the workspace, downloading it if necessary; an absolute path stays as it is."""
        return ensure_local(self.root / path)

    def files(self, pattern: str) -> list[Path]:
        """Return the paths, local or remote, that match a pattern such as `fitted/*.json`, sorted."""
        names = self.sizes(pattern.partition("/")[0], suffix="")
        return sorted(self.root / name for name in names if PurePosixPath("/", name).match(f"/{pattern}"))

    @property
    def is_started(self) -> bool:
        """Whether a run was started in it: its recipe is there."""
        return size_of(self.root / LAST_RUN) is not None

    @contextmanager
    def in_use(self) -> Iterator[Self]:
        """Mark the workspace as in use by a run; several runs may use one at the same time.

        A run that is the only one on this machine deletes the partial files of killed runs before it begins.

        Raises
        ------
        WorkspaceError
            If the folder holds something else (`check_is_ours`), or cannot be written.
        """
        self.check_is_ours()
        with self._lock_file(".lock") as lock:
            (self.here / MARKER).touch()
            if _try_lock(lock, fcntl.LOCK_EX):
                self._remove_partial_files()
            _wait_for(lock, fcntl.LOCK_SH, f"waiting for what removes files from {self.display_path(self.root)}")
            roots_in_use.append(self.root)
            try:
                yield self
            finally:
                roots_in_use.remove(self.root)

    @contextmanager
    def idle(self) -> Iterator[Self]:
        """Keep runs of this machine from using the workspace, to remove files or to rename them.

        Raises
        ------
        WorkspaceError
            If a run uses it, or the folder holds something else (`check_is_ours`).
        """
        self.check_is_ours()
        with self._lock_file(".lock") as lock:
            if not _try_lock(lock, fcntl.LOCK_EX):
                raise WorkspaceError(f"a run is using the workspace {self.display_path(self.root)}: wait for its end")
            with self.alone():
                self._remove_partial_files()
                yield self

    @contextmanager
    def alone(self) -> Iterator[Self]:
        """Wait until no other run of this machine replaces files in the workspace, and keep others from it.

        Needed for what has a fixed name, such as the dataset, the catalog, and the manifests of fitted models; files
        whose names tell their keys are written at any time.
        """
        with self._lock_file(".alone") as lock:
            _wait_for(lock, fcntl.LOCK_EX, f"waiting for another run that writes to {self.display_path(self.root)}")
            yield self

    @contextmanager
    def _lock_file(self, name: str) -> Iterator[TextIO]:
        """Open a file to lock; the system releases the locks of a killed process."""
        try:
            self.here.mkdir(parents=True, exist_ok=True)
            # The file that a link leads to is not ours.
            handle = os.open(self.here / name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        except OSError as error:
            raise _unusable(self.here, error) from error
        with open(handle, "a", encoding="utf-8") as file:  # noqa: PTH123 - a file that is open
            yield file

    def _remove_partial_files(self) -> None:
        """Delete what killed runs did not finish to write."""
        for leftover in self.here.rglob(".*.partial"):
            if PARTIAL.fullmatch(leftover.name) and not leftover.is_symlink():  # no run makes a link
                shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()

    def check_is_ours(self) -> None:
        """Check that the folder or URL is new, empty or a workspace, before anything in it is replaced or removed.

        Hidden files do not count.

        Raises
        ------
        WorkspaceError
            If it holds something else, or is not a folder.
        """
        if self._remote is not None:
            is_ours = self.is_started
            names = set() if is_ours else {name.partition("/")[0] for name in self._remote.sizes()}
        else:
            if {"?", "\\"} & set(str(self.root)):
                raise WorkspaceError(
                    f"workspace: {self.root} holds a question mark or a backslash, and DuckDB keeps no database at "
                    "such a path: choose another folder"
                )
            is_ours = is_workspace(self.root)
            try:
                names = {path.name for path in self.root.iterdir()} if self.root.exists() else set()
            except OSError as error:
                raise _unusable(self.root, error) from error
        found = sorted({name for name in names if not name.startswith(".")} - NOT_THE_USERS)
        if found and not is_ours:
            some = ", ".join(map(repr, found[:3])) + (f" and {len(found) - 3:,} more" if len(found) > 3 else "")
            raise WorkspaceError(
                f"workspace: {self.display_path(self.root)} holds {some}, and is not a workspace: a run could "
                "replace or remove these files. Give a new or empty folder; in a workspace that was copied without "
                f"hidden files, make an empty file {MARKER}"
            )


def is_workspace(folder: Path) -> bool:
    """Return whether a run has used a folder of this machine as its workspace: its marker is there."""
    return os.path.isfile(folder / MARKER)  # noqa: PTH113 - of a folder that cannot be read, False
