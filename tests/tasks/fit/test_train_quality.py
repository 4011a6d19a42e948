"""Training: measured on texts that it has not seen, the same bytes every time."""

import json
import random

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fineweb_mask.models.documents import content_hash
from fineweb_mask.models.settings.quality import FastTextTrainingSettings, LabelSettings, TrainQualitySettings
from fineweb_mask.tasks.fit.train_quality import check_training, split, train_quality, unique
from fineweb_mask.tasks.outputs import OutputError
from fineweb_mask.tasks.source.labels import Labelled, LabelsError

GOOD, BAD = "theorem proof integer lemma careful".split(), "casino pills cheap bonus click".split()
TRAINING = FastTextTrainingSettings(dimensions=4, buckets=500, epochs=10)


def texts_and_scores(rows=120):
    dice = random.Random(0)
    scores = [dice.randrange(6) for _ in range(rows)]
    texts = [f"page {row} " + " ".join(dice.choices(GOOD if s >= 3 else BAD, k=12)) for row, s in enumerate(scores)]
    return texts, scores


@pytest.fixture
def labels(tmp_path):
    texts, scores = texts_and_scores()
    pq.write_table(pa.table({"text": texts, "score": scores}), tmp_path / "labels.parquet")
    return LabelSettings(path=str(tmp_path / "labels.parquet"))


@pytest.fixture
def settings(labels):
    return TrainQualitySettings(labels=labels, training=TRAINING)


@pytest.fixture
def output(tmp_path):
    return tmp_path / "not" / "there" / "model.bin"


def test_model_metrics_and_plot_are_written_beside_each_other(settings, output):
    steps = []
    metrics = train_quality(output, settings, steps.append)
    assert sorted(path.name for path in output.parent.iterdir()) == [
        "model.bin",
        "model.metrics.json",
        "model.reliability.png",
    ]
    assert json.loads((output.parent / "model.metrics.json").read_text()) == metrics.model_dump()
    assert (metrics.labels, metrics.train, metrics.held_out.documents) == (120, 96, 24)
    assert metrics.held_out.roc_auc > 0.95
    assert (output.parent / "model.reliability.png").read_bytes().startswith(b"\x89PNG")
    assert steps == ["reading the labels", "training on 96 texts", "measuring on 24 texts"]


def test_equal_labels_and_settings_give_equal_bytes_anywhere(settings, output, tmp_path):
    other = tmp_path / "other" / "model.bin"
    assert train_quality(output, settings) == train_quality(other, settings)
    for path in output.parent.iterdir():
        assert path.read_bytes() == (other.parent / path.name).read_bytes(), path.name


def test_equal_texts_count_once_and_contradictions_not_at_all():
    labelled = Labelled(
        ["A  b", "a b", "c", "d", "D ", "e"], np.array([True, True, False, True, False, True]), {"no text": 1}
    )
    unique(labelled)
    assert labelled.texts == ["A  b", "c", "e"]
    assert labelled.positive.tolist() == [True, False, True]
    assert labelled.dropped == {"no text": 1, "same text": 2, "contradicting labels": 1}


def test_no_held_out_text_is_trained_on(settings, labels, output, monkeypatch):
    texts, scores = texts_and_scores()
    pq.write_table(pa.table({"text": texts + [text.upper() for text in texts], "score": scores * 2}), labels.path)
    import fineweb_mask.models.quality.fasttext.scorer as module

    seen, train, score = {}, module.train_fasttext, module.FastTextScorer.score
    monkeypatch.setattr(
        module, "train_fasttext", lambda *given, **how: (seen.update(train=given), train(*given, **how))[1]
    )
    monkeypatch.setattr(module.FastTextScorer, "score", lambda *given: (seen.update(held=given[1]), score(*given))[1])
    metrics = train_quality(output, settings)
    assert metrics.dropped == {"same text": 120}
    trained, held = ({content_hash(text) for text in texts} for texts in (seen["train"][0], seen["held"]))
    assert not trained & held
    assert len(trained) + len(held) == 120


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


def test_the_output_must_be_a_model_s_name(labels, tmp_path):
    with pytest.raises(LabelsError, match=r"must end in \.bin, received 'model'"):
        check_training(tmp_path / "model", labels)
    (tmp_path / "folder.bin").mkdir()
    with pytest.raises(OutputError, match="is a folder or a device: name a file"):
        check_training(tmp_path / "folder.bin", labels)


def test_files_that_are_there_are_kept_unless_it_is_forced(labels, output):
    output.parent.mkdir(parents=True)
    for suffix in (".bin", ".metrics.json", ".reliability.png"):
        mine = output.with_suffix(suffix)
        mine.write_text("mine")
        with pytest.raises(OutputError, match=rf"{suffix} exists: add --force to replace it"):
            check_training(output, labels)
        check_training(output, labels, force=True)
        mine.unlink()


def test_what_a_killed_training_left_is_removed(settings, output):
    output.parent.mkdir(parents=True)
    mine = output.with_name(f".other.bin.{'0' * 32}.partial")
    mine.write_text("of another model")
    output.with_name(f".model.metrics.json.{'0' * 32}.partial").write_text("left")
    train_quality(output, settings)
    assert [path for path in output.parent.iterdir() if path.name.startswith(".")] == [mine]
