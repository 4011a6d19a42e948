"""Hold what a selection over a corpus reads of one part of it, and draw its sample."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

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
