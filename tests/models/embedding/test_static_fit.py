"""The built-in encoder, fitted on sixty tiny documents of two topics."""

import hashlib
import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse

from fineweb_mask.models.embedding import static_fit
from fineweb_mask.models.embedding.static_fit import fit_static_encoder
from fineweb_mask.models.errors import DataError

TOPICS = {
    "music": "piano sonata melody orchestra violin concert harmony composer chord symphony".split(),
    "football": "football goal match striker league penalty stadium referee defender trophy".split(),
}


def corpus(seed=0, n_per_topic=30):
    chosen = random.Random(seed)
    return [" ".join(chosen.choices(words, k=12)) for words in TOPICS.values() for _ in range(n_per_topic)]


def fit(texts, dimensions=16, seed=0):
    return fit_static_encoder(lambda: iter(texts), vocabulary=300, dimensions=dimensions, seed=seed)


def encode(encoder, texts):
    from tests.models.embedding.saved import of_sentence_transformers  # the process that fits needs none of it

    return of_sentence_transformers(encoder).encode(texts, show_progress_bar=False)


@pytest.fixture(scope="module")
def encoder():
    return fit(corpus())


def test_equal_texts_give_equal_weights(encoder):
    assert encoder.weights.shape == (encoder.tokenizer.get_vocab_size(), 16)
    again = fit(corpus())
    assert digest(again) == digest(encoder)
    assert fit(corpus(), seed=1).weights.tobytes() != encoder.weights.tobytes()
    assert fit(corpus(seed=1)).weights.tobytes() != encoder.weights.tobytes()


@pytest.mark.parametrize(
    ("texts", "rank"),
    [(corpus(n_per_topic=3), 5), ([*corpus(n_per_topic=2)] * 50, 4)],
    ids=["few documents", "repeated documents"],
)
def test_dimensions_beyond_the_rank_are_zero_and_no_directions_of_rounding(texts, rank):
    weights = fit(texts).weights
    assert np.abs(weights[:, :rank]).max(axis=0).min() > 0
    assert not weights[:, rank:].any()


def test_nearest_neighbours_share_the_topic(encoder):
    unseen = corpus(seed=9, n_per_topic=10)
    vectors = encode(encoder, unseen)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    cosine = vectors @ vectors.T
    np.fill_diagonal(cosine, -np.inf)
    assert (cosine.argmax(axis=1) // 10 == np.arange(20) // 10).all()


def test_a_token_of_every_document_says_nothing():
    encoder = fit([f"zebra {text}" for text in corpus()])
    everywhere, somewhere = encode(encoder, ["zebra", "piano"])
    assert np.linalg.norm(everywhere) < 1e-6
    assert np.linalg.norm(somewhere) > 0.01


def test_the_tokenizer_learns_from_a_bounded_text(monkeypatch):
    monkeypatch.setattr(static_fit, "TRAINER_CHARACTERS", 1_000)
    monkeypatch.setattr(static_fit, "TRAINER_CHARACTERS_PER_DOCUMENT", 30)
    fed = list(static_fit._beginnings(("many words here " * 10 for _ in range(10**9)), 100))
    assert (sum(map(len, fed)), max(map(len, fed))) == (1_000, 30)


@pytest.mark.parametrize(("texts", "received"), [([], 0), (["only one document"], 1), (["", " "], 2)])
def test_fewer_than_two_documents_with_words_are_an_error(texts, received):
    with pytest.raises(DataError, match=f"at least two documents with words, received {received}"):
        fit(texts)


@pytest.mark.parametrize(("n", "size", "columns"), [(100, 600, 132), (400, 200, 200)])
def test_the_sketched_decomposition_is_that_of_a_dense_svd(n, size, columns, monkeypatch):
    """Exact, since the matrix has no more rank than the sketch has columns; its spectrum decays, in several blocks."""
    chosen, rank = np.random.default_rng(0), 12
    dense = chosen.random((n, size)) * (chosen.random((n, size)) < 0.2) * np.geomspace(1, 0.05, size)
    dense[:, 0] += 0.1
    rows = scipy.sparse.csr_matrix((dense / np.linalg.norm(dense, axis=1, keepdims=True)).astype(np.float32))
    test = np.linalg.qr(chosen.standard_normal((size, columns)))[0].astype(np.float32)
    monkeypatch.setattr(static_fit, "ROWS", 17)
    right = static_fit._decompose(static_fit._sketch_gram(rows, test), test, rank)
    _, _, vectors = np.linalg.svd(rows.toarray().astype(np.float64), full_matrices=False)
    np.testing.assert_allclose(right.T @ right, np.eye(rank), atol=1e-4)
    nearest = np.abs(np.sum(right.T * vectors[:rank], axis=1))  # each equal to its own up to the sign
    np.testing.assert_allclose(nearest, 1, atol=1e-3)


def digest(encoder):
    return hashlib.sha256(encoder.weights.tobytes() + encoder.tokenizer.to_str().encode()).hexdigest()


def fitted_to_many_characters(vocabulary=2_000, dimensions=160):
    """Fit to texts with one new character each, more than the alphabet holds, in words of equal frequency."""
    chosen = random.Random(0)
    texts = [f"{' '.join(chosen.choices(TOPICS['music'], k=20))} {chr(0x4E00 + i) * 3}x" for i in range(700)]
    return fit_static_encoder(lambda: iter(texts), vocabulary=vocabulary, dimensions=dimensions)


def test_threads_do_not_change_a_bit_and_the_alphabet_leaves_room_in_the_vocabulary():
    """Three threads of BLAS and one of the tokenizer there; one and all here."""
    fit = "from tests.models.embedding.test_static_fit import *; print(digest(fitted_to_many_characters()))"
    environment = os.environ | {"OMP_NUM_THREADS": "3", "OPENBLAS_NUM_THREADS": "3", "RAYON_NUM_THREADS": "1"}
    root = Path(__file__).parents[3]
    there = subprocess.check_output([sys.executable, "-c", fit], cwd=root, env=environment, text=True)
    assert there.strip() == digest(fitted_to_many_characters())
    tokenizer = fitted_to_many_characters(vocabulary=400, dimensions=8).tokenizer
    assert tokenizer.get_vocab_size() <= 400
    assert "piano" in tokenizer.encode("piano", add_special_tokens=False).tokens
    assert tokenizer.encode(chr(0x4E00 + 699), add_special_tokens=False).tokens == ["[UNK]"]
