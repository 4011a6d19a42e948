"""Training: measured on texts that it has not seen, not repeated for nothing, the same bytes every time."""

import json
import random

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fineweb_mask.models.documents import content_hash
from fineweb_mask.models.settings.quality import FastTextTrainingSettings, LabelSettings, TrainQualitySettings
from fineweb_mask.tasks.fit.train_quality import (
    TrainedMetrics,
    TrainQualityJob,
    remove_unfinished,
    split,
    train_quality,
    unique,
)
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
    trained = train_quality(TrainQualityJob.of(output, settings), steps.append)
    metrics = TrainedMetrics.model_validate(trained.details)
    assert sorted(path.name for path in output.parent.iterdir()) == [
        "model.bin",
        "model.manifest.json",
        "model.metrics.json",
        "model.reliability.png",
    ]
    assert json.loads((output.parent / "model.metrics.json").read_text()) == metrics.model_dump()
    assert (metrics.labels, metrics.train, metrics.held_out.documents) == (120, 96, 24)
    assert metrics.held_out.roc_auc > 0.95
    assert (output.parent / "model.reliability.png").read_bytes().startswith(b"\x89PNG")
    assert steps == ["reading the labels", "training on 96 texts", "measuring on 24 texts"]


def test_equal_labels_and_settings_give_equal_bytes_anywhere_and_are_not_trained_again(
    settings, labels, output, tmp_path
):
    def job(place=output, **changes):
        return TrainQualityJob.of(place, settings.model_copy(update=changes))

    first, other = train_quality(job()), tmp_path / "other" / "model.bin"
    train_quality(job(other))
    for path in output.parent.iterdir():
        assert path.read_bytes() == (other.parent / path.name).read_bytes(), path.name
    moved = tmp_path / "moved.parquet"
    moved.write_bytes((tmp_path / "labels.parquet").read_bytes())
    again = train_quality(job(labels=labels.model_copy(update={"path": str(moved)})))
    assert (first.cached, again.cached) == (False, True)
    assert TrainedMetrics.model_validate(again.details) == TrainedMetrics.model_validate(first.details)
    for change in (
        {"held_out": 0.3},
        {"split_seed": 1},
        {"lowercase": True},
        {"training": TRAINING.model_copy(update={"seed": 1})},
        {"labels": labels.model_copy(update={"threshold": 2.0})},
    ):
        assert job(**change).current() is None
    pq.write_table(pq.read_table(labels.path).slice(0, 100), labels.path)
    assert job().current() is None
    assert job(labels=labels.model_copy(update={"path": str(moved)})).current() is not None
    output.unlink()
    assert job(labels=labels.model_copy(update={"path": str(moved)})).current() is None


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
    metrics = TrainedMetrics.model_validate(train_quality(TrainQualityJob.of(output, settings)).details)
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


def test_the_output_must_be_a_model_s_name(settings, tmp_path):
    with pytest.raises(LabelsError, match=r"must end in \.bin, received 'model'"):
        TrainQualityJob.of(tmp_path / "model", settings)
    (tmp_path / "folder.bin").mkdir()
    with pytest.raises(OutputError, match="is a folder or a device: name a file"):
        TrainQualityJob.of(tmp_path / "folder.bin", settings)


def test_files_that_no_training_wrote_are_kept(settings, output):
    output.parent.mkdir(parents=True)
    files = {suffix: output.with_suffix(suffix) for suffix in (".bin", ".metrics.json", ".manifest.json")}
    for suffix, mine in files.items():
        mine.write_text("mine")
        with pytest.raises(OutputError, match=rf"{suffix} exists: add --force to replace it"):
            TrainQualityJob.of(output, settings)
        assert mine.read_text() == "mine"
        mine.unlink()
    for mine in files.values():
        mine.write_text("mine")
    train_quality(TrainQualityJob.of(output, settings, force=True))
    TrainQualityJob.of(output, settings)
    for suffix in (".bin", ".metrics.json"):
        written = files[suffix].read_bytes()
        files[suffix].write_text("mine again")
        with pytest.raises(OutputError, match=rf"{suffix} exists"):
            TrainQualityJob.of(output, settings.model_copy(update={"split_seed": 1}))
        files[suffix].write_bytes(written)


@pytest.mark.long
def test_a_training_that_is_killed_is_begun_again_and_what_it_left_removed(settings, output, monkeypatch):
    def killed(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("fineweb_mask.tasks.fit.train_quality.write_manifest", killed)
    with pytest.raises(KeyboardInterrupt):
        train_quality(TrainQualityJob.of(output, settings))
    assert output.is_file()
    monkeypatch.undo()
    mine = output.with_name(f".other.bin.{'0' * 32}.partial")
    mine.write_text("of another model")
    output.with_name(f".model.metrics.json.{'0' * 32}.partial").write_text("left")
    remove_unfinished(output)
    assert not train_quality(TrainQualityJob.of(output, settings)).cached
    assert [path for path in output.parent.iterdir() if path.name.startswith(".")] == [mine]
