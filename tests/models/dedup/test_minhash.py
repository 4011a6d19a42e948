"""Signatures of texts, compared with the sets of shingles that they stand for."""

import sys

import numpy as np
import pyarrow as pa
import pytest

from fineweb_mask.models.dedup import minhash
from fineweb_mask.models.dedup.minhash import Sketch, band_keys, plain_words, shingle_hashes, shingle_sets
from fineweb_mask.models.errors import SettingsError

RANDOM = np.random.default_rng(0)
WORDS = [f"w{chr(97 + place % 26)}{chr(97 + place // 26)}" for place in range(500)]


def texts_of(changed, words=300):
    """A text, and copies of it with so many words replaced."""
    base = RANDOM.choice(WORDS, words)
    found = [" ".join(base)]
    for count in changed:
        copy = base.copy()
        copy[RANDOM.choice(words, count, replace=False)] = "other"
        found.append(" ".join(copy))
    return found


def shingles(text, words=5):
    split = text.split()
    return {tuple(split[place : place + words]) for place in range(len(split) - words + 1)}


def test_words_are_compared_without_case_accents_punctuation_and_numbers():
    given = pa.array(["  Crème—brûlée: 12,000.50 (twelve)!\n\tEND. ", "東京 は 3 月", "", "हिन्दी में"])
    found = [text.split() for text in plain_words(given).to_pylist()]
    assert found[:3] == [["creme", "brulee", "0", "twelve", "end"], ["東", "京", "は", "0", "月"], []]
    with_numbers = plain_words(given, numbers=True)[0].as_py().split()
    assert with_numbers == ["creme", "brulee", "12", "000", "50", "twelve", "end"]


def test_hashes_are_of_the_runs_of_words_of_each_text_and_in_sets_numbers_count():
    texts = [*texts_of([3, 20]), "Row 17: 3 of 4 parts", "Row 18: 3 of 5 parts", "too few words", ""]
    hashes, ends = shingle_hashes(pa.array(texts))
    parts, sets = np.split(hashes, ends[:-1]), shingle_sets(pa.array(texts))
    assert [len(part) for part in parts] == [296, 296, 296, 2, 2, 0, 0]
    for text, part, found in zip(texts, parts, sets, strict=True):
        np.testing.assert_array_equal(shingle_hashes(pa.array([text]))[0], part)  # whatever is beside it
        assert len(np.unique(part)) == len(found) == len(shingles(text))
        assert (np.diff(found.astype(np.int64)) > 0).all()  # below 2**63
    common = len(shingles(texts[0]) & shingles(texts[1]))
    assert len(np.intersect1d(parts[0], parts[1])) == len(np.intersect1d(sets[0], sets[1])) == common
    np.testing.assert_array_equal(parts[3], parts[4])
    assert not len(np.intersect1d(sets[3], sets[4]))


def test_the_share_of_equal_bands_follows_the_similarity():
    """A band of 4 hashes is equal with a probability of s^4."""
    pytest.importorskip("rensa")
    settings = Sketch(bands=200, rows=4)
    for changed in (2, 20):
        difference = 0
        for _ in range(15):
            one, other = texts_of([changed])
            keys = band_keys(pa.array([one, other]), settings).keys
            common, every = (len(of(shingles(one), shingles(other))) for of in (set.intersection, set.union))
            difference += (keys[0] == keys[1]).mean() - (common / every) ** 4
        assert difference / 15 == pytest.approx(0, abs=0.03)


def test_bands_differ_know_the_next_ones_and_texts_of_few_words_have_none():
    pytest.importorskip("rensa")
    found = band_keys(pa.array(["a b c d", "a b c d e", "", "a b c d e f"]), Sketch())
    assert found.rows.tolist() == [1, 3]
    assert len(np.unique(found.keys)) == 2 * 14
    bits = found.keys >> np.uint64(48)  # of the next bands
    expected = sum(np.roll(bits, -step, axis=1).astype(object) << (64 - 16 * step) for step in range(1, 5))
    assert (found.following.astype(object) == expected).all()
    assert band_keys(pa.array(["", "a"]), Sketch()).keys.shape == (0, 14)
    np.testing.assert_array_equal(found.keys[0], band_keys(pa.array(["a b c d e"]), Sketch()).keys[0])


def test_rensa_that_is_missing_or_makes_other_signatures_is_an_error_with_a_remedy(monkeypatch):
    pytest.importorskip("rensa")
    monkeypatch.setattr(minhash, "RENSA_ALGORITHM", 1)
    with pytest.raises(SettingsError, match="makes signatures of version 2"):
        band_keys(pa.array(["a b c d e"]), Sketch())
    monkeypatch.setitem(sys.modules, "rensa", None)
    with pytest.raises(SettingsError, match=r"needs the package rensa: install .* the extra 'near-dedup'"):
        band_keys(pa.array(["a b c d e"]), Sketch())


@pytest.mark.parametrize("similarity", [0.01, 0.5, 0.8, 1.0])
def test_half_of_the_pairs_at_the_threshold_are_found_with_no_more_hashes(similarity):
    sketch = Sketch.for_threshold(similarity)
    assert sketch.bands * sketch.rows <= 112
    found = 1 - (1 - similarity**sketch.rows) ** sketch.bands
    assert found >= 0.5
    assert sketch.rows == 8 or 1 - (1 - similarity ** (sketch.rows + 1)) ** (112 // (sketch.rows + 1)) < 0.5
