"""Compute with the same number of threads on every machine: the last bits of a sum depend on how it is divided.

A selection that is refined by comparing such sums would be another one on a machine with more cores, or in a process of
Ray, which has one thread.
"""

from collections.abc import Iterator
from contextlib import contextmanager

THREADS = 8
"""Where there are fewer cores, they take turns: a selection on two cores takes up to 1.3 times as long as by two."""


@contextmanager
def same_threads() -> Iterator[None]:
    """Let torch use `THREADS` threads in this thread of Python while the block, or the decorated function, runs."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(THREADS)
    try:
        yield
    finally:
        torch.set_num_threads(before)
