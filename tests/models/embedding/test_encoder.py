"""Any sentence-transformers model as an encoder: the built-in one, and a BERT of random weights."""

import json
import os
import pickle
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from fineweb_mask.models.embedding.encoder import EncoderError
from fineweb_mask.models.embedding.load import load_encoder
from fineweb_mask.models.embedding.static_fit import fit_static_encoder
from fineweb_mask.models.forward.device import choose_device
from fineweb_mask.models.settings import EmbeddingSettings

WORDS = "piano sonata melody violin concert harmony football goal match striker league stadium passage".split()
TEXTS = [
    " ".join(WORDS[(start + step * jump) % 13] for jump in range(9)) for start in range(13) for step in (1, 2, 3, 5, 7)
]


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="session")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("encoders")
    static = fit_static_encoder(lambda: TEXTS, vocabulary=300, dimensions=16)
    static.as_sentence_transformer().save(str(root / "static"))
    save_bert(root / "bert")
    return SimpleNamespace(static=root / "static", bert=root / "bert")


def save_bert(folder):
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from tokenizers.processors import TemplateProcessing
    from tokenizers.trainers import WordLevelTrainer
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    tokenizer = Tokenizer(WordLevel(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.train_from_iterator(TEXTS, WordLevelTrainer(special_tokens=special, show_progress=False))
    tokenizer.post_processor = TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    names = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token"), special, strict=True))
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=64,
    )
    parts = folder.with_name("bert-parts")
    BertModel(config).save_pretrained(parts)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=64, **names).save_pretrained(parts)
    modules = [Transformer(str(parts)), Pooling(32, "mean")]
    SentenceTransformer(modules=modules, device="cpu").save(str(folder))


def load(folder, *, device="cpu", batch_tokens=None, **settings):
    settings = EmbeddingSettings(**{"precision": "float32"} | settings)
    return load_encoder(str(folder), settings, device, compute="float32", batch_tokens=batch_tokens)


def poisoned(folder, target, value):
    """A copy of a model that gives `value` for the token "piano"."""
    from tokenizers import Tokenizer

    shutil.copytree(folder, target)
    weights = load_file(target / "model.safetensors")
    name = next(name for name in weights if "word_embeddings" in name or name == "embedding.weight")
    weights[name][Tokenizer.from_file(str(target / "tokenizer.json")).token_to_id("piano")] = value
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})
    return target


@pytest.fixture(params=["static", "bert"])
def folder(request, folders):
    return getattr(folders, request.param)


def test_vectors_have_unit_norm(folder):
    encoder = load(folder)
    encoded = encoder.encode(TEXTS)
    assert encoder.dimensions == {"static": 16, "bert": 32}[folder.name]
    assert encoded.vectors.dtype == np.float32
    assert encoded.vectors.shape == (len(TEXTS), encoder.dimensions)
    np.testing.assert_allclose(np.linalg.norm(encoded.vectors, axis=1), 1.0, atol=1e-6)
    assert not encoded.bad.any()


def test_equal_texts_give_equal_vectors_in_the_order_of_the_texts(folder):
    encoder = load(folder)
    mixed = ["piano", " ".join(TEXTS[:3]), "goal", TEXTS[0]]
    first, second = encoder.encode(mixed), encoder.encode(mixed)
    assert first.vectors.tobytes() == second.vectors.tobytes()
    one_by_one = np.concatenate([encoder.encode([text]).vectors for text in mixed])
    np.testing.assert_allclose(first.vectors, one_by_one, atol=1e-5)


@pytest.mark.parametrize("batch_tokens", [1, 30, 100])
def test_batches_do_not_matter(folder, batch_tokens):
    texts = [*TEXTS[:4], "piano", " ".join(TEXTS[:3])]
    whole, small = load(folder).encode(texts), load(folder, batch_tokens=batch_tokens).encode(texts)
    np.testing.assert_allclose(whole.vectors, small.vectors, atol=1e-5)


def test_the_prompt_is_put_before_every_text(folder):
    texts = ["piano sonata", "goal match"]
    prompted = load(folder, prompt="passage ").encode(texts).vectors
    by_hand = load(folder).encode([f"passage {text}" for text in texts]).vectors
    np.testing.assert_allclose(prompted, by_hand, atol=1e-6)
    assert np.abs(prompted - load(folder).encode(texts).vectors).max() > 0.01


def test_max_tokens_is_how_much_of_a_text_is_read(folder):
    special = {"static": 0, "bert": 2}[folder.name]  # [CLS] and [SEP] count too
    limited = load(folder, max_tokens=2 + special)
    start = "piano sonata"
    long = f"{start} football goal striker league"
    np.testing.assert_allclose(limited.encode([long]).vectors, limited.encode([start]).vectors, atol=1e-6)
    np.testing.assert_allclose(limited.encode([start]).vectors, load(folder).encode([start]).vectors, atol=1e-6)
    assert np.abs(load(folder).encode([long]).vectors - limited.encode([long]).vectors).max() > 0.01


