"""The token-vector encoder: equal to `SentenceTransformer.encode` for any text and any limit of tokens."""

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from fineweb_mask.models.embedding.load import TokenVectorEncoder, load_encoder
from fineweb_mask.models.embedding.static_fit import fit_static_encoder
from fineweb_mask.models.settings import EmbeddingSettings

WORDS = "piano sonata melody violin concert harmony football goal match striker league stadium passage".split()
TEXTS = [
    *(" ".join(WORDS[(start + 3 * jump) % 13] for jump in range(9)) for start in range(13)),
    "Piano, GOAL; harmony!",
    "日本語 café ﬁ 👩‍👩‍👧 \u202e piano \x00",
    "piano " * 17_000,  # 102,000 characters
    "a" * 3_000,
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("encoder")
    fit_static_encoder(lambda: TEXTS, vocabulary=300, dimensions=16).as_sentence_transformer().save(str(folder))
    return folder


def load(folder, **settings):
    encoder = load_encoder(str(folder), EmbeddingSettings(**{"precision": "float32"} | settings), "cpu")
    assert isinstance(encoder, TokenVectorEncoder)
    return encoder


def reference(folder, texts):
    return SentenceTransformer(str(folder), device="cpu").encode(texts, normalize_embeddings=True)


def test_equal_to_sentence_transformers(folder):
    encoded = load(folder).encode(TEXTS)
    np.testing.assert_allclose(encoded.vectors, reference(folder, TEXTS), atol=1e-5)
    assert not encoded.bad.any()


def test_equal_with_a_prompt(folder):
    prompted = [f"passage: {text}" for text in TEXTS]
    np.testing.assert_allclose(
        load(folder, prompt="passage: ").encode(TEXTS).vectors, reference(folder, prompted), atol=1e-5
    )


def test_a_text_without_tokens_is_bad_and_no_texts_are_none(folder):
    assert load(folder).encode(["piano", "", " \n"]).bad.tolist() == [False, True, True]
    assert load(folder).encode([]).vectors.shape == (0, 16)


def test_a_limit_of_tokens_cuts_unless_long_documents_are_read_whole(folder):
    text = "piano sonata " + "football " * 50
    cut = load(folder, max_tokens=2).encode([text]).vectors
    np.testing.assert_allclose(cut, load(folder).encode(["piano sonata"]).vectors, atol=1e-5)
    whole = load(folder, max_tokens=2, long_documents="mean_chunks").encode([text]).vectors
    np.testing.assert_allclose(whole, reference(folder, [text]), atol=1e-5)


def test_float16_vectors_are_those_of_float32_rounded(folder):
    encoded = load(folder, precision="float16").encode(TEXTS)
    assert encoded.vectors.dtype == np.float16
    np.testing.assert_allclose(encoded.vectors, reference(folder, TEXTS), atol=1e-3)
