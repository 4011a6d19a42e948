"""Time calls, and read the memory of processes (Linux)."""

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import TypeVar

R = TypeVar("R")

STAGES = {  # with the folder that is deleted so that it is run again
    "ingest": "documents",
    "score": "scores",
    "embed": "embeddings",
    "select": "masks",
    "materialize": "dataset",
    "report": "reports",
}


def in_turns(ways: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Return the median seconds of each way; every second turn runs them in reverse order."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(repeats):
        for name in list(ways) if turn % 2 == 0 else list(reversed(ways)):
            started = time.perf_counter()
            ways[name]()
            seconds[name].append(time.perf_counter() - started)
    return {name: median(times) for name, times in seconds.items()}


def least_seconds(work: Callable[[], R], repeats: int) -> tuple[R, float]:
    """Return what the last call returns, and the least of several times that it took."""
    least = float("inf")
    for _ in range(repeats):
        started = time.perf_counter()
        found = work()
        least = min(least, time.perf_counter() - started)
    return found, least


def status_mib(name: str) -> float:
    """Return a line of this process's status in MiB: `VmRSS`, or `VmHWM`, the most.

    Other than `ru_maxrss`, these do not count the process that started this one.
    """
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) / 1024
    raise ValueError(name)


def proportional_mib(process: int | str, other: bytes | None = None) -> float:
    """Return the MiB of a process and its children, their proportional set size.

    Left out are those with the word `other` in their command, and their children.
    """
    found, left = 0.0, [process]
    while left:
        folder = Path(f"/proc/{left.pop()}")
        with suppress(OSError):
            if other is not None and other in (folder / "cmdline").read_bytes():
                continue
            for line in (folder / "smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    found += int(line.split()[1]) / 1024
            for task in (folder / "task").iterdir():
                left += [int(child) for child in (task / "children").read_text().split()]
    return found
