"""A transformers classifier as a scorer: the model's own output and vector, for any text."""

import json
import os
import random
import shutil

import numpy as np
import pytest
import torch

from fineweb_mask.models.errors import ModelError, SettingsError
from fineweb_mask.models.quality.registry import load_scorer
from fineweb_mask.models.settings.quality import EduScorerSettings
from tests.models.embedding.saved import WORDS
from tests.models.payload import pickled_payload

DICE = random.Random(0)
TEXTS = [" ".join(DICE.choice(WORDS) for _ in range(DICE.randrange(1, 90))) for _ in range(40)]
TEXTS[7] = "piano [SEP] melody [PAD] goal[CLS]"  # text, as all else


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def folder(save_regression_bert, tmp_path_factory):
    return save_regression_bert(tmp_path_factory.mktemp("edu") / "model", TEXTS)


def load(folder, *, batch_tokens=None, **settings):
    from fineweb_mask.models.quality.transformer import BATCH_TOKENS, EduScorer  # it imports much

    settings = EduScorerSettings(model=str(folder), **settings)
    return EduScorer(settings, str(folder), device="cpu", batch_tokens=batch_tokens or BATCH_TOKENS)


@pytest.fixture(scope="module")
def scorer(folder):
    return load(folder)


def scored(scorer, texts):
    """Return the scores and the vectors."""
    scores, wait = scorer.score_and_encode(scorer.tokenise(texts))
    return scores, wait()


def test_the_score_is_the_model_s_output_on_any_scale(folder):
    """That of transformers itself: one text at a time, no padding."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    expected = []
    for text in TEXTS:
        ids = tokenizer(text, return_tensors="pt", truncation=True, split_special_tokens=True).input_ids
        with torch.inference_mode():
            expected.append(model(input_ids=ids).logits.item())
    moved = load(folder)
    moved._model.classifier.bias.data -= 10
    scores = moved.score(TEXTS)
    np.testing.assert_allclose(scores, np.array(expected) - 10, atol=1e-4)
    assert len(np.unique(scores.round(4))) > 30
    assert moved.score(TEXTS).tobytes() == scores.tobytes()
    assert load_scorer(EduScorerSettings(model=str(folder)), str(folder)).columns == ("text",)


def test_the_vector_is_that_of_the_encoder_with_cls_pooling(folder, scorer, tmp_path):
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer
    from transformers import AutoTokenizer, BertForSequenceClassification

    parts = tmp_path / "encoder"
    BertForSequenceClassification.from_pretrained(folder).bert.save_pretrained(parts)
    AutoTokenizer.from_pretrained(folder).save_pretrained(parts)
    model = SentenceTransformer(modules=[Transformer(str(parts)), Pooling(32, "cls"), Normalize()], device="cpu")
    model.tokenizer.split_special_tokens = True
    expected = model.encode(TEXTS, convert_to_numpy=True)
    _, encoded = scored(scorer, TEXTS)
    assert encoded.vectors.shape == (40, scorer.dimensions) == expected.shape
    np.testing.assert_allclose(encoded.vectors, expected, atol=2e-5)
    assert not encoded.bad.any()


def test_batches_do_not_matter_and_the_order_is_that_of_the_texts(folder, scorer):
    other, expected = scored(load(folder, batch_tokens=90), TEXTS[::-1]), scored(scorer, TEXTS)
    np.testing.assert_allclose(other[0][::-1], expected[0], atol=2e-5)
    np.testing.assert_allclose(other[1].vectors[::-1], expected[1].vectors, atol=2e-5)
    scores, encoded = scored(scorer, [])
    assert (scores.shape, encoded.vectors.shape) == ((0,), (0, 32))


def test_any_text_has_a_score_and_a_vector_and_leaves_the_others_alone(scorer):
    hostile = ("", " \n\u2028 ", "\x00goal\x01", "piano \ud800 goal", "\U00013000 \ue000", "[CLS] piano", "a" * 5_000)
    scores, encoded = scored(scorer, [TEXTS[0], *hostile, TEXTS[1]])
    assert np.isfinite(scores).all()
    assert not encoded.bad.any()
    np.testing.assert_allclose(scores[[0, -1]], scorer.score(TEXTS[:2]), atol=2e-5)
    for unit in ("piano goal ", "x", " "):
        [whole, beginning] = scorer.score([unit * 10**6, (unit * 10**4)[:20_000]])
        assert whole == pytest.approx(beginning, abs=1e-6)


def test_max_tokens_is_how_much_is_read_and_a_model_of_several_outputs_is_refused(
    folder, scorer, save_regression_bert, tmp_path
):
    short = load(folder, max_tokens=5)
    text = "piano goal match and violin harmony"
    assert short.score([text]) == pytest.approx(scorer.score(["piano goal match"]), abs=2e-5)
    with pytest.raises(SettingsError, match="its model reads 64 tokens, max_tokens is 65: set it to at most 64"):
        load(folder, max_tokens=65)
    with pytest.raises(ModelError, match="has 3 outputs, the kind `edu` needs exactly one"):
        load(save_regression_bert(tmp_path / "three", TEXTS, labels=3))


def test_pickled_weights_are_refused_and_beside_safetensors_never_read(folder, tmp_path):
    pickled = shutil.copytree(folder, tmp_path / "copy")
    (pickled / "model.safetensors").rename(tmp_path / "away")
    for name in ("pytorch_model.bin", "training_args.bin"):
        (pickled / name).write_bytes(pickled_payload(tmp_path / "ran"))
    with pytest.raises(ModelError, match="no safetensors"):
        load(pickled)
    (tmp_path / "away").rename(pickled / "model.safetensors")
    load(pickled)
    assert not (tmp_path / "ran").exists()


def test_code_that_comes_with_a_model_is_never_run(folder, tmp_path):
    hostile, ran = shutil.copytree(folder, tmp_path / "copy"), tmp_path / "ran"
    (hostile / "payload.py").write_text(f"open({str(ran)!r}, 'w')\nclass Model: ...\n")
    config = json.loads((hostile / "config.json").read_text())
    config |= {"model_type": "hostile", "auto_map": {"AutoModelForSequenceClassification": "payload.Model"}}
    (hostile / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match="cannot load"):
        load(hostile)
    assert not ran.exists()


def test_a_damaged_folder_is_an_error_that_names_it(folder, tmp_path):
    from transformers import BertForSequenceClassification

    damaged = shutil.copytree(folder, tmp_path / "copy")
    (damaged / "tokenizer.json").rename(tmp_path / "away")
    with pytest.raises(ModelError, match=f"{damaged}.*tokenizer"):
        load(damaged)
    (tmp_path / "away").rename(damaged / "tokenizer.json")
    BertForSequenceClassification.from_pretrained(folder).bert.save_pretrained(damaged)
    shutil.copy(folder / "config.json", damaged)
    with pytest.raises(ModelError, match=r"no weights for 'classifier\.bias': it must be a trained classifier"):
        load(damaged)
    os.truncate(damaged / "model.safetensors", 1000)
    with pytest.raises(ModelError, match=f"cannot load '{damaged}'"):
        load(damaged)
