"""Halves of held-out documents: no document of one is in the other, and losses are those of the deciding one."""

import numpy as np
import pytest

from fineweb_mask.models.witness.halves import Halves
from fineweb_mask.models.witness.kneser_ney import KneserNey
from fineweb_mask.models.witness.paired import HeldOut
from fineweb_mask.models.witness.tokens import PackedTokens
from fineweb_mask.models.witness.witness import HeldOutTexts


def packed(seed, documents):
    """Documents of 20 tokens of their own half of a vocabulary of 100, by their places."""
    random = np.random.default_rng(seed)
    ids = random.integers(0, 50, (documents, 20)) + 50 * (np.arange(documents) % 2)[:, None]
    return PackedTokens(ids.ravel().astype(np.uint16), 20 * np.arange(1, documents + 1))


@pytest.fixture
def halves():
    held_out = {
        name: HeldOutTexts(packed(seed, 41), HeldOut(np.arange(1, 42), np.arange(41)))
        for seed, name in enumerate(("pool", "theirs"))
    }
    return Halves(packed(9, 600), held_out, ["theirs"], vocabulary=100, tokens=2_000, seed=0)


def test_every_document_is_in_one_half(halves):
    deciding, final = (one["theirs"].sample.sizes.tolist() for one in (halves.deciding, halves.final))
    assert sorted(deciding + final) == list(range(1, 42))
    assert (len(deciding), len(final)) == (21, 20)
    assert halves.deciding.keys() == {"theirs"}
    assert halves.final.keys() == {"pool", "theirs"}


def test_a_loss_is_a_share_of_that_of_random_documents(halves):
    assert halves.loss(np.arange(600)) == pytest.approx(1, abs=0.03)
    one_half = np.arange(0, 600, 2)  # of the vocabulary
    assert halves.loss(one_half) > 1.1
    chosen = np.random.default_rng(0).permutation(one_half)
    model = KneserNey(*packed(9, 600).take(chosen, 2_000), vocabulary=100)
    random = halves.deciding["theirs"].loss(model) / halves.loss(one_half)
    assert 4 < random < 8  # bits per byte, which is at most a document's 20 tokens of 6.6 bits in 21 bytes
