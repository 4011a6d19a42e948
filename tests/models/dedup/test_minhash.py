"""Signatures of texts, compared with the sets of shingles that they stand for."""

import sys

import numpy as np
import pyarrow as pa
import pytest

from fineweb_mask.models.dedup import minhash
from fineweb_mask.models.dedup.minhash import band_keys, first_of_clusters, plain_words, shingle_hashes
from fineweb_mask.models.errors import SettingsError
from fineweb_mask.models.settings.source import MinHashSettings

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
    given = ["  Crème—brûlée: 12,000.50 (twelve)!\n\tEND. ", "東京 は 3 月", "", "हिन्दी में"]
    assert plain_words(pa.array(given)).to_pylist()[:3] == [
        "creme brulee 0 twelve end",
        "東  京  は 0  月".replace("  ", " "),
        "",
    ]


def test_hashes_are_of_the_runs_of_words_of_each_text():
    texts = [*texts_of([3]), "too few words", "", "one two three four five"]
    hashes, ends = shingle_hashes(pa.array(texts), 5)
    parts = np.split(hashes, ends[:-1])
    assert [len(part) for part in parts] == [296, 296, 0, 0, 1]
    for text, part in zip(texts, parts, strict=True):
        assert len(set(part.tolist())) == len(shingles(text))
    both = set(parts[0].tolist()) & set(parts[1].tolist())
    assert len(both) == len(shingles(texts[0]) & shingles(texts[1]))


def test_hashes_do_not_depend_on_what_else_is_in_the_batch():
    texts = texts_of([1, 2, 3])
    together, ends = shingle_hashes(pa.array(texts), 5)
    for text, part in zip(texts, np.split(together, ends[:-1]), strict=True):
        np.testing.assert_array_equal(shingle_hashes(pa.array([text]), 5)[0], part)


def test_the_share_of_equal_bands_follows_the_similarity():
    """A band of 4 hashes is equal with a probability of s^4."""
    pytest.importorskip("rensa")
    settings = MinHashSettings(bands=200, rows=4)
    for changed in (2, 8, 20):
        equal, expected = [], []
        for _ in range(20):
            pair = texts_of([changed])
            keys = band_keys(pa.array(pair), settings).keys
            equal.append((keys[0] == keys[1]).mean())
            one, other = map(shingles, pair)
            expected.append((len(one & other) / len(one | other)) ** 4)
        assert np.mean(equal) == pytest.approx(np.mean(expected), abs=0.03)


def test_keys_of_different_bands_and_texts_differ_and_seeds_matter():
    pytest.importorskip("rensa")
    texts = pa.array([" ".join(RANDOM.choice(WORDS, 80)) for _ in range(200)])
    found = band_keys(texts, MinHashSettings())
    assert found.keys.shape == (200, 14)
    assert len(np.unique(found.keys)) == 200 * 14
    again = band_keys(texts, MinHashSettings(), seed=2)
    assert not np.isin(found.keys, again.keys).any()


def test_texts_of_few_words_have_no_bands():
    pytest.importorskip("rensa")
    found = band_keys(pa.array(["a b c d", "a b c d e", "", "a b c d e f"]), MinHashSettings())
    assert found.rows.tolist() == [1, 3]
    assert band_keys(pa.array(["", "a"]), MinHashSettings()).keys.shape == (0, 14)
    np.testing.assert_array_equal(found.keys[0], band_keys(pa.array(["a b c d e"]), MinHashSettings()).keys[0])


def test_without_rensa_the_command_that_installs_it_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "rensa", None)
    with pytest.raises(SettingsError, match=r"needs the package rensa: install .* the extra 'near-dedup'"):
        band_keys(pa.array(["a b c d e"]), MinHashSettings())


def test_signatures_of_another_version_are_refused(monkeypatch):
    pytest.importorskip("rensa")
    monkeypatch.setattr(minhash, "RENSA_ALGORITHM", 1)
    with pytest.raises(SettingsError, match="makes signatures of version 2"):
        minhash.load_rensa()


def expected(pairs):
    neighbours = {}
    for one, other in pairs:
        neighbours.setdefault(one, set()).add(other)
        neighbours.setdefault(other, set()).add(one)
    found = {}
    for start in sorted(neighbours):
        if start in found:
            continue
        waiting = [start]
        while waiting:
            document = waiting.pop()
            if document not in found:
                found[document] = start
                waiting += neighbours[document]
    return {document: kept for document, kept in found.items() if document != kept}


@pytest.mark.parametrize("seed", range(5))
def test_of_each_cluster_the_first_is_kept(seed):
    random = np.random.default_rng(seed)
    pairs = random.integers(0, 2**40, 300, dtype=np.uint64)[random.integers(0, 300, (200, 2))]
    dropped, kept = first_of_clusters(pairs[:, 0], pairs[:, 1])
    assert dict(zip(dropped.tolist(), kept.tolist(), strict=True)) == expected(pairs.tolist())
    assert dropped.tolist() == sorted(dropped.tolist())


def test_no_pairs_drop_nothing():
    none = np.empty(0, dtype=np.uint64)
    assert [len(found) for found in first_of_clusters(none, none)] == [0, 0]
