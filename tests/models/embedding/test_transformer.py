"""The transformer encoder: equal to `SentenceTransformer.encode` row by row, for several architectures."""

import json
import shutil

import numpy as np
import pytest
import torch

from fineweb_mask.models.errors import ModelError
from tests.models.embedding.saved import TEXTS, WORDS, load, reference, save_model

pytestmark = pytest.mark.usefixtures("one_thread")

MODELS = {
    "intfloat/e5-base-v2": {},  # as the models on the hub are laid out
    "gte-modernbert-base": {"kind": "modernbert", "pooling": "cls", "positions": 256, "normalize": False},
    "roberta": {"kind": "roberta", "pooling": ("weightedmean", "cls"), "normalize": False},
    "dense": {"pooling": "lasttoken", "more": (32, 24)},
}


@pytest.fixture(scope="module", params=MODELS)
def folder(request, tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("model") / "model", **MODELS[request.param])


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("plain") / "model")


def test_equal_to_sentence_transformers_and_again_to_itself(folder):
    from fineweb_mask.models.embedding.transformer import TransformerEncoder  # it imports much

    encoder = load(folder, batch_tokens=150)
    assert isinstance(encoder, TransformerEncoder)
    encoded = encoder.encode(TEXTS)
    assert not encoded.bad.any()
    np.testing.assert_allclose(encoded.vectors, reference(folder, TEXTS), atol=2e-5)
    assert encoder.dimensions == encoded.vectors.shape[1]
    distinct = np.unique(encoded.vectors.round(4), axis=0)
    assert len(distinct) >= len(TEXTS) - 3  # all but the two blank ones, and unknown letters
    assert encoder.encode(TEXTS).vectors.tobytes() == encoded.vectors.tobytes()


def test_equal_with_a_prompt_and_special_tokens_are_only_those_that_the_tokenizer_adds(folder):
    from sentence_transformers import SentenceTransformer

    encoder = load(folder, prompt="passage: ")
    vectors = encoder.encode(TEXTS).vectors
    np.testing.assert_allclose(vectors, reference(folder, TEXTS, prompt="passage: "), atol=2e-5)
    assert np.abs(vectors - load(folder, prompt="").encode(TEXTS).vectors).max() > 0.01
    tokenizer = SentenceTransformer(str(folder), device="cpu").tokenizer
    control = {*tokenizer.all_special_ids} - {tokenizer.unk_token_id}
    text = " a ".join(tokenizer.all_special_tokens)
    found = encoder.tokenise([text, f"piano {text}"]).tolist()
    assert all(len(control & {*ids}) == 2 and not control & {*ids[1:-1]} for ids in found)


@pytest.mark.long
def test_a_real_model_in_every_precision(minilm):
    texts = [text[:2_000] for text in TEXTS]
    exact = load(minilm).encode(texts).vectors
    assert exact.shape == (len(texts), 384)
    np.testing.assert_allclose(exact, reference(minilm, texts), atol=1e-5)
    assert exact.dtype == np.float32
    vectors = load(minilm, compute=torch.bfloat16).encode(texts[:3]).vectors
    assert (vectors * exact[:3]).sum(axis=1).min() >= 0.999
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(1, abs=1e-5)
    assert load(minilm).encode([]).vectors.shape == (0, 384)


@pytest.mark.parametrize(
    ("settings", "used"),
    [
        ({"prompts": {"query": "find: ", "passage": "passage: "}, "default_prompt_name": "query"}, "passage: "),
        ({"prompts": {"own": "league "}, "default_prompt_name": "own"}, "league "),
        ({"prompts": {"query": "find: "}, "truncate_dim": 8}, ""),
    ],
)
def test_the_model_s_own_prompt_for_documents_or_its_default_and_its_own_dimensions_are_used(
    plain, tmp_path, settings, used
):
    path = shutil.copytree(plain, tmp_path / "model") / "config_sentence_transformers.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))
    encoder = load(path.parent)
    expected = reference(path.parent, TEXTS, prompt=used)
    assert encoder.dimensions == expected.shape[1] == settings.get("truncate_dim", 32)
    np.testing.assert_allclose(encoder.encode(TEXTS).vectors, expected, atol=2e-5)
    unprompted = load(path.parent, prompt="").encode(TEXTS).vectors
    np.testing.assert_allclose(unprompted, reference(path.parent, TEXTS, prompt=""), atol=2e-5)


def test_tokens_read_are_those_of_the_settings_and_no_more_than_the_model_has_positions_for(tmp_path, minilm):
    from sentence_transformers import SentenceTransformer

    text = " ".join(WORDS * 60)
    model = SentenceTransformer(str(minilm), device="cpu")
    for limit in (16, 512):
        model.max_seq_length = limit
        expected = model.encode([text], normalize_embeddings=True)
        np.testing.assert_allclose(load(minilm, max_tokens=limit).encode([text]).vectors, expected, atol=1e-5)
    with pytest.raises(ModelError, match=r"embedding\.max_tokens: the model reads 512 tokens"):
        load(minilm, max_tokens=513)
    roberta = save_model(tmp_path / "roberta", kind="roberta", include_prompt=False)  # the mean is without it
    prompted = load(roberta, max_tokens=64, prompt="passage: ").encode([text]).vectors
    np.testing.assert_allclose(prompted, reference(roberta, [text], prompt="passage: "), atol=2e-5)
    with pytest.raises(ModelError, match="the model reads 64 tokens"):
        load(roberta, max_tokens=65)


def test_a_model_with_a_router_is_refused(plain, tmp_path):
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Router

    model = SentenceTransformer(str(plain), device="cpu")
    routed = Router.for_query_document([model[0], model[1]], [model[0], model[1]])
    SentenceTransformer(modules=[routed], device="cpu").save(str(tmp_path / "routed"), create_model_card=False)
    with pytest.raises(ModelError, match=r"must begin with a transformer of texts alone .*: name another, or save its"):
        load(tmp_path / "routed")
