"""Windows of long documents: each token once, the prompt and the special tokens in each window."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing

from fineweb_mask.models.embedding.transformer import WindowCutter, first_window
from fineweb_mask.models.errors import SettingsError
from fineweb_mask.models.forward.tokens import special_ids

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "passage", ":", *"abcdefghij"]


def make_tokenizer(template="[CLS] $A [SEP]"):
    tokenizer = Tokenizer(WordLevel({word: place for place, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.post_processor = TemplateProcessing(
        single=template, special_tokens=[(word, WORDS.index(word)) for word in ("[CLS]", "[SEP]")]
    )
    return tokenizer


def words(windows):
    return [" ".join(WORDS[token] for token in ids) for ids in windows.tokens.tolist()]


def test_a_document_is_cut_into_windows():
    windows = WindowCutter(make_tokenizer(), 6, "").cut(["a b c d e f g h i j", "a b c d", "a", ""])
    assert words(windows) == [
        "[CLS] a b c d [SEP]",
        "[CLS] e f g h [SEP]",
        "[CLS] i j [SEP]",
        "[CLS] a b c d [SEP]",
        "[CLS] a [SEP]",
        "[CLS] [SEP]",
    ]
    assert windows.documents.tolist() == [0, 0, 0, 1, 2, 3]
    assert windows.weights.tolist() == pytest.approx([0.4, 0.4, 0.2, 1, 1, 1])


def test_every_window_has_the_prompt_which_has_no_weight():
    windows = WindowCutter(make_tokenizer(), 7, "passage: ").cut(["a b c d e f g", "a"])
    assert words(windows) == [
        "[CLS] passage : a b c [SEP]",
        "[CLS] passage : d e f [SEP]",
        "[CLS] passage : g [SEP]",
        "[CLS] passage : a [SEP]",
    ]
    assert windows.weights.tolist() == pytest.approx([3 / 7, 3 / 7, 1 / 7, 1])


@given(st.lists(st.lists(st.sampled_from("abcdefghij"), max_size=30).map(" ".join), max_size=5), st.integers(5, 12))
def test_every_token_is_in_one_window_and_the_first_is_that_of_truncation(texts, max_tokens):
    tokenizer = make_tokenizer()
    windows = WindowCutter(tokenizer, max_tokens, "passage: ").cut(texts)
    found = [window.split()[3:-1] for window in words(windows)]
    for document, text in enumerate(texts):
        own = [window for window, owner in zip(found, windows.documents, strict=True) if owner == document]
        assert [word for window in own for word in window] == text.split()
        assert sum(windows.weights[windows.documents == document]) == pytest.approx(1)
    assert max(windows.tokens.lengths, default=0) <= max_tokens
    firsts = np.unique(windows.documents, return_index=True)[1]
    truncated = first_window(tokenizer, [f"passage: {text}" for text in texts], max_tokens).tokens.tolist()
    assert [windows.tokens.tolist()[place] for place in firsts] == truncated


def test_a_prompt_that_leaves_no_room_is_an_error():
    with pytest.raises(SettingsError, match="take 4 of 4 tokens"):
        WindowCutter(make_tokenizer(), 4, "passage: ")


@pytest.mark.parametrize(
    ("template", "before", "after"),
    [("[CLS] $A [SEP]", [2], [3]), ("$A [SEP]", [], [3]), ("[CLS] $A", [2], []), ("[CLS] [CLS] $A", [2, 2], [])],
)
def test_special_tokens_are_split_as_the_tokenizer_adds_them(template, before, after):
    found = special_ids(make_tokenizer(template))
    assert found == (before, after)
