"""Similarities of sets, and which of similar documents are kept, compared with plain loops."""

import numpy as np
import pyarrow as pa
import pytest

from fineweb_mask.models.dedup.choice import choose, jaccard

SETS = pa.list_(pa.uint64())


@pytest.mark.parametrize("seed", range(2))
def test_similarities_are_those_of_python_sets(seed):
    random = np.random.default_rng(seed)
    sets = [set(random.integers(0, 40, random.integers(0, 30)).tolist()) for _ in range(400)]
    ones, others = sets[:200], sets[200:]
    found = jaccard(*(pa.array(map(sorted, some), SETS) for some in (ones, others)))
    either = [max(1, len(one | other)) for one, other in zip(ones, others, strict=True)]
    common = [len(one & other) for one, other in zip(ones, others, strict=True)]
    np.testing.assert_allclose(found, np.divide(common, either), rtol=1e-6)


def plain(pairs, order):
    """Go through the documents from the best on; drop one that has a kept neighbour."""
    kept = set()
    dropped = {}
    for one in order:
        found = [(-similarity, better) for worse, better, similarity in pairs if worse == one and better in kept]
        if found:
            dropped[one] = min(found)[1]
        else:
            kept.add(one)
    return dropped


@pytest.mark.parametrize("seed", range(5))
def test_a_document_is_dropped_for_a_kept_neighbour_and_no_other(seed):
    random = np.random.default_rng(seed)
    order = random.permutation(60).tolist()  # from the best document on
    rank = {one: place for place, one in enumerate(order)}
    drawn = {tuple(sorted(pair, key=rank.__getitem__)) for pair in random.integers(0, 60, (90, 2)).tolist()}
    pairs = [
        (worse, better, round(float(random.uniform(0.5, 1)), 1)) for better, worse in sorted(drawn) if better != worse
    ]
    random.shuffle(pairs)
    worse, better, similarity = (np.array(values) for values in zip(*pairs, strict=True))
    found = choose(worse.astype(np.uint64), better.astype(np.uint64), similarity.astype(np.float32))
    want = plain([(int(one), int(other), float(np.float32(how))) for one, other, how in pairs], order)
    assert dict(zip(found.documents.tolist(), found.kept.tolist(), strict=True)) == want
    assert found.documents.tolist() == sorted(want)


def test_a_long_chain_keeps_every_second_document_and_without_pairs_nothing_is_dropped():
    chain = np.arange(5_000, dtype=np.uint64)
    assert choose(chain[1:], chain[:-1]).documents.tolist() == list(range(1, 5_000, 2))
    none = np.empty(0, dtype=np.uint64)
    no_sets = pa.array([], SETS)
    assert choose(none, none).documents.shape == jaccard(no_sets, no_sets).shape == (0,)
