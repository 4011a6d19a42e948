"""Tokens: every text survives a round trip, documents are put together and cut; shared runs are found."""

import numpy as np
import pytest

from fineweb_mask.models.witness.tokens import END, PackedTokens, sharing_documents, train_tokenizer

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
        assert PackedTokens.of([text], tokenizer, end=False).ids.tolist() == packed.ids[:-1].tolist()


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


def packed(documents):
    return PackedTokens(np.concatenate(documents).astype(np.uint16), np.cumsum([len(one) for one in documents]))


def test_a_shared_run_is_found_wherever_it_is_and_no_shorter_one():
    random = np.random.default_rng(0)
    documents = [random.integers(0, 5_000, 100) for _ in range(50)]
    held_out = [random.integers(0, 5_000, 60) for _ in range(5)]
    documents[3][40:60] = held_out[1][7:27]
    documents[8][80:] = held_out[4][:20]
    documents[9][:19] = held_out[2][10:29]  # one token short
    found = sharing_documents(packed(documents), packed(held_out))
    assert np.flatnonzero(found).tolist() == [3, 8]
    run = np.arange(30)  # over the end of a document, and short texts
    assert not sharing_documents(packed([run[:15], run[15:]]), packed([run])).any()
    assert not sharing_documents(packed([[1, 2]]), packed([[1, 2]])).any()


def test_a_common_phrase_does_not_count():
    random = np.random.default_rng(1)
    phrase = random.integers(0, 5_000, 20)
    documents = [np.append(random.integers(0, 5_000, 30), phrase) for _ in range(12)]
    assert not sharing_documents(packed(documents), packed([phrase])).any()
    assert sharing_documents(packed(documents[:10]), packed([phrase])).all()
