"""Report how far a long computation is.

Wrap a loop in `track(...)` to report its progress and to make it stoppable between steps. The callback is found through
a context variable (`reporting_to`), so it does not have to be passed down to the loops. A loop is reported only after
`SECONDS`, so a short loop costs no more than a check for a stop request.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from time import monotonic
from typing import NamedTuple, TypeVar

from fineweb_mask.models.runtime.stopping import raise_if_stopped

SECONDS = 0.5
"""Time between two reports of one job, and the least age of a loop that is reported."""

Item = TypeVar("Item")


class Step(NamedTuple):
    """How far one loop is."""

    what: str  # the steps, in the plural: "greedy picks"
    done: int
    total: int

    def __str__(self) -> str:
        """Return, for example, "greedy picks 3 of 60"."""
        return f"{self.what} {self.done:,} of {self.total:,}"


ProgressCallback = Callable[[float, tuple[Step, ...]], None]
"""Called with the completed fraction (0 to 1, as far as known) and the active loops, outermost first."""


@dataclass(slots=True)
class _Loop:
    what: str
    total: int
    part: tuple[float, float]
    started: float
    done: int = 0
    step: int = 1  # size of the current step


class _Reporter:
    """Call one callback with the state of the nested loops of one context."""

    def __init__(self, callback: ProgressCallback) -> None:
        self.loops: list[_Loop] = []
        self._callback = callback
        self.due = monotonic() + SECONDS
        self._fraction = 0.0

    def report(self, now: float) -> None:
        self.due = now + SECONDS
        shown = [loop for loop in self.loops if loop.total > 1 and now - loop.started >= SECONDS]
        self._fraction = max(self._fraction, self._fraction_of_loops())
        self._callback(self._fraction, tuple(Step(loop.what, loop.done, loop.total) for loop in shown))

    def _fraction_of_loops(self) -> float:
        fraction, width = 0.0, 1.0
        for loop in self.loops:
            low, high = loop.part
            fraction += width * (low + (high - low) * loop.done / max(loop.total, 1))
            width *= (high - low) * loop.step / max(loop.total, 1)
        return fraction


_reporter: ContextVar[_Reporter | None] = ContextVar("reporter", default=None)


@contextmanager
def reporting_to(callback: ProgressCallback) -> Iterator[None]:
    """Report the progress of all tracked loops that run in the block or in a copy of its context.

    The callback runs in the loop's thread, every `SECONDS` and at the end of a loop that ran for at least `SECONDS`. It
    must return quickly. Only one copy of the context may run at a time.

    Examples
    --------
    >>> with reporting_to(lambda fraction, steps: print(fraction, *steps)):
    ...     total = sum(track("numbers", range(4)))  # shorter than SECONDS: no report
    >>> total
    6
    """
    token = _reporter.set(_Reporter(callback))
    try:
        yield
    finally:
        _reporter.reset(token)


def track(what: str, items: Sequence[Item], *, part: tuple[float, float] = (0.0, 0.0)) -> Iterator[Item]:
    """Iterate over `items`, checking for a stop request and reporting progress before each step.

    Parameters
    ----------
    what
        The steps, in the plural: `greedy picks`.
    items
        Items to iterate over; `range(n)` for a plain count.
    part
        Fractions of the enclosing work at the start and at the end of this loop: (0, 1) if the loop is nearly all of
        it, (0, 0) if unknown.

    Raises
    ------
    StoppedError
        If a stop was requested.

    Examples
    --------
    >>> [letter.upper() for letter in track("letters", "abc")]
    ['A', 'B', 'C']
    """
    return track_by_size(what, items, len(items), lambda _: 1, part=part)


def track_by_size(
    what: str, items: Iterable[Item], total: int, size: Callable[[Item], int], *, part: tuple[float, float] = (0.0, 0.0)
) -> Iterator[Item]:
    """Iterate as `track` does, counting each item by its `size`: the documents of a batch, `total` in all.

    Raises
    ------
    StoppedError
        If a stop was requested.
    """
    reporter = _reporter.get()
    if reporter is None:
        for item in items:
            raise_if_stopped()
            yield item
        return
    depth = len(reporter.loops)
    loop = _Loop(what, total, part, monotonic())
    reporter.loops.append(loop)
    try:
        for item in items:
            raise_if_stopped()
            loop.step = size(item)
            if (now := monotonic()) >= reporter.due:
                reporter.report(now)
            yield item
            loop.done = min(loop.done + loop.step, total)  # a retried item counts again
        loop.done, loop.step = total, 0
        now = monotonic()
        if now - loop.started >= SECONDS:
            reporter.report(now)
    finally:  # also after a break
        del reporter.loops[depth:]
