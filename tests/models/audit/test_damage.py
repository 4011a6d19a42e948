import random

import pytest

from fineweb_mask.models.audit.damage import BOILERPLATE, damaged

PAGE = "\n".join(f"Line {number} of the page says {number * 7} things." for number in range(12))


@pytest.mark.parametrize("text", [PAGE, PAGE.replace("\n", " ")])
def test_every_damage_leaves_the_words_and_loses_their_order_or_half_of_them(text):
    found = damaged(text, random.Random(3))
    assert list(found) == ["lines shuffled", "boilerplate", "cut off", "words shuffled"]
    for kind in ("lines shuffled", "words shuffled"):
        assert sorted(found[kind].split()) == sorted(text.split())
        assert found[kind].split() != text.split()
    assert "Line 4 of the page says 28 things." in found["lines shuffled"]
    assert found["boilerplate"].count(BOILERPLATE) == 4
    assert text in found["boilerplate"]
    assert text.startswith(found["cut off"])
    assert len(found["cut off"]) == pytest.approx(len(text) / 2, abs=5)


def test_it_is_the_same_for_the_same_seed_and_a_text_of_one_word_is_no_error():
    assert damaged(PAGE, random.Random(1)) == damaged(PAGE, random.Random(1)) != damaged(PAGE, random.Random(2))
    assert damaged("word", random.Random(1))["cut off"] == "w"
    assert damaged("", random.Random(1))["words shuffled"] == ""