def test_a_long_text_is_cut_to_what_the_model_allows(folders):
    encoder = load(folders.bert)
    long = " ".join(WORDS * 20)
    np.testing.assert_allclose(
        encoder.encode([long]).vectors, encoder.encode([" ".join(long.split()[:62])]).vectors, atol=1e-6
    )


def test_a_text_without_a_token_has_a_zero_vector_and_is_flagged(folders):
    encoded = load(folders.static).encode(["piano", "", "goal", "\n "])
    assert encoded.bad.tolist() == [False, True, False, True]
    assert not encoded.vectors[encoded.bad].any()


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_vector_that_is_not_finite_is_zeroed_and_flagged(folder, value, tmp_path):
    encoded = load(poisoned(folder, tmp_path / "poisoned", value)).encode(["goal match", "piano sonata", "league"])
    assert encoded.bad.tolist() == [False, True, False]
    assert not encoded.vectors[1].any()
    assert np.isfinite(encoded.vectors).all()


def test_a_missing_model_says_how_to_download_it_first(tmp_path):
    missing = tmp_path / "intfloat" / "e5"
    with pytest.raises(EncoderError) as caught:
        load(missing)
    message = str(caught.value)
    assert f"cannot load the embedding model {str(missing)!r}" in message
    assert f"`hf download {missing}`" in message
    assert "embedding.model" in message


def test_a_folder_that_is_no_model_is_an_encoder_error(tmp_path):
    (tmp_path / "modules.json").write_text("[]")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(EncoderError, match="cannot load"):
        load(tmp_path)


def test_pickled_weights_are_refused(folder, tmp_path):
    only_pickle = tmp_path / "pickle"
    shutil.copytree(folder, only_pickle)
    torch.save(load_file(only_pickle / "model.safetensors"), only_pickle / "pytorch_model.bin")
    assert not load(only_pickle).encode(["piano"]).bad.any()  # beside safetensors it is never read
    (only_pickle / "model.safetensors").unlink()
    with pytest.raises(EncoderError, match=r"pytorch_model\.bin.*never loaded.*safetensors"):
        load(only_pickle)


class Payload:
    """An object that makes a folder when it is unpickled."""

    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return os.mkdir, (str(self.marker),)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "pytorch_model-00001-of-00002.bin", "2_Dense/pytorch_model.bin"])
def test_a_payload_in_pickled_weights_does_not_run(folders, tmp_path, name):
    evil = shutil.copytree(folders.bert, tmp_path / "evil")
    (evil / name).parent.mkdir(exist_ok=True)
    (evil / name).write_bytes(pickle.dumps(Payload(tmp_path / "ran")))
    if "/" in name:
        modules = json.loads((evil / "modules.json").read_text())
        dense = {"idx": len(modules), "name": "2", "path": "2_Dense", "type": "sentence_transformers.models.Dense"}
        (evil / "modules.json").write_text(json.dumps([*modules, dense]))
        config = {"in_features": 32, "out_features": 4, "bias": True, "activation_function": "torch.nn.modules.Tanh"}
        (evil / "2_Dense" / "config.json").write_text(json.dumps(config))
    else:
        (evil / "model.safetensors").unlink()
    with pytest.raises(EncoderError, match="never loaded"):
        load(evil)
    assert not (tmp_path / "ran").exists()


def test_code_in_a_model_s_folder_does_not_run(folders, tmp_path):
    evil = shutil.copytree(folders.bert, tmp_path / "evil")
    (evil / "payload.py").write_text(f"import os\nos.mkdir({str(tmp_path / 'ran')!r})\n\nclass Module: ...\n")
    modules = json.loads((evil / "modules.json").read_text())
    own = {"idx": len(modules), "name": "2", "path": "", "type": "payload.Module"}
    (evil / "modules.json").write_text(json.dumps([*modules, own]))
    with pytest.raises(EncoderError):
        load(evil)
    assert not (tmp_path / "ran").exists()


def test_code_that_comes_with_a_model_is_never_run(folders, tmp_path):
    hostile = tmp_path / "hostile"
    shutil.copytree(folders.static, hostile)
    ran = tmp_path / "ran"
    (hostile / "payload.py").write_text(f"open({str(ran)!r}, 'w')\nclass Module: ...\n")
    modules = json.loads((hostile / "modules.json").read_text())
    modules[0]["type"] = "payload.Module"
    (hostile / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(EncoderError, match="trust_remote_code"):
        load(hostile)
    assert not ran.exists()


def test_device():
    assert choose_device("cpu") == "cpu"
    assert choose_device("cuda:3") == "cuda:3"
    assert choose_device("auto") == ("cuda" if torch.cuda.is_available() else "cpu")
