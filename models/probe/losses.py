"""Learn from models' losses which documents to take and how to weigh scores: PreSelect and Meta-rater.

Source of PreSelect: Shum et al. 2025, "Predictive data selection: the data that predicts is the data that teaches"
(arXiv 2503.00808) and its published code (hkust-nlp/PreSelect), in which equal losses count for nothing. There, and
here by `fineweb-mask train-quality`, a fastText classifier then learns the documents of the highest scores (there,
those that order all pairs) against those of the lowest, for documents on which no losses were measured.

Source of Meta-rater: Zhuang et al. 2025, "Meta-rater: a multi-dimensional data selection method for pre-training
language models" (arXiv 2504.14194) and its published code (opendatalab/Meta-rater), which fits LightGBM; scikit-learn's
boosted trees take its place here.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray


def predictive_strength(losses: ArrayLike, ability: ArrayLike) -> NDArray[np.float64]:
    """Return, for each document, the share of pairs of models that its losses order as their ability does.

    Parameters
    ----------
    losses
        Loss of every model on every document, such as bits per character, (models, documents).
    ability
        Ability of every model, larger is better, (models,); pairs of equal ability do not count.

    Returns
    -------
    NDArray
        (documents,) float64, from 0 to 1; equal losses count half.

    Raises
    ------
    ValueError
        If there are no two models of different ability, or a loss is not finite.

    Examples
    --------
    Of three models from weak to strong, the first document orders all pairs, the second only the last pair:

    >>> predictive_strength([[3.0, 2.0], [2.0, 3.0], [1.0, 2.5]], [0.1, 0.2, 0.3]).tolist()
    [1.0, 0.3333333333333333]
    """
    measured, strength = np.asarray(losses, dtype=np.float64), np.asarray(ability, dtype=np.float64)
    if measured.ndim != 2 or measured.shape[0] != len(strength):
        raise ValueError(f"losses must be (models, documents) with {len(strength)} models, received {measured.shape}")
    if not np.isfinite(measured).all() or not np.isfinite(strength).all():
        raise ValueError("losses and ability must be finite: drop documents and models without them")
    weaker, stronger = np.nonzero(strength[:, None] < strength[None])
    if not len(weaker):
        raise ValueError(f"ability must differ between at least two models, received {strength.tolist()}")
    total = np.zeros(measured.shape[1])
    for low, high in zip(weaker, stronger, strict=True):
        total += (measured[high] < measured[low]) + 0.5 * (measured[high] == measured[low])
    found: NDArray[np.float64] = total / len(weaker)
    return found


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
