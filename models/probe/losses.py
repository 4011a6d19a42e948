"""Learn from models' losses which documents to take: PreSelect.

Source of PreSelect: Shum et al. 2025, "Predictive data selection: the data that predicts is the data that teaches"
(arXiv 2503.00808) and its published code (hkust-nlp/PreSelect), in which equal losses count for nothing. There, and
here by `fineweb-mask train-quality`, a fastText classifier then learns the documents of the highest scores (there,
those that order all pairs) against those of the lowest, for documents on which no losses were measured.
"""

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
