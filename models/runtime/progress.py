"""How far a long computation is: its loops count their steps, and tell whoever listens.

A loop over `track(...)` is one that may be stopped on request between its steps, and whose place is known. Who listens
is a matter of the context (`reporting_to`), so that nothing is handed down to the loops. They tell nothing until they
have lasted a while, so brief ones cost no more than the request to stop.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from time import monotonic
from typing import NamedTuple, TypeVar

from fineweb_mask.models.runtime.stopping import raise_if_stopped

SECONDS = 0.5
"""Between two reports of one job, and for how long a loop must have run before it is reported."""

Item = TypeVar("Item")


class Step(NamedTuple):
    """The place in one loop."""

    what: str
    done: int
    total: int

    def __str__(self) -> str:
        """Say it in words."""
        return f"{self.what} {self.done:,} of {self.total:,}"


ProgressCallback = Callable[[float, tuple[Step, ...]], None]
"""Hears what share of the job is done, 0 to 1 as far as that is known, and the loops it is in, the outermost first."""


@dataclass(slots=True)
class _Loop:
    what: str
    total: int
    part: tuple[float, float]
    since: float
    done: int = 0
    step: int = 1  # of the total, how much is at work


class _Job:
    """The loops that one thread's computation is in."""

    def __init__(self, hear: ProgressCallback) -> None:
        self.loops: list[_Loop] = []
        self._hear = hear
        self._due = monotonic() + SECONDS
        self._share = 0.0

    def tell_if_due(self) -> None:
        now = monotonic()
        if now >= self._due:
            self.tell(now)

    def tell(self, now: float) -> None:
        self._due = now + SECONDS
        shown = [loop for loop in self.loops if loop.total > 1 and now - loop.since >= SECONDS]
        self._share = max(self._share, self._share_of_loops())
        self._hear(self._share, tuple(Step(loop.what, loop.done, loop.total) for loop in shown))

    def _share_of_loops(self) -> float:
        share, width = 0.0, 1.0
        for loop in self.loops:
            low, high = loop.part
            share += width * (low + (high - low) * loop.done / max(loop.total, 1))
            width *= (high - low) * loop.step / max(loop.total, 1)
        return share


_job: ContextVar[_Job | None] = ContextVar("job", default=None)


@contextmanager
def reporting_to(hear: ProgressCallback) -> Iterator[None]:
    """Have the loops that run in the block, or in a copy of its context, tell how far they are.

    Parameters
    ----------
    hear
        Called in the thread of the loop, every `SECONDS` and when a loop ends that took as long; it should return at
        once. One copy of the context may compute at a time.
    """
    token = _job.set(_Job(hear))
    try:
        yield
    finally:
        _job.reset(token)


def track(what: str, items: Sequence[Item], *, part: tuple[float, float] = (0.0, 0.0)) -> Iterator[Item]:
    """Go through the steps of a loop; before each a request to stop is heard, and who listens is told the place.

    Parameters
    ----------
    what
        What the steps are, in the plural: `greedy picks`.
    items
        What the loop goes through; `range(n)` where the steps have no more than a number.
    part
        From where to where this loop takes the work around it, as shares of 1: (0, 1) if it is nearly all of it,
        (0, 0) where that is not known.

    Raises
    ------
    StoppedError
        If a stop was requested.
    """
    return track_by_size(what, items, len(items), lambda _: 1, part=part)


def track_by_size(
    what: str,
    items: Iterable[Item],
    total: int,
    size: Callable[[Item], int],
    *,
    part: tuple[float, float] = (0.0, 0.0),
) -> Iterator[Item]:
    """Go through the steps of a loop as `track` does, where a step is as large as it says: documents of a batch.

    Parameters
    ----------
    what, items, part
        As `track` takes them; `what` names what is counted.
    total
        The size of all items.
    size
        The size of one.

    Raises
    ------
    StoppedError
        If a stop was requested.
    """
    job = _job.get()
    if job is None:
        for item in items:
            raise_if_stopped()
            yield item
        return
    depth = len(job.loops)
    loop = _Loop(what, total, part, monotonic())
    job.loops.append(loop)
    try:
        for item in items:
            raise_if_stopped()
            loop.step = size(item)
            job.tell_if_due()
            yield item
            loop.done = min(loop.done + loop.step, total)  # what is tried again is counted again
        loop.done, loop.step = total, 0
        now = monotonic()
        if now - loop.since >= SECONDS:
            job.tell(now)
    finally:  # also where the loop was left early
        del job.loops[depth:]
