"""The built-in encoder, fitted on sixty tiny documents of two topics."""

import random

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from models.embedding.static import BATCH, fit_static_encoder

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
    return encoder.as_sentence_transformer().encode(texts, show_progress_bar=False)


def test_shapes_and_types():
    encoder = fit(corpus())
    assert encoder.weights.dtype == np.float32
    assert encoder.weights.shape == (encoder.tokenizer.get_vocab_size(), 16)
    assert encoder.tokenizer.get_vocab_size() <= 300
    assert np.isfinite(encoder.weights).all()


def test_equal_texts_give_equal_weights():
    first, second = fit(corpus()), fit(corpus())
    assert first.weights.tobytes() == second.weights.tobytes()
    assert first.tokenizer.to_str() == second.tokenizer.to_str()
    assert fit(corpus(), seed=1).weights.tobytes() != first.weights.tobytes()
    assert fit(corpus(seed=1)).weights.tobytes() != first.weights.tobytes()


def test_dimensions_beyond_the_rank_are_zero():
    texts = corpus(n_per_topic=3)
    weights = fit(texts, dimensions=16).weights
    assert weights.shape[1] == 16
    assert np.abs(weights[:, :5]).max(axis=0).min() > 0
    assert not weights[:, 5:].any()


def test_nearest_neighbours_share_the_topic():
    encoder = fit(corpus())
    unseen = corpus(seed=9, n_per_topic=10)
    vectors = encode(encoder, unseen)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    cosine = vectors @ vectors.T
    same_topic = np.arange(20)[:, None] // 10 == np.arange(20)[None, :] // 10
    assert cosine[same_topic].mean() > cosine[~same_topic].mean() + 0.3
    np.fill_diagonal(cosine, -np.inf)
    assert (cosine.argmax(axis=1) // 10 == np.arange(20) // 10).all()


def test_a_document_is_the_mean_of_its_tokens_whatever_their_order_and_case():
    encoder = fit(corpus())
    forwards, backwards, shouted = encode(encoder, ["piano goal", "goal piano", "PIANO  Goal"])
    ids = encoder.tokenizer.encode("piano goal", add_special_tokens=False).ids
    np.testing.assert_allclose(forwards, encoder.weights[ids].mean(axis=0), atol=1e-6)
    np.testing.assert_allclose(forwards, backwards, atol=1e-6)
    np.testing.assert_array_equal(forwards, shouted)


def test_a_token_of_every_document_says_nothing():
    encoder = fit([f"zebra {text}" for text in corpus()])
    everywhere, somewhere = encode(encoder, ["zebra", "piano"])
    assert np.linalg.norm(everywhere) < 1e-6
    assert np.linalg.norm(somewhere) > 0.01


@pytest.mark.parametrize(("texts", "received"), [([], 0), (["only one document"], 1)])
def test_fewer_than_two_documents_are_an_error(texts, received):
    with pytest.raises(ValueError, match=f"at least two documents, received {received}"):
        fit(texts)


def test_texts_without_a_token_are_an_error():
    with pytest.raises(ValueError, match="at least two"):
        fit(["", " "])


def test_the_corpus_is_read_in_two_passes():
    passes = []

    def documents():
        passes.append(len(passes))
        return iter(corpus())

    fit_static_encoder(documents, vocabulary=300, dimensions=16)
    assert len(passes) == 2


def test_more_documents_than_one_batch_all_count():
    texts = corpus(n_per_topic=BATCH // 2)
    rare = [*texts, "xylophone music", "xylophone concert"]
    assert len(rare) > BATCH
    [vector] = encode(fit(rare), ["xylophone"])
    assert np.linalg.norm(vector) > 0


def test_saved_and_loaded_it_is_the_same_encoder(tmp_path):
    encoder = fit(corpus())
    encoder.as_sentence_transformer().save(str(tmp_path / "encoder"))
    assert (tmp_path / "encoder" / "model.safetensors").is_file()
    assert not list(tmp_path.rglob("*.bin"))
    loaded = SentenceTransformer(str(tmp_path / "encoder"), device="cpu")
    texts = corpus(seed=3)
    assert loaded.encode(texts, show_progress_bar=False).tobytes() == encode(encoder, texts).tobytes()
