"""The token-vector encoder: equal to `SentenceTransformer.encode` for any text and any limit of tokens."""

import json
import shutil
import subprocess
import sys

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize

from fineweb_mask.models.embedding.load import TokenVectorEncoder, load_encoder
from fineweb_mask.models.embedding.static import load_static
from fineweb_mask.models.embedding.static_fit import fit_static_encoder
from fineweb_mask.models.settings import EmbeddingSettings

WORDS = "piano sonata melody violin concert harmony football goal match striker league stadium passage".split()
TEXTS = [
    *(" ".join(WORDS[(start + 3 * jump) % 13] for jump in range(9)) for start in range(13)),
    "Piano, GOAL; harmony!",
    "[PAD] pad [UNK]",
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
    model = SentenceTransformer(str(folder), device="cpu")
    model.tokenizer.encode_special_tokens = True
    return model.encode(texts, normalize_embeddings=True)


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


def test_a_limit_of_tokens_cuts(folder):
    text = "piano sonata " + "football " * 50
    cut = load(folder, max_tokens=2).encode([text]).vectors
    np.testing.assert_allclose(cut, load(folder).encode(["piano sonata"]).vectors, atol=1e-5)


def test_float16_vectors_are_those_of_float32_rounded(folder):
    encoded = load(folder, precision="float16").encode(TEXTS)
    assert encoded.vectors.dtype == np.float16
    np.testing.assert_allclose(encoded.vectors, reference(folder, TEXTS), atol=1e-3)


def test_the_files_are_those_that_sentence_transformers_writes(tmp_path):
    fitted = fit_static_encoder(lambda: TEXTS, vocabulary=300, dimensions=16)
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    ours.mkdir()
    fitted.save(ours)
    fitted.as_sentence_transformer().save_pretrained(str(theirs), create_model_card=False)
    found, expected = ({file.name: file.read_bytes() for file in one.iterdir()} for one in (ours, theirs))
    assert found == expected


def test_it_is_run_without_what_takes_seconds_to_import(folder):
    code = f"""
import sys
from fineweb_mask.models.embedding.load import load_encoder
from fineweb_mask.models.settings import EmbeddingSettings
print(load_encoder({str(folder)!r}, EmbeddingSettings(), "cpu").encode(["piano"]).vectors.shape)
assert not {{"sentence_transformers", "transformers", "sklearn"}} & sys.modules.keys()
"""
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "(1, 16)\n"


def test_a_prompt_in_its_files_goes_before_every_text(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "prompted")
    path = tmp_path / "prompted" / "config_sentence_transformers.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"prompts": {"document": "goal "}}))
    found = load(tmp_path / "prompted").encode(["piano"]).vectors
    np.testing.assert_array_equal(found, load(folder).encode(["goal piano"]).vectors)
    other = load(tmp_path / "prompted", prompt="").encode(["piano"]).vectors
    np.testing.assert_array_equal(other, load(folder).encode(["piano"]).vectors)


def test_a_model_with_more_than_one_module_is_left_to_sentence_transformers(tmp_path):
    static = fit_static_encoder(lambda: TEXTS, vocabulary=300, dimensions=16).as_sentence_transformer()
    SentenceTransformer(modules=[static[0], Normalize()]).save(str(tmp_path))
    assert load_static(str(tmp_path)) is None
    np.testing.assert_allclose(load(tmp_path).encode(TEXTS).vectors, reference(tmp_path, TEXTS), atol=1e-5)
