"""Measure how much better a selection from ours and theirs predicts held-out documents than one from ours alone.

Both selections are of one size, and models of n-grams read as many tokens of each (models/witness). Documents of ours
and of theirs are held out; what is too much like one of them is read by no model.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fineweb_mask.models.analysis.vectors import nearest_cosines
from fineweb_mask.models.ledger.price import Documents, Joined
from fineweb_mask.models.witness.kneser_ney import KneserNey
from fineweb_mask.models.witness.overlap import sharing_documents
from fineweb_mask.models.witness.paired import HeldOut
from fineweb_mask.models.witness.tokens import PackedTokens, measured_starts, train_tokenizer
from fineweb_mask.models.witness.witness import FEWEST_TOKENS, bits_of

SETS = ("ours", "theirs")
HELD_OUT, HELD_OUT_SHARE = 500, 0.1
"""Documents of ours, and of theirs, that are held out, and the share of each that these are at most."""
HELD_OUT_TOKENS, VOCABULARY, TOKENIZER_TEXTS = 512, 8_192, 1_000
MOST_TOKENS = 300_000
"""Of a selection that are read."""


class Teaching:
    """Documents of which some are held out.

    Parameters
    ----------
    ours, theirs
        What may be selected: n and m documents.
    texts
        The texts of ours, and then of theirs, (n + m,).
    threshold
        The least cosine of near-duplicates.
    """

    def __init__(
        self, ours: Documents, theirs: Documents, texts: Sequence[str], threshold: float, seed: int = 0
    ) -> None:
        dice = np.random.default_rng(seed)
        sizes, first = (len(ours.quality), len(theirs.quality)), 0
        self._n = sizes[0]
        tokenizer = train_tokenizer(texts[:: max(1, len(texts) // TOKENIZER_TEXTS)], VOCABULARY)
        self._vocabulary = tokenizer.get_vocab_size()
        self._pool = PackedTokens.of(texts, tokenizer)
        self._left_out = np.zeros(len(texts), dtype=np.bool_)
        self._held = list[tuple[PackedTokens, HeldOut]]()
        vectors = np.concatenate([ours.vectors, theirs.vectors])
        for size in sizes:
            chosen = first + np.sort(dice.choice(size, min(HELD_OUT, int(HELD_OUT_SHARE * size)), replace=False))
            tokens, counts = measured_starts([texts[place] for place in chosen], tokenizer, HELD_OUT_TOKENS)
            self._held.append((tokens, HeldOut(counts, np.arange(len(counts)))))
            near = nearest_cosines(vectors, vectors[chosen]) >= threshold
            self._left_out |= near | sharing_documents(self._pool, tokens)
            self._left_out[chosen] = True
            first += size
        self._order = dice.permutation(len(texts))

    def can_tell(self, share: float) -> bool:
        """Return whether a selection of a share of ours has enough tokens, and there is something to predict."""
        tokens = share * int(self._pool.lengths[: self._n].sum())
        return tokens >= FEWEST_TOKENS and all(len(held.sizes) for _, held in self._held)

    def measure(self, joined: Joined, ours: NDArray[np.int64], theirs: NDArray[np.int64]) -> list[tuple[float, float]]:
        """Return by which share the loss on held-out documents of ours, and of theirs, is lower, with its error."""
        places = np.concatenate([ours, self._n + theirs])
        arms = [ours[joined.alone], places[joined.same_size]]
        arms = [self._order[np.isin(self._order, arm[~self._left_out[arm]])] for arm in arms]
        tokens = min(MOST_TOKENS, *(int(self._pool.lengths[arm].sum()) for arm in arms))
        models = [KneserNey(*self._pool.take(arm, tokens), vocabulary=self._vocabulary) for arm in arms]
        found = list[tuple[float, float]]()
        for held, sample in self._held:
            alone, both = (bits_of(model, held) for model in models)
            loss = float(sample.losses(alone))
            found.append((float(sample.losses(alone - both)) / loss, sample.error(alone - both) / loss))
        return found
