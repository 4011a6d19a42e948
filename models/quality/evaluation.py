"""Measure how well a classifier's probabilities agree with held-out labels."""

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel
from sklearn.metrics import average_precision_score, precision_recall_fscore_support, roc_auc_score

BINS = 10  # bars in the reliability diagram
DECISION = 0.5  # probability at which a document counts as positive


class ReliabilityBin(BaseModel):
    """Documents with a score in [low, high)."""

    low: float
    high: float
    documents: int
    mean_score: float
    positive_share: float


class Evaluation(BaseModel):
    """Metrics of a classifier on held-out labels."""

    documents: int
    positive: int
    precision: float
    recall: float
    f1: float
    roc_auc: float
    average_precision: float
    calibration_error: float
    reliability: list[ReliabilityBin]


def evaluate(scores: NDArray[np.float32], positive: NDArray[np.bool_]) -> Evaluation:
    """Measure scores in [0, 1], (n,) probabilities of the positive label, against labels (n,) of both kinds.

    Precision, recall and F1 are for the decision at 0.5. The calibration error is the distance between mean score and
    share of positives, averaged over ten equal bins weighted by their documents (ECE; Naeini et al., AAAI 2015).

    Examples
    --------
    >>> found = evaluate(np.array([0.9, 0.6, 0.2], dtype=np.float32), np.array([True, False, False]))
    >>> found.precision, found.recall, found.roc_auc, round(found.calibration_error, 3)
    (0.5, 1.0, 1.0, 0.3)
    """
    precision, recall, f1, _ = precision_recall_fscore_support(
        positive, scores >= DECISION, average="binary", zero_division=0.0
    )
    bins = reliability_bins(scores, positive)
    distance = sum(one.documents * abs(one.mean_score - one.positive_share) for one in bins)
    return Evaluation(
        documents=len(scores),
        positive=int(positive.sum()),
        precision=float(precision),
        recall=float(recall),
        f1=float(f1),
        roc_auc=float(roc_auc_score(positive, scores)),
        average_precision=float(average_precision_score(positive, scores)),
        calibration_error=distance / len(scores),
        reliability=bins,
    )


def reliability_bins(scores: NDArray[np.float32], positive: NDArray[np.bool_]) -> list[ReliabilityBin]:
    """Return the bins, ascending, that hold some of the scores (n,); a score of 1 is in the last bin."""
    bin_of = np.digitize(scores, np.arange(1, BINS) / BINS)
    return [
        ReliabilityBin(
            low=index / BINS,
            high=(index + 1) / BINS,
            documents=int(inside.sum()),
            mean_score=float(scores[inside].mean(dtype=np.float64)),
            positive_share=float(positive[inside].mean()),
        )
        for index in range(BINS)
        for inside in [bin_of == index]
        if inside.any()
    ]
