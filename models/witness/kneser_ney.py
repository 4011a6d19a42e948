"""Train a language model of n-grams with interpolated Kneser-Ney smoothing, and score texts with it.

Source: Chen and Goodman 1998, "An empirical study of smoothing techniques for language modeling" (TR-10-98), section
2.7, with one discount for each order, n1 / (n1 + 2 n2), as Ney, Essen and Kneser 1994 estimate it. Lower orders count
in how many contexts an n-gram occurs; at the start of a document, where nothing is before it, every occurrence counts.
Unigrams are interpolated with equal probabilities for the whole vocabulary, so that nothing is impossible.

The n-grams are a tree: an n-gram's node is found by the node of its first n - 1 tokens and its last token, one integer,
and the nodes of an order are sorted. All counts are integers, so that the result depends on no order of sums.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

ORDER = 5
NOWHERE = -1
"""Node of an n-gram that is not in the training text, or would reach over the start of a document."""


class _Order(NamedTuple):
    """All m n-grams of one order; they follow the c contexts that are one token shorter."""

    keys: NDArray[np.int64]  # (m,), ascending: node of the context * vocabulary + last token
    counts: NDArray[np.int32]  # (m,)
    totals: NDArray[np.int64]  # (c,): sum of the counts after each context
    followers: NDArray[np.int32]  # (c,): number of n-grams after each context
    discount: float

    def find(self, keys: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the node of each key, `NOWHERE` for one that is not there."""
        at = np.searchsorted(self.keys, keys)
        at[at == len(self.keys)] = 0
        at[self.keys[at] != keys] = NOWHERE
        return at


class KneserNey:
    """A language model of n-grams.

    Parameters
    ----------
    ids
        Token ids of all documents one after the other, (tokens,), each below `vocabulary`.
    ends
        Where each document ends in `ids`, (documents,), ascending.
    vocabulary
        Number of different tokens.
    order
        Length of the longest n-grams, in tokens.

    Examples
    --------
    >>> model = KneserNey(np.array([0, 1, 2, 0, 1, 2]), np.array([3, 6]), vocabulary=3, order=2)
    >>> model.log2_probabilities(np.array([0, 1]), np.array([2])).round(2).tolist()
    [-1.0, -0.3]
    """

    def __init__(
        self, ids: NDArray[np.integer], ends: NDArray[np.integer], *, vocabulary: int, order: int = ORDER
    ) -> None:
        self.vocabulary = vocabulary
        self._orders: list[_Order] = []
        positions = _positions(ends, len(ids))
        nodes, contexts = np.empty(0, dtype=np.int64), 1
        last: tuple[NDArray[np.int64], int] | None = None  # keys of the order before, and the number of its contexts
        for n in range(1, order + 1):
            before = _contexts(nodes, positions, n)
            inside = np.flatnonzero(before >= 0)
            keys, own, counts = np.unique(
                before[inside] * vocabulary + ids[inside], return_inverse=True, return_counts=True
            )
            if last is not None:
                some = np.empty(len(keys), dtype=np.int64)  # a place of each
                some[own] = inside
                shorter = np.bincount(nodes[some], minlength=contexts)
                shorter += np.bincount(nodes[positions == n - 2], minlength=contexts)
                self._orders.append(_order(last[0], shorter, last[1], vocabulary))
            nodes, last, contexts = np.full(len(ids), NOWHERE, dtype=np.int64), (keys, contexts), len(keys)
            nodes[inside] = own
        if last is not None:
            self._orders.append(_order(last[0], counts, last[1], vocabulary))

    def log2_probabilities(self, ids: NDArray[np.integer], ends: NDArray[np.integer]) -> NDArray[np.float64]:
        """Return the log2 probability of every token after the tokens before it in its document, (tokens,) float64."""
        positions = _positions(ends, len(ids))
        probability = np.full(len(ids), 1 / self.vocabulary)
        nodes = np.zeros(len(ids), dtype=np.int64)
        for n, order in enumerate(self._orders, start=1):
            context = _contexts(nodes, positions, n)
            known = np.flatnonzero(context >= 0)
            known = known[order.totals[context[known]] > 0]
            of_known, nodes = context[known], np.full(len(ids), NOWHERE, dtype=np.int64)
            found = order.find(of_known * self.vocabulary + ids[known])
            nodes[known] = found
            counts = np.where(found >= 0, order.counts[found], 0)
            total = order.totals[of_known]
            own = np.maximum(counts - order.discount, 0) / total
            probability[known] = own + order.discount * order.followers[of_known] / total * probability[known]
        return np.asarray(np.log2(probability), dtype=np.float64)


def _positions(ends: NDArray[np.integer], tokens: int) -> NDArray[np.int64]:
    """Return the place of every token in its document, (tokens,)."""
    lengths = np.diff(ends, prepend=0)
    return np.arange(tokens) - np.repeat(ends - lengths, lengths)


def _contexts(nodes: NDArray[np.int64], positions: NDArray[np.int64], n: int) -> NDArray[np.int64]:
    """Return the node of the n - 1 tokens before every token, from the nodes of those that end with each, (tokens,)."""
    if n == 1:
        return np.zeros(len(positions), dtype=np.int64)
    context = np.full(len(positions), NOWHERE, dtype=np.int64)
    context[1:] = np.where(positions[1:] >= n - 1, nodes[:-1], NOWHERE)
    return context


def _order(keys: NDArray[np.int64], counts: NDArray[np.int64], contexts: int, vocabulary: int) -> _Order:
    context = keys // vocabulary
    totals = np.zeros(contexts, dtype=np.int64)
    np.add.at(totals, context, counts)
    once, twice = int((counts == 1).sum()), int((counts == 2).sum())
    discount = once / (once + 2 * twice) if once else 0.5
    followers = np.bincount(context, minlength=contexts).astype(np.int32)
    return _Order(keys, counts.astype(np.int32), totals, followers, discount)
