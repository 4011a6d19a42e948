"""Lines for fastText: equal to the plain-Python reference, word by word."""

import re

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fineweb_mask.models.quality.fasttext.lines import fasttext_lines
from fineweb_mask.models.quality.fasttext.scorer import one_line

FASTTEXT_SPACE = re.compile(rb"[ \n\r\t\v\f\0]+")  # Dictionary::readWord
PYTHON_SPACE = [chr(code) for code in range(0x110000) if chr(code).isspace()]
PIECES = st.one_of(
    st.text(max_size=8),
    st.sampled_from([*PYTHON_SPACE, "</s>", "</S>", "</s", "/s>", "<", "\u0130", "\u03a3", "\u200b", "\u3001", "\0"]),
)
TEXTS = st.lists(st.lists(PIECES, max_size=8).map("".join), max_size=6)


def words(line):
    return [word for word in FASTTEXT_SPACE.split(line) if word]


def check(texts, lowercase):
    lines = fasttext_lines(pa.array(texts, pa.string()), lowercase)
    assert len(lines) == len(texts)
    for text, line in zip(texts, lines, strict=True):
        assert line.endswith(b"\n")
        assert line.count(b"\n") == 1
        assert words(line) == words(one_line(text, lowercase).encode())


@given(texts=TEXTS, lowercase=st.booleans())
def test_lines_hold_the_words_of_the_reference(texts, lowercase):
    check(texts, lowercase)


def test_every_space_of_python_separates_words():
    check([f"a{space}b</s>c" for space in PYTHON_SPACE], False)
    assert all(words(line) == [b"a", b"b"] for line in fasttext_lines(pa.array(f"a{s}b" for s in PYTHON_SPACE), 0))


def test_nothing_joins_across_texts():
    check(["a<", "/s>b", "\u00e2", "", "c"], False)


def test_the_column_itself_is_left_as_it_is():
    texts = pa.array(["a\nb", "c\u00a0d</s>"])
    fasttext_lines(texts, lowercase=False)
    assert texts.to_pylist() == ["a\nb", "c\u00a0d</s>"]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view()], ids=str)
def test_slices_of_every_kind_of_string(kind):
    texts = pa.array(["x", "a\nb", "\u00e9\u2003f", "y"], kind)
    assert fasttext_lines(texts.slice(1, 2), lowercase=False) == [b"a b\n", "\u00e9   f\n".encode()]


def test_texts_longer_than_a_chunk():
    check(["word\n" * 60_000, "\u2028" * 90_000 + "end</s>"], False)


def test_no_texts():
    assert fasttext_lines(pa.array([], pa.string()), lowercase=True) == []
