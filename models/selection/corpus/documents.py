"""Hold what a selection over a corpus reads of one part of it: documents, their groups, and sums over them."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from fineweb_mask.models.selection.inputs import SelectionInputError, checked_features
from fineweb_mask.models.selection.rows import Standard

TIE_DIGITS = 1 << 12  # a lot's digits from here on order documents of equal worth: the sample's lots are all small
SIGN_DIGITS = 1 << 24  # a lot's digits from here on give its sign


Arrays = Mapping[str, NDArray[Any]]
"""Named arrays: what is written of an object, exactly as it is."""


class Documents(NamedTuple):
    """Documents of one part of a corpus."""

    vectors: NDArray[np.floating[Any]]  # (n, d) float16 or float32
    quality: NDArray[np.float32]  # (n,)
    lots: NDArray[np.float64]  # (n,) uniform random numbers from 0 to 1, which belong to the documents
    tokens: NDArray[np.int64] | None = None  # (n,), with a budget of tokens
    worth: NDArray[np.float32] | None = None  # (n,) by a rule, once a pass measured it
    charges: NDArray[np.float32] | None = None  # (n,) of the worth, once near-duplicates are charged for
    groups: NDArray[np.str_] | None = None  # (n,), with budgets by group

    def take(self, index: NDArray[Any]) -> Self:
        """Return some of the documents, by position (b,) or mask (n,)."""
        return self._replace(**{name: array[index] for name, array in self.arrays().items()})

    @classmethod
    def concatenate(cls, parts: "Sequence[Documents]") -> "Documents":
        """Put parts one after the other."""
        arrays = [part.arrays() for part in parts]
        return cls(**{name: np.concatenate([one[name] for one in arrays]) for name in arrays[0]})

    def arrays(self) -> Arrays:
        """Return what `of_arrays` makes the documents of."""
        return {name: array for name, array in self._asdict().items() if array is not None}

    @classmethod
    def of_arrays(cls, arrays: Arrays) -> Self:
        """Make the documents of their arrays."""
        return cls(**{name: arrays[name] for name in cls._fields if name in arrays})

    @property
    def costs(self) -> NDArray[np.int64]:
        """What documents take of the budget: their tokens, or 1 each, (n,)."""
        return np.ones(len(self.quality), dtype=np.int64) if self.tokens is None else self.tokens

    @property
    def ties(self) -> NDArray[np.float64]:
        """What orders documents of equal worth: lower numbers come first, (n,)."""
        return self.lots * TIE_DIGITS % 1.0

    @property
    def signs(self) -> NDArray[np.float32]:
        """Random signs, (n,)."""
        return np.where(self.lots * SIGN_DIGITS % 1.0 < 0.5, np.float32(-1), np.float32(1))


def prefixed(prefix: str, arrays: Arrays) -> Arrays:
    """Put a prefix before the names of arrays.

    >>> list(prefixed("a", {"b": np.zeros(1)}))
    ['a/b']
    """
    return {f"{prefix}/{name}": array for name, array in arrays.items()}


def without_prefix(prefix: str, arrays: Arrays) -> Arrays:
    """Return the arrays whose names have a prefix, without it."""
    return {name.removeprefix(f"{prefix}/"): array for name, array in arrays.items() if name.startswith(f"{prefix}/")}


def named(arrays: Mapping[str, ArrayLike]) -> Arrays:
    """Return arrays of any names under their numbers, and the names.

    >>> list(named({"a/b": [1], "": [2]}))
    ['names', '0', '1']
    """
    numbered = {str(number): np.asarray(array) for number, array in enumerate(arrays.values())}
    return {"names": np.array(list(arrays), dtype=np.str_), **numbered}


def by_name(arrays: Arrays) -> Iterator[tuple[str, NDArray[Any]]]:
    """Yield the names and the arrays that `named` was given, those of one dimension or none."""
    for number, name in enumerate(arrays["names"].tolist()):
        yield name, arrays[str(number)]


ALL = ""
"""The name of the only group, where there are none."""


def inside(documents: Documents, names: Mapping[str, object]) -> Iterator[tuple[str, NDArray[np.bool_]]]:
    """Yield the groups of these names, and which documents, (n,), are in each."""
    for name in names:
        yield (
            name,
            np.ones(len(documents.quality), dtype=bool) if documents.groups is None else documents.groups == name,
        )


def group_budgets(shares: str | Mapping[str, float], budget: int, costs: Mapping[str, int]) -> dict[str, int]:
    """Divide a budget of documents, or tokens, among groups: each as much as it has at most, if it is not repeated.

    Parameters
    ----------
    shares
        "equal", "proportional", or the share of each group.
    budget
        Documents or tokens of all groups.
    costs
        What all documents of each group cost together.

    Raises
    ------
    SelectionInputError
        If a group that has a share has no documents.

    Examples
    --------
    >>> group_budgets("equal", 10, {"a": 100, "b": 4})
    {'a': 5, 'b': 5}
    >>> group_budgets("proportional", 10, {"a": 70, "b": 30})
    {'a': 7, 'b': 3}
    """
    if isinstance(shares, Mapping):
        if missing := sorted(set(shares) - set(costs)):
            raise SelectionInputError(
                f"groups.shares: no document is in {', '.join(map(repr, missing))}; the groups are "
                f"{', '.join(map(repr, sorted(costs)[:20]))}: correct the names, or leave them out"
            )
        parts = {name: shares[name] for name in sorted(shares)}
    else:
        total = sum(costs.values())
        parts = {name: 1 / len(costs) if shares == "equal" else costs[name] / total for name in sorted(costs)}
    exact = {name: share * budget for name, share in parts.items()}
    found = {name: math.floor(share) for name, share in exact.items()}
    rest = round(sum(exact.values())) - sum(found.values())
    for name in sorted(found, key=lambda name: (found[name] - exact[name], name))[:rest]:
        found[name] += 1  # those with the largest remainders
    return {name: share for name, share in found.items() if share}


def repeats(documents: Documents, times: Mapping[str, float]) -> NDArray[np.int64]:
    """Return how often selected documents are used, (n,): a group's number, by lot one of the two next to it.

    >>> part = Documents(np.eye(2), np.ones(2), np.array([0.1, 0.6]), groups=np.array(["a", "b"]))
    >>> repeats(part, {"a": 3.0, "b": 1.0}).tolist()
    [3, 1]
    """
    found = np.ones(len(documents.quality), dtype=np.int64)
    for name, own in inside(documents, times):
        found[own] = math.floor(times[name]) + (documents.ties[own] < times[name] % 1.0)
    return found


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
