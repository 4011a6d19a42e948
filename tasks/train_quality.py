"""Train a quality classifier outside any workspace, and measure it on labels that it has not seen.

Next to `model.bin`, `model.metrics.json` is written; equal labels and settings give equal bytes. Texts that are equal
except for case and white space count once, so none is on both sides of the split.
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from fineweb_mask.models.documents import content_hash
from fineweb_mask.models.quality.fasttext import OPTIONS, FastTextScorer, train_fasttext
from fineweb_mask.models.settings.quality import FastTextScorerSettings, TrainQualitySettings
from fineweb_mask.tasks.outputs import check_output
from fineweb_mask.tasks.source.labels import LabelsError, check_labels, read_labels
from fineweb_mask.tasks.storage.atomic import atomic_write

FEWEST_PER_CLASS = 10
DECISION = 0.5  # probability from which a document counts as positive


class TrainedMetrics(BaseModel):
    """What `model.metrics.json` holds: how many labels there were, and what the model reaches on those held out."""

    model: str
    labels: int
    repeated: int  # equal texts, and all of those with contradicting labels
    train: int
    held_out: int
    held_out_positive: int
    precision: float
    recall: float
    f1: float
    roc_auc: float
    average_precision: float


def check_training(output: Path, settings: TrainQualitySettings, *, force: bool = False) -> None:
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
    check_labels(settings.labels, settings.text_column)
    for path in (output, output.with_suffix(".metrics.json")):
        check_output(path, "--output", [settings.labels.path], replaces=force)


def train_quality(output: Path, settings: TrainQualitySettings) -> TrainedMetrics:
    """Train a fastText classifier, measure it on labels held out, and write both.

    Precision, recall and F1 are those of the decision at a probability of 0.5.

    Raises
    ------
    LabelsError
        If the labels are too few, or all of one class.
    """
    from sklearn.metrics import average_precision_score, precision_recall_fscore_support, roc_auc_score

    all_texts, all_positive = read_labels(settings.labels, settings.text_column)
    rows = unique(all_texts, all_positive)
    texts, positive = np.array(all_texts, dtype=object)[rows], all_positive[rows]
    train, held_out = split(positive, settings.held_out, settings.seed)
    options = OPTIONS | {"epoch": settings.epochs, "seed": settings.seed}
    lowercase = settings.lowercase
    model = train_fasttext(texts[train].tolist(), positive[train].tolist(), lowercase=lowercase, options=options)
    with atomic_write(output) as model_file, atomic_write(output.with_suffix(".metrics.json")) as metrics_file:
        model.save_model(str(model_file))
        scorer = FastTextScorer(FastTextScorerSettings(model=output.name, lowercase=lowercase), str(model_file))
        scores, truth = scorer.score(texts[held_out].tolist()), positive[held_out]
        precision, recall, f1, _ = precision_recall_fscore_support(
            truth, scores >= DECISION, average="binary", zero_division=0.0
        )
        metrics = TrainedMetrics(
            model=output.name,
            labels=len(all_texts),
            repeated=len(all_texts) - len(rows),
            train=len(train),
            held_out=len(held_out),
            held_out_positive=int(truth.sum()),
            precision=precision,
            recall=recall,
            f1=f1,
            roc_auc=roc_auc_score(truth, scores),
            average_precision=average_precision_score(truth, scores),
        )
        metrics_file.write_text(metrics.model_dump_json(indent=2) + "\n", encoding="utf-8")
    return metrics


def unique(texts: list[str], positive: NDArray[np.bool_]) -> NDArray[np.intp]:
    """Return the rows, ascending, of the first of equal texts, and of none of those with contradicting labels."""
    found: dict[bytes, list[int]] = {}
    for row, text in enumerate(texts):
        found.setdefault(content_hash(text), []).append(row)
    return np.array([rows[0] for rows in found.values() if len(set(positive[rows].tolist())) == 1], dtype=np.intp)


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
