"""Survey a part of a corpus: its sums, and its documents in the random sample that a rule is learned on."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor

from fineweb_mask.models.selection.corpus.documents import Arrays, Documents
from fineweb_mask.models.selection.corpus.groups import inside
from fineweb_mask.models.selection.inputs import checked_features
from fineweb_mask.models.selection.rows import Standard


@dataclass(frozen=True, eq=False)
class Survey:
    """Sums over documents; those of parts add up to those of the corpus.

    The unit rows' sums and sums of squares are (d,) float64.
    """

    documents: int
    tokens: int
    longest: int  # most tokens of a document
    sums: Tensor
    squares: Tensor
    groups: Mapping[str, int]  # what the documents of each group cost

    @classmethod
    def of(cls, part: Documents, device: torch.device) -> Self:
        """Survey a part."""
        rows = checked_features(part.vectors, device)
        sums, squares = (torch.zeros(rows.d, dtype=torch.float64, device=device) for _ in range(2))
        for block in (rows.block(slices) for slices in rows.slices()):
            sums += block.sum(0, dtype=torch.float64)
            squares += block.square().sum(0, dtype=torch.float64)
        tokens, longest = (0, 0) if part.tokens is None else (int(part.tokens.sum()), int(part.tokens.max()))
        costs = {} if part.groups is None else {str(name): 0 for name in np.unique(part.groups)}
        costs = {name: int(part.costs[own].sum()) for name, own in inside(part, costs)}
        return cls(len(part.quality), tokens, longest, sums.cpu(), squares.cpu(), costs)

    @classmethod
    def total(cls, surveys: Sequence[Self]) -> Self:
        """Add up the surveys of parts, in their order."""
        return cls(
            sum(one.documents for one in surveys),
            sum(one.tokens for one in surveys),
            max(one.longest for one in surveys),
            torch.stack([one.sums for one in surveys]).sum(0),
            torch.stack([one.squares for one in surveys]).sum(0),
            dict(sum((Counter(one.groups) for one in surveys), Counter())),
        )

    def arrays(self) -> Arrays:
        """Return what `of_arrays` makes the survey of."""
        counts = np.array([self.documents, self.tokens, self.longest], dtype=np.int64)
        found = {"counts": counts, "sums": self.sums.numpy(), "squares": self.squares.numpy()}
        if self.groups:
            found |= {"groups": np.array(list(self.groups)), "costs": np.array(list(self.groups.values()))}
        return found

    @classmethod
    def of_arrays(cls, arrays: Arrays) -> Self:
        """Make the survey of its arrays."""
        documents, tokens, longest = arrays["counts"].tolist()
        sums, squares = (torch.from_numpy(arrays[name]) for name in ("sums", "squares"))
        groups = (
            dict(zip(arrays["groups"].tolist(), arrays["costs"].tolist(), strict=True)) if "groups" in arrays else {}
        )
        return cls(documents, tokens, longest, sums, squares, groups)

    @property
    def standard(self) -> Standard:
        """The mean and the deviation of every dimension over the corpus."""
        mean = self.sums / self.documents
        return Standard.of(mean, (self.squares / self.documents - mean.square()).clamp(min=0))


def sampled(part: Documents, rate: float) -> Documents:
    """Return the documents of a part that are in the sample, each with probability `rate`: those of the lowest lots.

    >>> part = Documents(np.eye(4), np.ones(4), np.array([0.1, 0.6, 0.3, 0.9]))
    >>> len(sampled(part, 0.5).quality)
    2
    """
    return part.take(part.lots < rate)
