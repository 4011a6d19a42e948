"""Hash the runs of words of texts, and sketch texts by MinHash, so that near-duplicates share a band of signatures.

As FineWeb deduplicates (arXiv 2406.17557, and `MinhashDedupSignature` of https://github.com/huggingface/datatrove):
a text is lower-cased, without accents and punctuation, every number is 0, and it is the set of its runs of five words,
its shingles. A signature has 14 bands of 8 hashes. Two texts of Jaccard similarity s share a band with a probability of
1 - (1 - s^8)^14: 0.92 at 0.8, 0.56 at 0.7. Whether they are alike is then measured by their shingles themselves.
Characters of scripts that are written without spaces count as words.
"""

import hashlib
from typing import TYPE_CHECKING, NamedTuple, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from fineweb_mask.models.dedup.ngrams import MULTIPLIER, run_hashes
from fineweb_mask.models.errors import SettingsError

if TYPE_CHECKING:
    from types import ModuleType


RENSA_ALGORITHM = 2
"""Version of the signatures of the package `rensa`; another one makes other signatures."""

SEED = 1
"""Of the hashes: datatrove's own."""
WORDS = 5
"""Of a shingle."""
UNSPACED = r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}\p{Tibetan}]"
MIXERS = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))  # from splitmix64 (Steele et al. 2014)


NEXT_BANDS = 4
"""Bands after one by which the texts that share it are put in order, so that the most similar ones are neighbours."""


HASHES = 112
"""Hashes of a text: FineWeb's 14 bands of 8."""


class Sketch(NamedTuple):
    """How texts are sketched."""

    bands: int = 14
    rows: int = 8  # hashes in a band

    @classmethod
    def for_threshold(cls, similarity: float) -> Self:
        """Return the longest bands, of at most 8 hashes, by which half of the pairs of this similarity are found.

        >>> Sketch.for_threshold(0.7), Sketch.for_threshold(0.5)
        (Sketch(bands=14, rows=8), Sketch(bands=22, rows=5))
        """
        rows = next((n for n in range(8, 1, -1) if (1 - similarity**n) ** (HASHES // n) <= 0.5), 1)
        return cls(bands=HASHES // rows, rows=rows)


class Bands(NamedTuple):
    """The bands of the signatures of n texts."""

    keys: NDArray[np.uint64]  # (m, bands); equal in the same place only if the band's hashes are
    following: NDArray[np.uint64]  # (m, bands); 16 bits of each of the next bands, the first the highest
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
            "ingest.near_dedup needs the package rensa: install fineweb-mask with the extra 'near-dedup'"
        ) from error
    if rensa.RMinHash.ALGORITHM_VERSION != RENSA_ALGORITHM:
        raise SettingsError(
            f"ingest.near_dedup: the installed rensa makes signatures of version {rensa.RMinHash.ALGORITHM_VERSION}, "
            f"which are not comparable: install one that makes those of version {RENSA_ALGORITHM}"
        )
    package: ModuleType = rensa
    return package


def band_keys(texts: pa.Array, sketch: Sketch) -> Bands:
    """Return the keys of the bands of n texts (Arrow strings).

    Raises
    ------
    SettingsError
        If the package `rensa` is not installed.
    """
    rensa = load_rensa()
    shingles, ends = shingle_hashes(texts)
    sizes = np.diff(ends, prepend=0)
    rows = sizes.nonzero()[0]
    offsets = np.concatenate([[0], ends[rows]]).astype(np.uint64)  # those without shingles take no room
    hashes = sketch.bands * sketch.rows
    if not len(rows):
        none = np.empty((0, sketch.bands), dtype=np.uint64)
        return Bands(none, none, rows)
    matrix = rensa.RMinHash.digest_matrix_from_flat_token_hashes(shingles, offsets, hashes, SEED)
    signatures = np.array(matrix.to_rows(), dtype=np.uint64).reshape(len(rows), sketch.bands, sketch.rows)
    keys = np.broadcast_to(np.arange(sketch.bands, dtype=np.uint64), signatures.shape[:2])
    for place in range(sketch.rows):
        keys = mix(keys * MULTIPLIER + signatures[:, :, place])
    following = np.zeros_like(keys)
    for step in range(1, NEXT_BANDS + 1):  # as a prefix tree of the signature would (LSH Forest, Bawa et al. 2005)
        following = (following << np.uint64(16)) | (np.roll(keys, -step, axis=1) >> np.uint64(48))
    return Bands(keys, following, rows)


def shingle_hashes(texts: pa.Array, *, numbers: bool = False) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Return the hashes of the runs of five words of n texts, and where those of each text end, (n,).

    Every number is the same, unless `numbers` is set.

    >>> shingles, ends = shingle_hashes(pa.array(["One two three four 5, six!", "one TWO, three four 6 six", "one"]))
    >>> ends.tolist(), bool((shingles[:2] == shingles[2:4]).all())
    ([2, 4, 4], True)
    """
    split = pc.split_pattern(plain_words(texts, numbers=numbers), " ")
    values = split.flatten().dictionary_encode()
    is_word = np.asarray(pc.not_equal(values.dictionary, "").to_numpy(zero_copy_only=False))
    of_words = np.fromiter(map(hash_of, values.dictionary.to_pylist()), np.uint64, len(values.dictionary))
    codes = values.indices.to_numpy()
    kept = is_word[codes]
    owners = np.repeat(np.arange(len(texts)), pc.list_value_length(split).to_numpy())[kept]
    found = run_hashes(of_words[codes[kept]], WORDS)
    first, last = owners[: len(found)], owners[WORDS - 1 :][: len(found)]
    is_of_one = first == last
    return mix(found[is_of_one]), np.cumsum(np.bincount(first[is_of_one], minlength=len(texts)))


def shingle_sets(texts: pa.Array) -> list[NDArray[np.uint64]]:
    """Return the hashes below 2**63 of the different runs of five words of each of n texts, ascending; numbers count.

    >>> [len(found) for found in shingle_sets(pa.array(["a a a a a a a", "1 2 3 4 5 6", "one"]))]
    [1, 2, 0]
    """
    hashes, ends = shingle_hashes(texts, numbers=True)
    return [np.unique(found) for found in np.split(hashes >> np.uint64(1), ends[:-1])]


def plain_words(texts: pa.Array, *, numbers: bool = False) -> pa.Array:
    """Return texts in lower case without accents and punctuation, with 0 for every number and spaces between words.

    With `numbers`, these are kept.

    >>> plain_words(pa.array(["Élan vital, 1,234.5 times"]))[0].as_py().split()
    ['elan', 'vital', '0', 'times']
    """
    plain = pc.utf8_normalize(pc.utf8_lower(texts), form="NFD")
    for pattern, replacement in (
        (r"\p{Mn}+", ""),
        *(() if numbers else ((r"\p{Nd}+([.,]\p{Nd}+)*", "0"),)),
        (UNSPACED, r" \0 "),
        (r"[^\p{L}\p{M}\p{N} ]+", " "),  # three times as fast as to replace the spaces, too
    ):
        plain = pc.replace_substring_regex(plain, pattern, replacement)
    return plain


def mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return well-mixed hashes of 64-bit numbers, as the end of splitmix64 does."""
    values = (values ^ (values >> np.uint64(30))) * MIXERS[0]
    values = (values ^ (values >> np.uint64(27))) * MIXERS[1]
    return np.asarray(values ^ (values >> np.uint64(31)), dtype=np.uint64)


def hash_of(word: str) -> int:
    """Return a hash of 64 bits."""
    return int.from_bytes(hashlib.blake2b(word.encode(), digest_size=8).digest())
