"""Train a quality classifier outside any workspace, and measure it on labels that it has not seen.

Next to `model.bin`, `model.metrics.json` and `model.reliability.png` are written; equal labels and settings give equal
bytes. Texts that are equal except for case and white space count once, so none is on both sides of the split.
"""

import glob
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from fineweb_mask.models.documents import content_hash
from fineweb_mask.models.quality.evaluation import Evaluation, evaluate
from fineweb_mask.models.settings.quality import FastTextScorerSettings, LabelSettings, TrainQualitySettings
from fineweb_mask.tasks.outputs import check_output
from fineweb_mask.tasks.reporting.charts import Series, lines
from fineweb_mask.tasks.source.labels import Labelled, LabelsError, check_labels, read_labels
from fineweb_mask.tasks.storage.atomic import atomic_write
from fineweb_mask.tasks.workspace.workspace import remove_partial_files

FEWEST_PER_CLASS = 10


class TrainedMetrics(BaseModel):
    """What `model.metrics.json` holds."""

    model: str
    labels: int
    dropped: dict[str, int]
    train: int
    train_positive: int
    held_out: Evaluation


def files_of(output: Path) -> list[Path]:
    """Return the model, its metrics and their chart."""
    return [output.with_suffix(suffix) for suffix in (".bin", ".metrics.json", ".reliability.png")]


def check_training(output: Path, labels: LabelSettings, *, force: bool = False) -> None:
    """Check that the labels are there, and that the files can be written; with `force` they may replace others.

    Raises
    ------
    LabelsError
        If the labels cannot be used, or the output cannot be a model's name.
    OutputError
        If a file would be replaced.
    """
    if output.suffix != ".bin":
        raise LabelsError(f"the model's name must end in .bin, received {output.name!r}")
    check_labels(labels)
    for path in files_of(output):
        check_output(path, "--output", [labels.path], replaces=force)


def train_quality(
    output: Path, settings: TrainQualitySettings, progress: Callable[[str], None] = lambda _: None
) -> TrainedMetrics:
    """Train, measure and write the model.

    Parameters
    ----------
    output
        The model's file.
    settings
        The labels, and how to train.
    progress
        Called with what is done next.

    Raises
    ------
    LabelsError
        If the labels are too few, or all of one class.
    """
    from fineweb_mask.models.quality.fasttext.scorer import FastTextScorer, train_fasttext

    of_a_killed_training = output.absolute().parent.glob(f".{glob.escape(output.stem)}.*.partial")
    remove_partial_files(of_a_killed_training)
    progress("reading the labels")
    labelled = read_labels(settings.labels)
    rows = len(labelled.texts)
    unique(labelled)
    train, held_out = split(labelled.positive, settings.held_out, settings.split_seed)
    texts = np.array(labelled.texts, dtype=object)
    progress(f"training on {len(train):,} texts")
    model = train_fasttext(
        texts[train].tolist(), labelled.positive[train].tolist(), settings.training, lowercase=settings.lowercase
    )
    with ExitStack() as written:
        model_file, metrics_file, chart_file = (written.enter_context(atomic_write(path)) for path in files_of(output))
        model.save_model(str(model_file))
        progress(f"measuring on {len(held_out):,} texts")
        scoring = FastTextScorerSettings(model=output.name, lowercase=settings.lowercase)
        scorer = FastTextScorer(scoring, str(model_file))
        evaluation = evaluate(scorer.score(texts[held_out].tolist()), labelled.positive[held_out])
        metrics = TrainedMetrics(
            model=output.name,
            labels=rows,
            dropped=labelled.dropped,
            train=len(train),
            train_positive=int(labelled.positive[train].sum()),
            held_out=evaluation,
        )
        metrics_file.write_text(metrics.model_dump_json(indent=2) + "\n", encoding="utf-8")
        chart_file.write_bytes(_reliability(evaluation))
    return metrics


def _reliability(evaluation: Evaluation) -> bytes:
    """Draw a reliability diagram: the share of positives against the mean score."""
    title = f"ROC-AUC {evaluation.roc_auc:.4f}, {evaluation.documents:,} held-out texts"
    scores, shares = zip(*((one.mean_score, one.positive_share) for one in evaluation.reliability), strict=True)
    series = [Series("held out", scores, shares), Series("perfectly calibrated", [0, 1], [0, 1])]
    return lines(title, "score (probability of the positive label)", "share of positives", series)[0]


def unique(labelled: Labelled) -> None:
    """Keep the first of equal texts, and none of those with contradicting labels; count the others as dropped."""
    first: dict[bytes, int] = {}
    repeated, contradicted = 0, set()
    for row, text in enumerate(labelled.texts):
        key = content_hash(text)
        if key not in first:
            first[key] = row
        else:
            repeated += 1
            if labelled.positive[row] != labelled.positive[first[key]]:
                contradicted.add(key)
    kept = [row for key, row in first.items() if key not in contradicted]
    labelled.texts = [labelled.texts[row] for row in kept]
    labelled.positive = labelled.positive[kept]
    counts = {"same text": repeated, "contradicting labels": len(contradicted)}
    labelled.dropped |= {reason: rows for reason, rows in counts.items() if rows}


def split(positive: NDArray[np.bool_], held_out: float, seed: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the rows to train on and those held out, with the same share of positives in both.

    Raises
    ------
    LabelsError
        If a class has too few texts.
    """
    from sklearn.model_selection import train_test_split

    counts = {"positive": int(positive.sum()), "negative": int((~positive).sum())}
    fewest = min(counts.values())
    if fewest < FEWEST_PER_CLASS or not 1 <= round(held_out * fewest) < fewest:
        raise LabelsError(
            f"too few labels to train on and to measure: {counts['positive']} positive and {counts['negative']} "
            f"negative texts that differ, at least {FEWEST_PER_CLASS} of each are needed, on both sides of the split "
            f"(held_out {held_out:g}); give more labels or move the threshold"
        )
    train, rest = train_test_split(np.arange(len(positive)), test_size=held_out, stratify=positive, random_state=seed)
    return np.sort(train), np.sort(rest)
