"""Bound the size of a local folder: files leave it in the order of their last use, but none that a job reads.

One process per folder is enough: a run holds the folder's `.lock`.
"""

import os
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path

from fineweb_mask.models.errors import WorkspaceError
from fineweb_mask.models.runtime.stopping import raise_if_stopped

SHARE_OF_FREE = 0.9
"""Of the disk's free space, where no limit is set; the rest is for what jobs are writing."""

WAIT_SECONDS = 0.5


class ScratchError(WorkspaceError):
    """The files that one job reads do not fit into the folder."""


class CrowdedError(ScratchError, TimeoutError):
    """Several jobs wait for each other's room; the job that gets this error is tried again, when others are done."""


class _Pins:
    """The files that one job, or one step of it, reads."""

    def __init__(self) -> None:
        self.held: list[tuple[Scratch, str]] = []
        self.outer = _pins.get()
        self.job: object = self if self.outer is None else self.outer.job

    def names(self, scratch: "Scratch") -> set[str]:
        """Return the pinned names of a folder, also those of the blocks around this one."""
        own = {name for holder, name in self.held if holder is scratch}
        return own if self.outer is None else own | self.outer.names(scratch)


_pins: ContextVar[_Pins | None] = ContextVar("pins", default=None)


@contextmanager
def pinned() -> Iterator[None]:
    """Keep all files that the block uses in their folder until it ends; an inner block releases its own earlier."""
    pins = _Pins()
    before = _pins.set(pins)
    try:
        yield
    finally:
        _pins.reset(before)
        for scratch, name in pins.held:
            scratch.release(name, pins.job)


class Scratch:
    """A folder whose files can be had again from elsewhere. Its methods are thread-safe.

    Parameters
    ----------
    root
        The folder.
    name_of
        Returns the name of a file of the folder, or None if it is to stay and is not counted.

    Attributes
    ----------
    limit
        Most bytes of the files; None: a share of what is free on the disk.
    """

    def __init__(self, root: Path, name_of: Callable[[Path], str | None]) -> None:
        self.root = root
        self.limit: int | None = None
        self._name_of = name_of
        self._pinned: Counter[str] = Counter()
        self._reserved: dict[str, int] = {}  # bytes of files that are being downloaded
        self._changed = threading.Condition(threading.RLock())
        self._holders: Counter[object] = Counter()  # pins by job
        self._waiting: set[object] = set()  # jobs

    def files(self) -> list[tuple[str, Path]]:
        """Return the counted files that are here, with their names."""
        paths = [path for path in self.root.rglob("*") if path.is_file()]
        return [(name, path) for path in paths if (name := self._name_of(path)) is not None]

    def use(self, name: str) -> None:
        """Note that a file is used now; within `pinned`, it stays until that block ends."""
        pins = _pins.get()
        with self._changed:
            with suppress(FileNotFoundError):
                os.utime(self.root / name)
            if pins is not None:
                pins.held.append((self, name))
                self._pinned[name] += 1
                self._holders[pins.job] += 1

    def drop(self, name: str) -> None:
        """Delete a file that is out of date, unless a job reads it."""
        with self._changed:
            if name not in self._pinned:
                (self.root / name).unlink(missing_ok=True)

    def release(self, name: str, job: object) -> None:
        """Take back a job's pin of a file."""
        with self._changed:
            self._pinned -= Counter([name])
            self._holders -= Counter([job])
            self._changed.notify_all()

    @contextmanager
    def room_for(self, name: str, size: int) -> Iterator[None]:
        """Delete the files that were not used for longest, until a file of `size` bytes, which the block writes, fits.

        Waits while other jobs hold the room.

        Raises
        ------
        ScratchError
            If this job alone needs more than the limit.
        CrowdedError
            If the jobs that hold the room wait, too.
        """
        pins = _pins.get() or _Pins()
        with self._changed:
            while not self._make_room(name, size):
                self._check(pins, name, size)
                self._waiting.add(pins.job)
                try:
                    self._changed.wait(WAIT_SECONDS)
                finally:
                    self._waiting.discard(pins.job)
                raise_if_stopped()
            self._reserved[name] = size
        try:
            yield
        finally:
            with self._changed:
                self._reserved.pop(name, None)
                self._changed.notify_all()

    def _make_room(self, name: str, size: int) -> bool:
        sizes = {other: (path.stat(), path) for other, path in self.files() if other != name}
        used = sum(status.st_size for status, _ in sizes.values()) + sum(self._reserved.values())
        limit = self._limit(used)
        for other, (status, path) in sorted(sizes.items(), key=lambda item: item[1][0].st_mtime_ns):
            if used + size <= limit:
                break
            if other not in self._pinned and other not in self._reserved:
                path.unlink()
                used -= status.st_size
        return used + size <= limit

    def _limit(self, used: int) -> int:
        if self.limit is not None:
            return self.limit
        self.root.mkdir(parents=True, exist_ok=True)
        return used + int(shutil.disk_usage(self.root).free * SHARE_OF_FREE)

    def _check(self, pins: _Pins, name: str, size: int) -> None:
        """Raise unless other jobs hold room, and one of them is not waiting."""
        own = pins.names(self) - {name}
        needed = size + sum((self.root / other).stat().st_size for other in own if (self.root / other).is_file())
        limit = self._limit(needed)
        if needed > limit:
            raise ScratchError(
                f"one job needs {needed:,} bytes of {self.root} at a time (last {name}), and it may hold {limit:,}: "
                "raise engine.scratch_bytes, or name a larger disk with engine.scratch"
            )
        if not self._reserved and self._holders.keys() - {pins.job} <= self._waiting:
            raise CrowdedError(
                f"{name}: {size:,} bytes are not free in {self.root}, because other jobs use all of its {limit:,}: "
                "raise engine.scratch_bytes, or lower engine.workers"
            )
