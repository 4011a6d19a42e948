"""Weigh texts by how much likelier their n-grams are in target texts than in the corpus: DSIR.

Source: Xie et al. 2023, "Data selection for language models via importance resampling" (arXiv 2302.03169), and its
published code, p-lambda/dsir: unigrams and bigrams of lower-case words and punctuation, hashed to 10,000 buckets.
"""

import hashlib
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import chain, pairwise

import numpy as np
from numpy.typing import NDArray

BUCKETS = 10_000
"""Hash buckets of n-grams."""
TOKEN = re.compile(r"\w+|[^\w\s]+")
"""A word, or several punctuation marks: the tokens of NLTK's WordPunctTokenizer."""
SMALLEST = 1e-8
"""What is added to a probability before its log is taken."""
REMEMBERED = 1 << 20
"""N-grams whose buckets are kept in memory."""


def bucket_of(ngram: str) -> int:
    """Return the bucket of an n-gram, its words joined by spaces.

    >>> bucket_of("alice"), bucket_of("alice went")
    (6720, 114)
    """
    return int(hashlib.sha256(ngram.encode("utf-8")).hexdigest(), 16) % BUCKETS


class NgramBuckets:
    """Finds the buckets of the n-grams of texts, and remembers those of frequent ones."""

    def __init__(self) -> None:
        self._bucket_of = lru_cache(REMEMBERED)(bucket_of)

    def of(self, text: str) -> tuple[NDArray[np.int64], int]:
        """Return the bucket of every unigram and bigram of a text, and how many unigrams it has.

        >>> found, tokens = NgramBuckets().of("Alice went to the store")
        >>> len(found), tokens
        (9, 5)
        """
        tokens = TOKEN.findall(text.lower())
        ngrams = chain(tokens, map(" ".join, pairwise(tokens)))
        return np.fromiter(map(self._bucket_of, ngrams), dtype=np.int64), len(tokens)

    def counts(self, texts: Iterable[str]) -> NDArray[np.int64]:
        """Count the n-grams of texts in every bucket: (buckets,)."""
        total = np.zeros(BUCKETS, dtype=np.int64)
        for text in texts:
            total += np.bincount(self.of(text)[0], minlength=BUCKETS)
        return total

    def log_weights(
        self, texts: Sequence[str], ratios: NDArray[np.float64], min_tokens: int = 0
    ) -> NDArray[np.float32]:
        """Return the log weight of each text by `log_ratios`, (buckets,): (n,).

        It is a sum over n-grams, so long documents have larger ones, of either sign. A document with fewer words and
        punctuation than `min_tokens` gets minus infinity.

        >>> buckets = NgramBuckets()
        >>> ratios = log_ratios(buckets.counts(["good words"]), buckets.counts(["good words", "bad words"]))
        >>> good, bad = buckets.log_weights(["good words", "bad words"], ratios)
        >>> bool(good > 0 > bad)
        True
        """
        weights = np.empty(len(texts), dtype=np.float32)
        for place, text in enumerate(texts):
            found, tokens = self.of(text)
            weights[place] = ratios[found].sum() if tokens >= min_tokens else -np.inf
        return weights


def log_ratios(target: NDArray[np.int64], corpus: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the log of how much likelier each bucket is in the target texts, for counts (buckets,): (buckets,)."""
    shares = (counts / max(1, int(counts.sum())) for counts in (target, corpus))
    in_target, in_corpus = (np.log(share + SMALLEST) for share in shares)
    ratios: NDArray[np.float64] = in_target - in_corpus
    return ratios
