"""Sketch texts by MinHash, so that near-duplicates share a band of their signatures, and join their pairs to clusters.

As FineWeb deduplicates (arXiv 2406.17557, and `MinhashDedupSignature` of https://github.com/huggingface/datatrove):
a text is lower-cased, without accents and punctuation, every number is 0, and it is the set of its runs of five words,
its shingles. A signature has 14 bands of 8 hashes. Two texts of Jaccard similarity s share a band with a probability of
1 - (1 - s^8)^14: 0.92 at 0.8, 0.56 at 0.7. Characters of scripts that are written without spaces count as words.
"""

import hashlib
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from fineweb_mask.models.errors import SettingsError

if TYPE_CHECKING:
    from types import ModuleType

    from fineweb_mask.models.settings.source import MinHashSettings


RENSA_ALGORITHM = 2
"""Version of the signatures of the package `rensa`; another one makes other signatures."""

SEED = 1
"""Of the hashes: datatrove's own."""
UNSPACED = r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}\p{Tibetan}]"
MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)  # from Knuth's multiplicative hash, for 64 bits
MIXERS = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))  # from splitmix64 (Steele et al. 2014)


class Bands(NamedTuple):
    """The bands of the signatures of n texts."""

    keys: NDArray[np.uint64]  # (m, bands); equal in the same place only if the band's hashes are
    rows: NDArray[np.int64]  # (m,) places of the texts, ascending; those with too few words are left out


def load_rensa() -> "ModuleType":
    """Return the package that makes signatures.

    Raises
    ------
    SettingsError
        If it is not installed, or makes other signatures than this version knows.
    """
    try:
        import rensa
    except ImportError as error:
        raise SettingsError(
            "ingest.near_dedup: minhash needs the package rensa: install fineweb-mask with the extra 'near-dedup'"
        ) from error
    if rensa.RMinHash.ALGORITHM_VERSION != RENSA_ALGORITHM:
        raise SettingsError(
            f"ingest.near_dedup: the installed rensa makes signatures of version {rensa.RMinHash.ALGORITHM_VERSION}, "
            f"which are not comparable: install one that makes those of version {RENSA_ALGORITHM}"
        )
    package: ModuleType = rensa
    return package


def band_keys(texts: pa.Array, settings: "MinHashSettings", seed: int = SEED) -> Bands:
    """Return the keys of the bands of n texts (Arrow strings), by hashes of a seed.

    Raises
    ------
    SettingsError
        If the package `rensa` is not installed.
    """
    rensa = load_rensa()
    shingles, ends = shingle_hashes(texts, settings.words)
    sizes = np.diff(ends, prepend=0)
    rows = sizes.nonzero()[0]
    offsets = np.concatenate([[0], ends[rows]]).astype(np.uint64)  # those without shingles take no room
    hashes = settings.bands * settings.rows
    if not len(rows):
        return Bands(np.empty((0, settings.bands), dtype=np.uint64), rows)
    matrix = rensa.RMinHash.digest_matrix_from_flat_token_hashes(shingles, offsets, hashes, seed)
    signatures = np.array(matrix.to_rows(), dtype=np.uint64).reshape(len(rows), settings.bands, settings.rows)
    keys = np.broadcast_to(np.arange(settings.bands, dtype=np.uint64), signatures.shape[:2])
    for place in range(settings.rows):
        keys = mix(keys * MULTIPLIER + signatures[:, :, place])
    return Bands(keys, rows)


def shingle_hashes(texts: pa.Array, words: int) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Return the hashes of the runs of so many words of n texts, and where those of each text end, (n,).

    >>> shingles, ends = shingle_hashes(pa.array(["One two three!", "one TWO, three", "one"]), words=2)
    >>> ends.tolist(), bool((shingles[:2] == shingles[2:4]).all())
    ([2, 4, 4], True)
    """
    split = pc.split_pattern(plain_words(texts), " ")
    values = split.flatten().dictionary_encode()
    lengths = pc.list_value_length(split).to_numpy().astype(np.int64)
    is_word = np.asarray(pc.not_equal(values.dictionary, "").to_numpy(zero_copy_only=False))
    of_words = np.fromiter(map(_word_hash, values.dictionary.to_pylist()), np.uint64, len(values.dictionary))
    codes = values.indices.to_numpy()
    kept = is_word[codes]
    owners = np.repeat(np.arange(len(texts)), lengths)[kept]
    hashes = of_words[codes[kept]]
    lengths = np.bincount(owners, minlength=len(texts))
    counts = np.maximum(lengths - words + 1, 0)
    starts = np.cumsum(lengths) - lengths
    first = np.repeat(starts, counts) + np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    found = np.zeros(len(first), dtype=np.uint64)
    for place in range(words):
        found = mix(found * MULTIPLIER + hashes[first + place])
    return found, np.cumsum(counts)


def plain_words(texts: pa.Array) -> pa.Array:
    """Return texts in lower case without accents and punctuation, with 0 for every number and spaces between words.

    >>> plain_words(pa.array(["Élan vital, 1,234.5 times"]))[0].as_py()
    'elan vital 0 times'
    """
    plain = pc.utf8_normalize(pc.utf8_lower(texts), form="NFD")
    for pattern, replacement in (
        (r"\p{Mn}+", ""),
        (r"\p{Nd}+([.,]\p{Nd}+)*", "0"),
        (UNSPACED, r" \0 "),
        (r"[^\p{L}\p{M}\p{N}]+", " "),
    ):
        plain = pc.replace_substring_regex(plain, pattern, replacement)
    return pc.utf8_trim_whitespace(plain)


def mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return well-mixed hashes of 64-bit numbers, as the end of splitmix64 does."""
    values = (values ^ (values >> np.uint64(30))) * MIXERS[0]
    values = (values ^ (values >> np.uint64(27))) * MIXERS[1]
    return np.asarray(values ^ (values >> np.uint64(31)), dtype=np.uint64)


def _word_hash(word: str) -> int:
    return int.from_bytes(hashlib.blake2b(word.encode(), digest_size=8).digest())


def first_of_clusters(
    documents: NDArray[np.uint64], others: NDArray[np.uint64]
) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Return the documents that are dropped, ascending, and the first document of the cluster of each, (d,) both.

    Parameters
    ----------
    documents, others
        Pairs of near-duplicates, (m,): numbers in the order in which documents are to be kept. Documents that pairs
        connect, through others, too, are one cluster.

    Examples
    --------
    >>> dropped, kept = first_of_clusters(np.array([7, 9, 5], dtype=np.uint64), np.array([5, 7, 2], dtype=np.uint64))
    >>> dropped.tolist(), kept.tolist()
    ([5, 7, 9], [2, 2, 2])
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    found, places = np.unique(np.concatenate([documents, others]), return_inverse=True)
    left, right = np.split(places.ravel(), 2)
    graph = coo_array((np.ones(len(left), dtype=bool), (left, right)), shape=(len(found), len(found)))
    _, clusters = connected_components(graph, directed=False)
    _, first = np.unique(clusters, return_index=True)
    kept = found[first[clusters]]
    return found[kept != found], kept[kept != found]
