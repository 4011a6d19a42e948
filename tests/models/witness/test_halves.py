"""Halves of held-out documents: no document of one is in the other, and losses are those of the deciding one."""

import numpy as np
import pytest

from fineweb_mask.models.errors import DataError
from fineweb_mask.models.witness.effects import HeldOut
from fineweb_mask.models.witness.halves import Halves
from fineweb_mask.models.witness.kneser_ney import KneserNey
from fineweb_mask.models.witness.tokens import PackedTokens
from fineweb_mask.models.witness.witness import HeldOutTexts


def packed(seed, documents):
    """Documents of 20 tokens of their own half of a vocabulary of 100, by their places."""
    random = np.random.default_rng(seed)
    ids = random.integers(0, 50, (documents, 20)) + 50 * (np.arange(documents) % 2)[:, None]
    return PackedTokens(ids.ravel().astype(np.uint16), 20 * np.arange(1, documents + 1))


@pytest.fixture(scope="module")
def halves():
    held_out = {
        name: HeldOutTexts(packed(seed, 41), HeldOut(np.arange(1, 42), np.arange(41)))
        for seed, name in enumerate(("pool", "theirs"))
    }
    return Halves(packed(9, 1_000), held_out, ["theirs"], vocabulary=100, tokens=10_000, seed=0)


def test_every_document_is_in_one_half(halves):
    deciding, final = (one["theirs"].sample.sizes.tolist() for one in (halves.deciding, halves.final))
    assert sorted(deciding + final) == list(range(1, 42))
    assert (len(deciding), len(final)) == (21, 20)
    assert halves.deciding.keys() == {"theirs"}
    assert halves.final.keys() == {"pool", "theirs"}


def test_a_loss_is_a_share_of_that_of_random_documents(halves):
    assert halves.loss(np.arange(1_000)) == pytest.approx(1, abs=0.03)
    one_half = np.arange(0, 1_000, 2)  # of the vocabulary
    assert halves.loss(one_half) > 1.1
    chosen = np.random.default_rng(0).permutation(one_half)
    model = KneserNey(*packed(9, 1_000).take(chosen, 10_000), vocabulary=100)
    random = halves.deciding["theirs"].loss(model) / halves.loss(one_half)
    assert 4 < random < 8  # bits per byte, which is at most a document's 20 tokens of 6.6 bits in 21 bytes
    with pytest.raises(DataError, match="every selection must have 10,000 tokens, this one has 9,980"):
        halves.loss(np.arange(499))


def test_a_gain_is_of_the_half_that_did_not_decide_beside_every_other_selection(halves):
    one_half, mixed = np.arange(0, 1_000, 2), np.arange(500)
    found = halves.gain({"mixed": mixed, "half": one_half}, np.arange(1_000.0))
    assert found.tokens == 10_000
    judged = found.sets["theirs"]
    assert judged.documents + judged.left_out == 20
    assert set(judged.against_best) == {"half", "top_quality"}
    worse = judged.against_best["half"]
    assert worse.verdict == "worse"
    expected = judged.losses["half"][0] - judged.losses["mixed"][0]
    assert worse.difference == pytest.approx(expected)
    assert worse.low < expected < worse.high
