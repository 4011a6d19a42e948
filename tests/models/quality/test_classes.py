"""A transformers classifier with several outputs: transformers' own, and the label of the largest."""

import json
import random

import numpy as np
import pytest
import torch

from fineweb_mask.models.errors import ModelError
from fineweb_mask.models.quality.registry import load_scorer
from fineweb_mask.models.quality.transformer import ClassesScorer
from fineweb_mask.models.settings.quality import ClassesScorerSettings

WORDS = "piano sonata melody violin football goal match striker flour butter oven recipe the of and".split()
DICE = random.Random(0)
TEXTS = [" ".join(DICE.choice(WORDS) for _ in range(DICE.randrange(1, 90))) for _ in range(40)]
LABELS = {0: "Music", 1: "Sports", 2: "Food"}

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def folder(save_regression_bert, tmp_path_factory):
    folder = save_regression_bert(tmp_path_factory.mktemp("topics") / "model", TEXTS, labels=3)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"id2label": LABELS}))
    return folder


def load(folder):
    return load_scorer(ClassesScorerSettings(name="topic", model=str(folder)), str(folder))


def test_outputs_are_those_of_transformers_and_the_label_is_the_largest(folder):
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    expected = []
    with torch.inference_mode():
        for text in TEXTS:
            inputs = tokenizer(text, return_tensors="pt", truncation=True)
            inputs.pop("token_type_ids", None)
            expected.append(model(**inputs).logits[0].numpy())
    scorer = load(folder)
    assert isinstance(scorer, ClassesScorer)
    logits = scorer.score(TEXTS)
    assert logits.dtype == np.float32
    np.testing.assert_allclose(logits, expected, atol=1e-5)
    labels = scorer.label(logits)
    assert labels == [LABELS[int(np.argmax(row))] for row in expected]
    assert len(set(labels)) > 1


def test_no_texts_have_no_labels(folder):
    scorer = load(folder)
    assert scorer.score([]).shape == (0, 3)
    assert scorer.label(scorer.score([])) == []


def test_a_model_with_one_output_is_refused(save_regression_bert, tmp_path):
    folder = save_regression_bert(tmp_path / "model", TEXTS)
    with pytest.raises(ModelError, match=r"has the labels \['LABEL_0'\], the kind `classes` needs several"):
        load(folder)
