"""Overlap work: prefetch the next item and write the previous one in threads.

Threads suffice: tokeniser, GPU, compression and disk all release Python's global lock.
"""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

Item = TypeVar("Item")


def prefetched(items: Iterable[Item]) -> Iterator[Item]:
    """Yield the items, computing the next one in a thread while the caller uses the current one."""
    remaining = iter(items)
    with ThreadPoolExecutor(1) as thread:
        pending = thread.submit(next, remaining, None)
        while (item := pending.result()) is not None:
            pending = thread.submit(next, remaining, None)
            yield item


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
