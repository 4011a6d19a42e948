"""Keep the memory that threads have freed from adding up: glibc otherwise holds it apart for each of many threads."""

import ctypes
import platform

M_ARENA_MAX = -8  # of malloc.h
ARENAS = 2


def limit_arenas() -> bool:
    """Have glibc allocate from at most `ARENAS` arenas from now on: whether it does; elsewhere nothing happens.

    Every shard is embedded by its own threads, and each allocates tens of megabytes at a time. From an arena for
    each thread, embedding a million documents grew from 1.5 to 2.4 GiB. From two, 200,000 stay at 1.3 GiB (1.5 to 1.6
    before), and take as long. Arenas that exist are not given up, so that this comes first in a process.
    """
    return platform.libc_ver()[0] == "glibc" and bool(ctypes.CDLL(None).mallopt(M_ARENA_MAX, ARENAS))
