"""Hash runs of words or tokens, by which a text is recognised inside another one.

That n-grams of many documents say nothing is a rule of GPT-3's (https://arxiv.org/abs/2005.14165, appendix C).
"""

import numpy as np
from numpy.typing import NDArray

COMMON = 10
"""An n-gram that more documents of the corpus hold is a common phrase, and no sign of a copy."""
MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)


def run_hashes(values: NDArray[np.unsignedinteger], length: int) -> NDArray[np.uint64]:
    """Hash every `length` values in a row, (n,): (n - length + 1,) uint64, none if there are fewer."""
    count = max(0, len(values) - length + 1)
    hashes, hashed = np.zeros(count, dtype=np.uint64), 0
    parts, size, factor = values.astype(np.uint64) + np.uint64(1), 1, int(MULTIPLIER)
    while hashed < length:  # parts hash 1, 2, 4 ... values; the length in bits says of which it is made
        if length & size:
            hashes = hashes * np.uint64(factor) + parts[hashed : hashed + count]
            hashed += size
        parts = parts[:-size] * np.uint64(factor) + parts[size:]
        size, factor = 2 * size, factor * factor % 2**64
    return hashes ^ (hashes >> np.uint64(29))


def places(hashes: NDArray[np.uint64], known: NDArray[np.uint64]) -> NDArray[np.intp]:
    """Return the places of those hashes in `known`, which is ascending, that it holds: (k,) int."""
    if not len(known):
        return np.empty(0, dtype=np.intp)
    at = np.minimum(np.searchsorted(known, hashes), len(known) - 1)
    return np.asarray(at[known[at] == hashes], dtype=np.intp)
