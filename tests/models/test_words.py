"""Words and sentences are those that datatrove itself finds."""

import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fineweb_mask.models import words as own

pytest.importorskip("datatrove")
PAGES = 8


@pytest.fixture(scope="module")
def tokenizer():
    """One of datatrove's that nothing of this package has changed."""
    from datatrove.utils.word_tokenizers import SpaCyTokenizer

    return SpaCyTokenizer("en")


@pytest.fixture(scope="module")
def remembered(tokenizer):
    return own.RememberedWords(tokenizer)


def test_real_pages_have_the_words_and_sentences_that_spacy_finds(tokenizer, remembered, real_data):
    texts = pq.read_table(real_data / "web_mix.parquet", columns=["text"])["text"].to_pylist()
    for text in texts[:: len(texts) // PAGES]:
        assert remembered.word_tokenize(text) == tokenizer.word_tokenize(text)
        for part in (text, *text.splitlines()[:5]):
            assert remembered.span_tokenize(part) == tokenizer.span_tokenize(part)


@given(st.text(alphabet=st.sampled_from("aBé1 \t\n\u00a0\u2009.!?。…,;:-()'\"$%@/🎉"), max_size=60))
@example("")
@example(" ")
@example("  One.  Two!\n\nThree? ")
@example("can't a.m. :-) U.S.A. e.g. http://x.org/?a=1 10km $5.00")
def test_any_text_is_split_alike(tokenizer, remembered, text):
    assert remembered.word_tokenize(text) == tokenizer.word_tokenize(text)
    assert remembered.span_tokenize(text) == tokenizer.span_tokenize(text)


def test_words_that_end_in_a_mark_are_split_alike(tokenizer, remembered):
    """spaCy's own exceptions above all: "wed." is "we" and "d.", as "d." is one."""
    rules = [rule for rule in tokenizer.tokenizer.tokenizer.rules if rule.isalpha()]
    for word in ("cat", "CAT", "catS", "d", "D", "Mr", "US", "caté", "IDs", *rules[::9]):
        marked = [word, *(word + mark for mark in (*own.ENDS, ".", ".,", "'"))]
        for one in marked:
            assert remembered.word_tokenize(one) == tokenizer.word_tokenize(one)
        text = " ".join(marked)
        assert remembered.span_tokenize(text) == tokenizer.span_tokenize(text)


def test_what_is_remembered_has_an_end(tokenizer, monkeypatch):
    monkeypatch.setattr(own, "MOST_REMEMBERED", 3)
    words = own.RememberedWords(tokenizer)
    for text in ("one two three four", "five six. Seven", "one. Two. Three. Four. Five"):
        assert words.word_tokenize(text) == tokenizer.word_tokenize(text)
        assert words.span_tokenize(text) == tokenizer.span_tokenize(text)
    assert len(words._parts) <= 8
    assert len(words._words) <= 16
