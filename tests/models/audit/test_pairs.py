import random
import time

import pytest

from fineweb_mask.models.audit.pairs import LEFT_OUT, contained, marked, similarity
from fineweb_mask.models.audit.planting import edited, prose
from tests.corpora import jaccard, mixed


def test_similarities_are_those_of_a_plain_count():
    corpus = mixed(each=10, copies=2)
    pairs = [(corpus.texts[one], corpus.texts[other]) for one, other in corpus.copies]
    found = [similarity(*pair, 5) for pair in pairs]
    assert found == pytest.approx([jaccard(*pair) for pair in pairs], abs=1e-9)


@pytest.mark.parametrize(
    ("one", "other", "expected"), [("", "", 1), ("too few", "too few", 1), ("too few", "too many", 0), ("", "a b c", 0)]
)
def test_texts_without_runs_are_alike_only_if_equal(one, other, expected):
    assert similarity(one, other, 5) == expected


@pytest.mark.parametrize(("item", "share"), [("Is it one two?", 1), ("one two nine", 0), ("...", 0), ("", 0)])
def test_an_item_is_contained_by_its_runs_and_a_short_one_as_a_whole(item, share):
    assert contained(item, "He asked: is it, one two! Or not so.") == share


def test_only_words_that_differ_are_marked_and_no_word_is_lost():
    text = prose(random.Random(1), 30)
    copy = edited(text, 0.1, random.Random(2))
    left, right = marked(text, copy)
    assert "".join(left).split() == text.split()
    assert "".join(right).split() == copy.split()
    assert left[::2] == right[::2]
    changed = [old for old, new in zip(text.split(), copy.split(), strict=True) if old != new]
    assert "".join(left[1::2]).split() == changed


def test_long_equal_parts_are_left_out_and_differences_stay():
    words = [f"w{number}" for number in range(400)]
    left, right = marked(" ".join(words), " ".join([*words[:200], "other", *words[201:]]))
    assert right[1] == "other "
    assert LEFT_OUT in left[0]
    assert len("".join(left)) < 400
    equal, _ = marked(" ".join(words), " ".join(words))
    assert len(equal) == 1
    assert equal[0].endswith(LEFT_OUT)


def test_sides_without_common_words_words_without_an_end_and_long_texts_are_no_error():
    assert marked("a b", "c") == (["", "a b"], ["", "c"])
    assert marked("", "") == ([""], [""])
    assert len("".join(marked("x" * 10**6, "y " * 10**6)[0])) < 200
    dice, started = random.Random(3), time.monotonic()
    marked(prose(dice, 5_000), prose(dice, 5_000))
    assert time.monotonic() - started < 20
