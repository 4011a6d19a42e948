"""Training: measured on texts that it has not seen, the same bytes every time."""

import json
import random

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fineweb_mask.models.settings.quality import LabelSettings, TrainQualitySettings
from fineweb_mask.tasks.outputs import OutputError
from fineweb_mask.tasks.source.labels import LabelsError
from fineweb_mask.tasks.train_quality import check_training, split, train_quality, unique

GOOD, BAD = "theorem proof integer lemma careful".split(), "casino pills cheap bonus click".split()


@pytest.fixture
def settings(tmp_path):
    dice = random.Random(0)
    scores = [dice.randrange(6) for _ in range(120)]
    texts = [f"page {row} " + " ".join(dice.choices(GOOD if s >= 3 else BAD, k=12)) for row, s in enumerate(scores)]
    table = pa.table({"text": texts + [text.upper() for text in texts], "score": scores * 2})
    pq.write_table(table, tmp_path / "labels.parquet")
    return TrainQualitySettings(labels=LabelSettings(path=str(tmp_path / "labels.parquet")))


def test_a_model_and_what_it_reaches_are_written_the_same_bytes_anywhere(settings, tmp_path):
    output, other = tmp_path / "not" / "there" / "model.bin", tmp_path / "other" / "model.bin"
    metrics = train_quality(output, settings)
    assert metrics == train_quality(other, settings)
    assert sorted(path.name for path in output.parent.iterdir()) == ["model.bin", "model.metrics.json"]
    for path in output.parent.iterdir():
        assert path.read_bytes() == (other.parent / path.name).read_bytes(), path.name
    assert json.loads(output.with_suffix(".metrics.json").read_text()) == metrics.model_dump()
    assert (metrics.labels, metrics.repeated, metrics.train, metrics.held_out) == (240, 120, 96, 24)
    assert metrics.roc_auc > 0.95


def test_equal_texts_count_once_and_contradictions_not_at_all():
    texts = ["A  b", "a b", "c", "d", "D ", "e"]
    assert unique(texts, np.array([True, True, False, True, False, True])).tolist() == [0, 2, 5]


def test_the_split_keeps_the_share_of_positives_and_follows_the_seed():
    positive = np.arange(1000) % 5 == 0
    train, held_out = split(positive, 0.2, 0)
    assert sorted([*train, *held_out]) == list(range(1000))
    assert positive[train].mean() == positive[held_out].mean() == 0.2
    assert held_out.tolist() == split(positive, 0.2, 0)[1].tolist() != split(positive, 0.2, 1)[1].tolist()


@pytest.mark.parametrize(("positives", "held_out"), [(9, 0.2), (12, 0.01), (12, 0.99)])
def test_too_few_to_split(positives, held_out):
    with pytest.raises(LabelsError, match=rf"too few labels.*{positives} positive and {100 - positives} negative"):
        split(np.arange(100) < positives, held_out, 0)


def test_what_is_no_model_s_name_or_is_there_is_refused(settings, tmp_path):
    with pytest.raises(LabelsError, match=r"must end in \.bin, received 'model'"):
        check_training(tmp_path / "model", settings)
    (tmp_path / "model.metrics.json").write_text("mine")
    with pytest.raises(OutputError, match="add --force to replace it"):
        check_training(tmp_path / "model.bin", settings)
    check_training(tmp_path / "model.bin", settings, force=True)
