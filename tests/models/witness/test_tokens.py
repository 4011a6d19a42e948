"""Tokens: every text survives a round trip, documents are put together and cut."""

import numpy as np
import pytest

from fineweb_mask.models.witness.tokens import END, PackedTokens, measured_starts, train_tokenizer

TEXTS = [
    f"the {animal} sat on the {place}, and ünder it." * 3 for animal in ("cat", "dog") for place in ("mat", "roof")
]


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(TEXTS, 300)


def test_any_text_survives_a_round_trip(tokenizer):
    for text in (*TEXTS, "日本語 \x00 🙂", END):
        packed = PackedTokens.of([text], tokenizer)
        assert packed.ids[-1] == tokenizer.token_to_id(END)
        assert tokenizer.token_to_id(END) not in packed.ids[:-1]  # also in a text that spells it
        assert tokenizer.decode(packed.ids[:-1].tolist(), skip_special_tokens=False) == text


def test_documents_are_taken_in_order_and_the_last_is_cut(tokenizer):
    packed = PackedTokens.of(TEXTS, tokenizer)
    parts = np.split(packed.ids, packed.ends[:-1])
    taken = packed.take(np.array([2, 0, 3]))
    assert taken.ids.tolist() == [*parts[2], *parts[0], *parts[3]]
    assert taken.lengths.tolist() == packed.lengths[[2, 0, 3]].tolist()
    cut = packed.take(np.array([2, 0, 3]), len(parts[2]) + 1)
    assert cut.ids.tolist() == [*parts[2], parts[0][0]]
    assert cut.ends.tolist() == [len(parts[2]), len(parts[2]) + 1]
    assert len(packed.take(np.array([], dtype=int), 5).ids) == 0


@pytest.mark.parametrize("tokens", [1, 1000])
def test_the_start_of_a_document_has_the_bytes_of_its_tokens(tokenizer, tokens):
    starts, sizes = measured_starts([*TEXTS, ""], tokenizer, tokens)
    for text, ids, size in zip(TEXTS, np.split(starts.ids, starts.ends[:-1]), sizes, strict=False):
        assert len(tokenizer.decode(ids.tolist()).encode()) == size == min(size, len(text.encode()))
    assert sizes[-1] == 0
