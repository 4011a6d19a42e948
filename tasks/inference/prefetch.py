"""Overlap work: prefetch the next item and write the previous one in threads.

Threads suffice: tokeniser, GPU, compression and disk all release Python's global lock.
"""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from time import perf_counter
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Prefetched(Generic[Item]):
    """Iterates over items, computing the next one in a thread while the caller uses the current one."""

    def __init__(self, items: Iterable[Item]) -> None:
        self._items = iter(items)
        self.waited = 0.0
        """Seconds for which the caller waited for items after the first."""

    def __iter__(self) -> Iterator[Item]:
        with ThreadPoolExecutor(1) as thread:
            item = thread.submit(next, self._items, None).result()
            while item is not None:
                pending = thread.submit(next, self._items, None)
                yield item
                started = perf_counter()
                item = pending.result()
                self.waited += perf_counter() - started


@contextmanager
def background_writer() -> Iterator[Callable[[Callable[[], object]], None]]:
    """Yield a function that runs its argument in a thread, in order, one at a time.

    A call waits for the previous one to finish. An error is raised by the next call, or at the end of the block.
    """
    with ThreadPoolExecutor(1) as thread:
        last: list[Future[object]] = []

        def run(work: Callable[[], object]) -> None:
            if last:
                last.pop().result()
            last.append(thread.submit(work))

        yield run
        if last:
            last.pop().result()
