"""The token-vector encoder: equal to `SentenceTransformer.encode` for any text and any limit of tokens."""

import json
import shutil
import subprocess
import sys

import numpy as np
import pytest

from fineweb_mask.models.embedding.load import TokenVectorEncoder
from fineweb_mask.models.embedding.static_fit import fit_static_encoder
from tests.models.embedding.saved import TEXTS, WORDS, load, of_sentence_transformers, reference


@pytest.fixture(scope="module")
def fitted():
    return fit_static_encoder(lambda: [*TEXTS, *WORDS], vocabulary=300, dimensions=16)


@pytest.fixture(scope="module")
def folder(fitted, tmp_path_factory):
    """The model as sentence-transformers saves it."""
    folder = tmp_path_factory.mktemp("encoder")
    of_sentence_transformers(fitted).save_pretrained(str(folder), create_model_card=False)
    return folder


@pytest.mark.parametrize("prompt", [None, "passage: "])
def test_equal_to_sentence_transformers(folder, prompt):
    encoder = load(folder, prompt=prompt)
    assert isinstance(encoder, TokenVectorEncoder)
    encoded = encoder.encode(TEXTS)
    assert encoded.vectors.dtype == np.float32
    expected = reference(folder, [f"{prompt or ''}{text}" for text in TEXTS])
    np.testing.assert_allclose(encoded.vectors, expected, atol=1e-5)
    has_tokens = [bool(prompt or text.strip()) for text in TEXTS]
    assert (~encoded.bad).tolist() == has_tokens
    assert encoder.encode([]).vectors.shape == (0, 16)
    cut = load(folder, prompt=prompt, max_tokens=3).encode(["piano sonata goal " + "football " * 50]).vectors
    whole = load(folder, max_tokens=3).encode([f"{prompt or ''}piano sonata goal"]).vectors
    np.testing.assert_allclose(cut, whole, atol=1e-5)


def test_the_files_are_those_that_sentence_transformers_writes(fitted, folder, tmp_path):
    fitted.save(tmp_path)
    found, expected = ({file.name: file.read_bytes() for file in one.iterdir()} for one in (tmp_path, folder))
    assert found == expected


def test_it_is_run_without_what_takes_seconds_to_import(folder):
    code = f"""
import sys
from fineweb_mask.models.embedding.load import load_encoder
from fineweb_mask.models.settings import EmbeddingSettings
assert load_encoder({str(folder)!r}, EmbeddingSettings(), "cpu").encode(["piano"]).vectors.shape == (1, 16)
assert not {{"sentence_transformers", "transformers", "sklearn"}} & sys.modules.keys()
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_prompt_in_its_files_goes_before_every_text(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "prompted")
    path = tmp_path / "prompted" / "config_sentence_transformers.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"prompts": {"document": "goal "}}))
    for settings, read in (({}, "goal piano"), ({"prompt": ""}, "piano")):
        found = load(tmp_path / "prompted", **settings).encode(["piano"]).vectors
        np.testing.assert_array_equal(found, load(folder).encode([read]).vectors)
