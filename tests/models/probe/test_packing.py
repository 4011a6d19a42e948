"""Packing: every token once, documents apart, held-out text measured byte for byte."""

import numpy as np
import pytest
import torch

from fineweb_mask.models.probe.packing import IGNORED, DocumentStarts, PackedSequences, padded
from fineweb_mask.models.witness.tokens import END, PackedTokens, train_tokenizer

TEXTS = [
    f"the {animal} sat on the {place}, and ünder it." * 3 for animal in ("cat", "dog") for place in ("mat", "roof")
]


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(TEXTS, 300)


def test_documents_are_packed_in_a_random_order_each_once(tokenizer):
    packed = PackedTokens.of(TEXTS, tokenizer)
    whole = len(packed.ids) // 8 * 8
    sequences = PackedSequences(packed, 8, whole, seed=0)
    assert sequences.ids.shape == (whole // 8, 8)
    end = tokenizer.token_to_id(END)
    read = [
        part for part in np.split(sequences.ids.ravel(), np.flatnonzero(sequences.ids.ravel() == end) + 1) if len(part)
    ]
    originals = [tuple(part) for part in np.split(packed.ids, packed.ends[:-1])]
    for part in read:
        assert any(original[: len(part)] == tuple(part) for original in originals)
    assert len({tuple(part) for part in read}) == len(read)  # none twice
    assert not np.array_equal(sequences.ids, PackedSequences(packed, 8, whole, seed=1).ids)
    assert np.array_equal(sequences.ids, PackedSequences(packed, 8, whole, seed=0).ids)


def test_too_few_tokens_are_repeated(tokenizer):
    packed = PackedTokens.of(TEXTS, tokenizer)
    twice = PackedSequences(packed, 1, 2 * len(packed.ids), seed=3).ids.ravel()
    counts = np.bincount(twice, minlength=300)
    assert np.array_equal(counts, 2 * np.bincount(packed.ids, minlength=300))


def test_a_sequence_is_its_own_label(tokenizer):
    first = PackedSequences(PackedTokens.of(TEXTS, tokenizer), 8, 32, seed=0)[0]
    assert torch.equal(first["input_ids"], first["labels"])
    assert first["input_ids"].dtype == torch.int64


@pytest.mark.parametrize("context", [2, 9, 1000])
def test_the_start_of_a_document_has_as_many_bytes_as_its_tokens_hold(tokenizer, context):
    measured = DocumentStarts(TEXTS, tokenizer, context)
    assert sorted(measured.document) == list(range(len(TEXTS)))
    for row, document in enumerate(measured.document):
        ids, labels = measured[row]["input_ids"], measured[row]["labels"]
        encoded = tokenizer.encode(TEXTS[document], add_special_tokens=False)
        assert ids.tolist() == [tokenizer.token_to_id(END), *encoded.ids[: context - 1]]
        assert labels[0] == IGNORED
        assert torch.equal(ids[1:], labels[1:])
        start = TEXTS[document][: encoded.offsets[len(ids) - 2][1]]
        assert measured.sizes[document] == len(start.encode())


def test_an_empty_text_has_no_bytes(tokenizer):
    measured = DocumentStarts(["", "cat"], tokenizer, 9)
    assert measured.sizes.tolist() == [0, 3]
    assert measured.document.tolist() == [1]


def test_padding_has_no_loss(tokenizer):
    measured = DocumentStarts(["cat", TEXTS[0]], tokenizer, 9)
    batch = padded([measured[0], measured[1]])
    short = len(measured[1]["input_ids"])
    assert batch["input_ids"].shape == batch["labels"].shape == (2, len(measured[0]["input_ids"]))
    assert (batch["labels"][1, short:] == IGNORED).all()
