"""Draw weights of scores and shares of groups, and predict the best from what selections teach: Meta-rater, RegMix.

Source of Meta-rater: Zhuang et al. 2025, "Meta-rater: a multi-dimensional data selection method for pre-training
language models" (arXiv 2504.14194) and its published code (opendatalab/Meta-rater). Source of RegMix: Liu et al. 2024,
"RegMix: data mixture as regression for language model pre-training" (arXiv 2407.01492) and its published code
(sail-sg/regmix). Both fit LightGBM; scikit-learn's boosted trees take its place here.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fineweb_mask.models.witness.halves import Halves

FEWEST_MODELS = 10
"""Selections without which nothing can be learned from what they teach."""
DRAWS, BEST = 200_000, 128
"""Weightings whose losses are predicted, and how many of the best are averaged."""
STRENGTHS = np.logspace(-1, np.log10(5), 15)
"""Of RegMix's Dirichlet distributions: weak ones give nearly everything to few groups."""


class Learned(NamedTuple):
    """The weighting by which a selection is predicted to teach most."""

    weights: NDArray[np.float64]  # (k,); they add up to 1
    predicted: float  # loss, the mean prediction for the weightings that `weights` is the mean of
    rank_correlation: float  # Spearman's, of the losses with predictions by trees that have not seen them


def standardised(scores: NDArray[np.floating]) -> NDArray[np.floating]:
    """Return scores, (n, k), with mean 0 and deviation 1 each; constant ones are 0."""
    return np.asarray((scores - scores.mean(0)) / np.maximum(scores.std(0), 1e-12))


class ScoreWeights:
    """Selections of so many tokens, of the documents whose weighted scores, (n, k), are the highest."""

    def __init__(self, scores: NDArray[np.floating], lengths: NDArray[np.integer], tokens: int) -> None:
        self._scores = standardised(scores)
        self._lengths, self._tokens = lengths, tokens
        self.own = np.full(scores.shape[1], 1 / scores.shape[1])  # all the same

    def drawn(self, count: int, seed: int) -> NDArray[np.float64]:
        """Draw weightings uniformly from those that are positive and add up to 1: (count, k)."""
        return np.random.default_rng(seed).dirichlet(np.ones(len(self.own)), count)

    def select(self, weights: NDArray[np.float64], seed: int) -> NDArray[np.int64]:  # noqa: ARG002 - nothing is drawn
        """Return the documents of the highest weighted scores."""
        order = np.argsort(-(self._scores @ weights), kind="stable")
        return order[: int(np.searchsorted(np.cumsum(self._lengths[order]), self._tokens)) + 1]


class GroupShares:
    """Random selections of so many tokens, of which each group, below k, has a share; no document is repeated.

    >>> shares = GroupShares(np.array([0, 0, 0, 1]), np.array([40, 30, 20, 10]), tokens=50)
    >>> shares.own.tolist(), shares.drawn(100, seed=0)[:, 1].max().round(6).tolist()
    ([0.9, 0.1], 0.2)
    """

    def __init__(self, groups: NDArray[np.integer], lengths: NDArray[np.integer], tokens: int) -> None:
        held = np.bincount(groups, lengths)
        self._lengths, self._groups, self._before, self._tokens = lengths, groups, np.cumsum(held) - held, tokens
        self._most = held / tokens
        self.own = held / held.sum()  # the corpus's

    def drawn(self, count: int, seed: int) -> NDArray[np.float64]:
        """Draw mixtures around the root of the corpus's shares: (count, k); what a group has not, all others give."""
        random, prior = np.random.default_rng(seed), np.sqrt(self.own) / np.sqrt(self.own).sum()
        each = -(-count // len(STRENGTHS))
        drawn = np.concatenate([random.dirichlet(strength * prior, each) for strength in STRENGTHS])
        given = np.minimum(random.permutation(drawn)[:count], self._most)
        left = self._most - given
        missing = np.maximum(1 - given.sum(1, keepdims=True), 0)
        return np.asarray(given + missing * left / left.sum(1, keepdims=True))

    def select(self, weights: NDArray[np.float64], seed: int) -> NDArray[np.int64]:
        """Return random documents, of each group as many tokens as its share says, to half a document."""
        random = np.random.default_rng(seed)
        order = random.permutation(len(self._lengths))
        order = order[np.argsort(self._groups[order], kind="stable")]
        of, lengths = self._groups[order], self._lengths[order]
        middles = np.cumsum(lengths) - lengths / 2 - self._before[of]  # in its group
        return np.asarray(random.permutation(order[middles < (weights * self._tokens)[of]]), dtype=np.int64)


def searched(
    of: ScoreWeights | GroupShares, halves: Halves, models: int, seed: int
) -> tuple[Learned, NDArray[np.float64], list[float]]:
    """Measure what random weightings teach, and return what is learned of them, the weightings, and their losses."""
    drawn = of.drawn(models, seed)
    losses = halves.losses(lambda number: of.select(drawn[number], seed + number), models)
    return learned_weights(drawn, losses, of.drawn(DRAWS, seed + 1), seed), drawn, losses


def learned_weights(
    weightings: NDArray[np.float64], losses: ArrayLike, tried: NDArray[np.float64], seed: int = 0
) -> Learned:
    """Predict losses, (models,), from weightings, (models, k), by trees, and average the best of others, (draws, k)."""
    from scipy.stats import spearmanr
    from sklearn.ensemble import GradientBoostingRegressor
    from sklearn.model_selection import cross_val_predict

    measured = np.asarray(losses, dtype=np.float64)
    mean, deviation = measured.mean(), measured.std() or 1.0
    scaled = (measured - mean) / deviation  # the trees stop at an improvement that is small in these units
    trees = GradientBoostingRegressor(  # the published settings
        learning_rate=0.01, n_estimators=1_000, validation_fraction=0.2, n_iter_no_change=5, random_state=seed
    )
    unseen = cross_val_predict(trees, weightings, scaled, cv=min(5, len(measured) // 2))
    varies = np.ptp(unseen) > 0 and np.ptp(measured) > 0
    predicted = trees.fit(weightings, scaled).predict(tried)
    best = np.argsort(predicted, kind="stable")[:BEST]
    return Learned(
        weights=tried[best].mean(0),
        predicted=float(mean + deviation * predicted[best].mean()),
        rank_correlation=float(spearmanr(unseen, measured).statistic) if varies else 0.0,
    )
