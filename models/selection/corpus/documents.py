"""Hold the documents of one part of a corpus and their groups, and name the arrays that are written of a selection.

Importing it does not import torch.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import reduce
from typing import Any, NamedTuple, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

TIE_DIGITS = (
    1 << 12
)  # a random key's digits from here on order documents of equal gain: the sample's keys are all small
SIGN_DIGITS = 1 << 24  # a random key's digits from here on give its sign


Arrays = Mapping[str, NDArray[Any]]
"""Named arrays: what is written of an object, exactly as it is."""

Tree = Mapping[str, Any]
"""Arrays, numbers, trees, and objects whose `arrays` returns a tree, by name."""

Made = TypeVar("Made")


class Documents(NamedTuple):
    """Documents of one part of a corpus."""

    vectors: NDArray[np.floating[Any]]  # (n, d) float16 or float32
    quality: NDArray[np.float32]  # (n,)
    lots: NDArray[np.float64]  # (n,) random keys, uniform from 0 to 1, which belong to the documents
    tokens: NDArray[np.int64] | None = None  # (n,), with a budget of tokens
    worth: NDArray[np.float32] | None = (
        None  # (n,) marginal gain by a rule, by tokens per token, once a pass measured it
    )
    charges: NDArray[np.float32] | None = (
        None  # (n,) penalties, less which `worth` is, once near-duplicates are looked for
    )
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
        """What orders documents of equal gain: lower numbers come first, (n,)."""
        return self.lots * TIE_DIGITS % 1.0

    @property
    def signs(self) -> NDArray[np.float32]:
        """Random signs, (n,)."""
        return np.where(self.lots * SIGN_DIGITS % 1.0 < 0.5, np.float32(-1), np.float32(1))


def flat(tree: Tree, prefix: str = "") -> Arrays:
    """Return the arrays of a tree, each under the names on the way to it.

    >>> list(flat({"a": {"b": np.zeros(1), "c": {"d": 1.5}}}))
    ['a/b', 'a/c/d']
    """
    found: dict[str, NDArray[Any]] = {}
    for name, branch in tree.items():
        part = branch.arrays() if hasattr(branch, "arrays") else branch
        found |= flat(part, f"{prefix}{name}/") if isinstance(part, Mapping) else {prefix + name: np.asarray(part)}
    return found


def nested(arrays: Arrays) -> dict[str, Any]:
    """Return the tree that `flat` was given; branches without an array are missing.

    >>> nested({"a/b": 1, "a/c/d": 2})
    {'a': {'b': 1, 'c': {'d': 2}}}
    """
    tree: dict[str, Any] = {}
    for name, array in arrays.items():
        *branches, leaf = name.split("/")
        reduce(lambda branch, part: branch.setdefault(part, {}), branches, tree)[leaf] = array
    return tree


def numbered(branches: Mapping[str, Any]) -> Tree:
    """Return branches of any names under their numbers, and the names.

    >>> list(numbered({"a/b": [1], "": [2]}))
    ['names', '0', '1']
    """
    return {
        "names": np.array(list(branches), dtype=np.str_),
        **{str(number): branch for number, branch in enumerate(branches.values())},
    }


def by_name(tree: Tree, make: Callable[[Any], Made]) -> dict[str, Made]:
    """Make something of each branch that `numbered` was given, under its name."""
    return {name: make(tree[str(number)]) for number, name in enumerate(tree["names"].tolist())}


ALL = ""
"""The name of the only group, where there are none."""


def inside(documents: Documents, names: Mapping[str, object]) -> Iterator[tuple[str, NDArray[np.bool_]]]:
    """Yield the groups of these names, and which documents, (n,), are in each."""
    for name in names:
        yield (
            name,
            np.ones(len(documents.quality), dtype=bool) if documents.groups is None else documents.groups == name,
        )


def repeats(documents: Documents, times: Mapping[str, float]) -> NDArray[np.int64]:
    """Return how often selected documents are used, (n,): a group's number, at random rounded down or up.

    >>> part = Documents(np.eye(2), np.ones(2), np.array([0.1, 0.6]), groups=np.array(["a", "b"]))
    >>> repeats(part, {"a": 3.0, "b": 1.0}).tolist()
    [3, 1]
    """
    found = np.ones(len(documents.quality), dtype=np.int64)
    for name, own in inside(documents, times):
        found[own] = math.floor(times[name]) + (documents.ties[own] < times[name] % 1.0)
    return found


def sampled(part: Documents, rate: float) -> Documents:
    """Return the documents of a part that are in the sample, each with probability `rate`: those of low random keys.

    >>> part = Documents(np.eye(4), np.ones(4), np.array([0.1, 0.6, 0.3, 0.9]))
    >>> len(sampled(part, 0.5).quality)
    2
    """
    return part.take(part.lots < rate)
