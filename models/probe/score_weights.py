"""Learn how to weigh several scores from the losses of small models: Meta-rater.

Source: Zhuang et al. 2025, "Meta-rater: a multi-dimensional data selection method for pre-training language models"
(arXiv 2504.14194) and its published code (opendatalab/Meta-rater), which fits LightGBM; scikit-learn's boosted trees
take its place here.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

FEWEST_MODELS = 10
"""Models without which nothing can be learned from their losses."""


class ScoreWeights(NamedTuple):
    """The weights by which selections are predicted to train the best models."""

    weights: dict[str, float]  # by score; they add up to 1
    predicted: float  # loss, the mean prediction for the weightings that `weights` is the mean of
    rank_correlation: float  # Spearman's, of the losses with predictions by trees that have not seen them


def drawn_weights(names: Sequence[str], count: int, seed: int = 0) -> list[dict[str, float]]:
    """Draw weightings of scores uniformly from those that are positive and add up to 1.

    >>> [one] = drawn_weights(["edu", "fluency"], 1)
    >>> round(sum(one.values()), 12)
    1.0
    """
    drawn = np.random.default_rng(seed).dirichlet(np.ones(len(names)), count)
    return [dict(zip(names, map(float, row), strict=True)) for row in drawn]


def learned_weights(
    weightings: Sequence[Mapping[str, float]],
    losses: ArrayLike,
    *,
    draws: int = 200_000,
    best: int = 128,
    seed: int = 0,
) -> ScoreWeights:
    """Predict the losses from the weightings by boosted trees, and return the mean of the best of many weightings.

    Parameters
    ----------
    weightings
        By which each model's documents were selected, of the same scores.
    losses
        Of the models on held-out text, (models,).
    draws, best
        Weightings that are drawn at random, and how many of the lowest predicted losses are averaged (count).
    seed
        Seed of the draws and of the trees.

    Raises
    ------
    ValueError
        If there are fewer than `FEWEST_MODELS` models, or a loss is not finite.
    """
    from sklearn.ensemble import GradientBoostingRegressor
    from sklearn.model_selection import cross_val_predict

    names, measured = list(weightings[0]) if weightings else [], np.asarray(losses, dtype=np.float64)
    if len(measured) < FEWEST_MODELS or len(measured) != len(weightings):
        raise ValueError(
            f"weights are learned from the losses of at least {FEWEST_MODELS} models, one for each weighting, received "
            f"{len(measured)} losses of {len(weightings)} weightings"
        )
    if not np.isfinite(measured).all():
        raise ValueError("losses must be finite: leave out models without them")
    known = np.array([[one[name] for name in names] for one in weightings])
    trees = GradientBoostingRegressor(  # the published settings
        learning_rate=0.01, n_estimators=1_000, validation_fraction=0.2, n_iter_no_change=5, random_state=seed
    )
    unseen = cross_val_predict(trees, known, measured, cv=min(5, len(measured) // 2))
    tried = np.random.default_rng(seed).dirichlet(np.ones(len(names)), draws)
    predicted = trees.fit(known, measured).predict(tried)
    chosen = np.argsort(predicted, kind="stable")[:best]
    mean = tried[chosen].mean(0)
    return ScoreWeights(
        dict(zip(names, map(float, mean), strict=True)), float(predicted[chosen].mean()), _spearman(unseen, measured)
    )


def _spearman(first: NDArray[np.float64], second: NDArray[np.float64]) -> float:
    """Return the rank correlation; 0 where one does not vary."""
    from scipy.stats import rankdata

    if np.ptp(first) == 0 or np.ptp(second) == 0:
        return 0.0
    return float(np.corrcoef(rankdata(first), rankdata(second))[0, 1])
