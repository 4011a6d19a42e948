"""Find documents that are too much like held-out ones by a shared run of tokens."""

import numpy as np
from numpy.typing import NDArray

from fineweb_mask.models.dedup.ngrams import COMMON, run_hashes
from fineweb_mask.models.witness.tokens import PackedTokens

RUN = 20
"""Tokens of a shared run: about 13 words, which have hardly ever been written twice independently."""
FIRST_BITS = 24  # of a hash, which rule out nearly all runs before they are searched


def sharing_documents(pool: PackedTokens, held_out: PackedTokens, run: int = RUN) -> NDArray[np.bool_]:
    """Return which documents of the pool share a run of tokens with a held-out one: (documents,) bool.

    A run that more than 10 documents of the pool have is a common phrase and does not count.

    >>> pool = PackedTokens(np.array([1, 2, 3, 4, 9, 9]), np.array([4, 6]))
    >>> sharing_documents(pool, PackedTokens(np.array([2, 3, 4]), np.array([3])), run=3).tolist()
    [True, False]
    """
    runs, document = _runs(pool, run)
    known = np.unique(_runs(held_out, run)[0])
    if not len(known):
        return np.zeros(len(pool.ends), dtype=bool)
    may_be_known = np.zeros(1 << FIRST_BITS, dtype=bool)
    may_be_known[known >> np.uint64(64 - FIRST_BITS)] = True
    near = np.flatnonzero(may_be_known[runs >> np.uint64(64 - FIRST_BITS)])
    runs, document = runs[near], document[near]
    at = np.minimum(np.searchsorted(known, runs), len(known) - 1)
    shared = np.flatnonzero(known[at] == runs)
    pairs = np.unique(at[shared] * np.int64(len(pool.ends)) + document[shared])  # each run once for a document
    of_run, of_document = pairs // len(pool.ends), pairs % len(pool.ends)
    rare = np.bincount(of_run, minlength=len(known)) <= COMMON
    found = np.zeros(len(pool.ends), dtype=bool)
    found[of_document[rare[of_run]]] = True
    return found


def _runs(packed: PackedTokens, run: int) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Return the hash of every run inside a document, (m,), and the document, (m,)."""
    hashes = run_hashes(packed.ids, run)
    document = np.repeat(np.arange(len(packed.ends)), packed.lengths)
    inside = document[: len(hashes)] == document[run - 1 : run - 1 + len(hashes)]
    return hashes[inside], document[: len(hashes)][inside]
