"""Documents that are too much like held-out ones."""

import numpy as np

from fineweb_mask.models.witness.overlap import sharing_documents
from fineweb_mask.models.witness.tokens import PackedTokens


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
