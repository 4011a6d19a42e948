"""Judge selections by one half of the held-out documents; the other half shows what was gained by the choice."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from fineweb_mask.models.errors import DataError
from fineweb_mask.models.witness.arms import random_documents
from fineweb_mask.models.witness.kneser_ney import KneserNey
from fineweb_mask.models.witness.tokens import PackedTokens
from fineweb_mask.models.witness.witness import HeldOutTexts, Witness, check_tokens, witness

RANDOM_DRAWS = 4  # whose mean loss every selection's is a share of


class Halves:
    """A corpus, the half of its held-out documents that decides, and the half that is `final`.

    The sets of these names decide. `tokens` of every selection are read.
    """

    def __init__(
        self,
        pool: PackedTokens,
        held_out: Mapping[str, HeldOutTexts],
        names: Sequence[str],
        *,
        vocabulary: int,
        tokens: int,
        seed: int,
    ) -> None:
        check_tokens(tokens, int(pool.lengths.sum()), "the recipe's selection")
        self._pool, self._vocabulary, self._tokens, self._seed = pool, vocabulary, tokens, seed
        orders = {name: np.random.default_rng(0).permutation(len(one.sample.sizes)) for name, one in held_out.items()}
        self.names = list(names)
        self.deciding = {name: held_out[name].take(np.sort(orders[name][::2])) for name in names}
        order = dict.fromkeys([*names, *held_out])  # what the search is for first
        self.final = {name: held_out[name].take(np.sort(orders[name][1::2])) for name in order}
        draws = [self._losses(random_documents(pool.lengths, tokens, seed + draw)) for draw in range(RANDOM_DRAWS)]
        self._random = {name: float(np.mean([one[name] for one in draws])) for name in self.names}

    def loss(self, documents: NDArray[np.integer]) -> float:
        """Return the loss of what a selection teaches, as a share of random documents' loss, the mean over the sets.

        Raises
        ------
        DataError
            If it has fewer tokens than all selections are read of.
        """
        held = int(self._pool.lengths[documents].sum())
        if held < self._tokens:
            raise DataError(
                f"every selection must have {self._tokens:,} tokens, this one has {held:,}: a group has fewer than its "
                "share, or copies are forbidden"
            )
        losses = self._losses(np.random.default_rng(0).permutation(documents))
        return float(np.mean([losses[name] / self._random[name] for name in self.names]))

    def gain(self, selections: Mapping[str, NDArray[np.integer]], quality: NDArray[np.floating]) -> Witness:
        """Return what selections teach of the documents that did not decide; the first is compared with the others."""
        return witness(
            self._pool,
            selections,
            self.final,
            vocabulary=self._vocabulary,
            quality=quality,
            most_tokens=self._tokens,
            best=next(iter(selections)),
            seed=self._seed + 1,
        )

    def _losses(self, documents: NDArray[np.integer]) -> dict[str, float]:
        model = KneserNey(*self._pool.take(documents, self._tokens), vocabulary=self._vocabulary)
        return {name: texts.loss(model) for name, texts in self.deciding.items()}
