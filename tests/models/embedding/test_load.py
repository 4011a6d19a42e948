"""Models that are damaged, lack something or hold code: refused by name, and nothing of theirs is run."""

import json
import shutil

import numpy as np
import pytest
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from fineweb_mask.models.embedding.static_fit import fit_static_encoder
from fineweb_mask.models.errors import ModelError
from tests.models.embedding.saved import TEXTS, WORDS, load, of_sentence_transformers, save_model
from tests.models.payload import pickled_payload

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Normalize

    root = tmp_path_factory.mktemp("encoders")
    static = of_sentence_transformers(fit_static_encoder(lambda: [*TEXTS, *WORDS], vocabulary=300, dimensions=16))
    static.save(str(root / "static"))
    SentenceTransformer(modules=[static[0], Normalize()]).save(str(root / "static of two modules"))
    return {path.name: path for path in (*root.iterdir(), save_model(root / "bert"))}


@pytest.fixture
def bert(folders, tmp_path):
    """A copy that a test may change."""
    return shutil.copytree(folders["bert"], tmp_path / "model")


def with_module(folder, path, kind):
    """Add a module to a model's list."""
    modules = json.loads((folder / "modules.json").read_text())
    module = {"idx": len(modules), "name": str(len(modules)), "path": path, "type": kind}
    (folder / "modules.json").write_text(json.dumps([*modules, module]))


@pytest.mark.parametrize(
    ("name", "value"), [("static", float("nan")), ("static of two modules", float("inf")), ("bert", float("nan"))]
)
def test_a_vector_that_is_not_finite_is_zeroed_and_flagged(folders, name, value, tmp_path):
    folder = shutil.copytree(folders[name], tmp_path / "poisoned")
    weights = load_file(folder / "model.safetensors")
    table = next(key for key in weights if "word_embeddings" in key or key == "embedding.weight")
    weights[table][Tokenizer.from_file(str(folder / "tokenizer.json")).token_to_id("piano")] = value
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    encoded = load(folder).encode(["goal match", "piano sonata", "league"])
    assert encoded.bad.tolist() == [False, True, False]
    assert not encoded.vectors[1].any()
    assert np.isfinite(encoded.vectors).all()


def test_a_missing_model_says_how_to_download_it_first(tmp_path):
    missing = tmp_path / "intfloat" / "e5"
    says = f"cannot load the embedding model {str(missing)!r}.*`hf download {missing}`.*embedding.model"
    with pytest.raises(ModelError, match=says):
        load(missing)


@pytest.mark.parametrize("name", ["pytorch_model-00001-of-00002.bin", "3_Dense/pytorch_model.bin"])
def test_pickled_weights_are_refused_and_beside_safetensors_never_read(bert, tmp_path, name):
    (bert / name).parent.mkdir(exist_ok=True)
    (bert / name).write_bytes(pickled_payload(tmp_path / "ran"))
    if "/" in name:
        with_module(bert, "3_Dense", "sentence_transformers.models.Dense")
        config = {"in_features": 32, "out_features": 4, "bias": True, "activation_function": "torch.nn.modules.Tanh"}
        (bert / "3_Dense" / "config.json").write_text(json.dumps(config))
    else:
        assert not load(bert).encode(["piano"]).bad.any()
        (bert / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"pytorch_model.*\.bin.*never loaded.*safetensors"):
        load(bert)
    assert not (tmp_path / "ran").exists()


def test_code_that_comes_with_a_model_is_never_run(bert, tmp_path):
    (bert / "payload.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Module: ...\n")
    with_module(bert, "", "payload.Module")
    with pytest.raises(ModelError, match="trust_remote_code"):
        load(bert)
    assert not (tmp_path / "ran").exists()
