"""Choose the documents of the arms that a selection is compared with: random ones, and random ones of its lengths."""

import numpy as np
from numpy.typing import NDArray

BINS_PER_DOUBLING = 8
"""Documents whose lengths differ by less than 9% are of one length."""


def random_documents(lengths: NDArray[np.integer], tokens: int, seed: int) -> NDArray[np.int64]:
    """Return documents in random order, until they have as many tokens or are all: (k,).

    >>> random_documents(np.array([5, 5, 5, 5]), 10, seed=0).size
    2
    """
    order = np.random.default_rng(seed).permutation(len(lengths))
    return np.asarray(order[: int(np.searchsorted(np.cumsum(lengths[order]), tokens)) + 1], dtype=np.int64)


def documents_of_equal_lengths(
    lengths: NDArray[np.integer], wanted: NDArray[np.integer], seed: int
) -> NDArray[np.int64]:
    """Return random documents that are as long as others, in random order: (k,).

    The document of each wanted length is drawn without replacement from all within 9% of it. Where too few are left,
    those of the nearest smaller and then larger lengths take their place, so that fewer than wanted are returned only
    where there are no more documents.

    Parameters
    ----------
    lengths
        Tokens of every document that may be drawn, (n,).
    wanted
        Tokens of every document whose length is wanted, (k,).
    seed
        Seed of the draw.

    Examples
    --------
    >>> lengths = np.array([100, 900, 101, 3000, 99])
    >>> drawn = documents_of_equal_lengths(lengths, np.array([905, 98]), seed=0)
    >>> sorted((lengths[drawn] // 90).tolist())
    [1, 10]
    """
    random = np.random.default_rng(seed)
    order = random.permutation(len(lengths))
    bins, of_wanted = _bins(lengths), _bins(wanted)
    count = int(max(bins.max(initial=0), of_wanted.max(initial=0))) + 1
    free, need = np.bincount(bins, minlength=count), np.bincount(of_wanted, minlength=count)
    take, left = np.minimum(free, need), 0
    for direction in (range(count - 1, -1, -1), range(count)):
        for place in direction:
            left += need[place] - take[place] if direction.step < 0 else 0
            more = min(left, int(free[place] - take[place]))
            take[place] += more
            left -= more
    sorted_by_bin = order[np.argsort(bins[order], kind="stable")]
    rank = np.arange(len(order)) - np.repeat(np.cumsum(free) - free, free)
    drawn = sorted_by_bin[rank < np.repeat(take, free)]
    return np.asarray(random.permutation(drawn), dtype=np.int64)


def _bins(lengths: NDArray[np.integer]) -> NDArray[np.int64]:
    return np.asarray(np.round(BINS_PER_DOUBLING * np.log2(np.maximum(lengths, 1))), dtype=np.int64)
