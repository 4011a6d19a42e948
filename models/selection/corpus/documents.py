"""Hold what a selection over a corpus reads of one part of it, and draw its sample."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

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

    def take(self, index: NDArray[Any]) -> Self:
        """Return some of the documents, by position (b,) or mask (n,)."""
        return self._replace(
            vectors=self.vectors[index],
            quality=self.quality[index],
            lots=self.lots[index],
            tokens=None if self.tokens is None else self.tokens[index],
        )

    @classmethod
    def concatenate(cls, parts: "Sequence[Documents]") -> "Documents":
        """Put parts one after the other."""
        tokens = [part.tokens for part in parts if part.tokens is not None]
        return cls(
            np.concatenate([part.vectors for part in parts]),
            np.concatenate([part.quality for part in parts]),
            np.concatenate([part.lots for part in parts]),
            np.concatenate(tokens) if tokens else None,
        )

    def arrays(self) -> Arrays:
        """Return what `of_arrays` makes the documents of."""
        found = {"vectors": self.vectors, "quality": self.quality, "lots": self.lots}
        return found if self.tokens is None else found | {"tokens": self.tokens}

    @classmethod
    def of_arrays(cls, arrays: Arrays) -> Self:
        """Make the documents of their arrays."""
        return cls(arrays["vectors"], arrays["quality"], arrays["lots"], arrays.get("tokens"))

    @property
    def costs(self) -> NDArray[np.int64]:
        """What documents take of the budget: their tokens, or 1 each, (n,)."""
        return np.ones(len(self.quality), dtype=np.int64) if self.tokens is None else self.tokens

    @property
    def ties(self) -> NDArray[np.float64]:
        """What orders documents of equal worth: lower numbers come first, (n,)."""
        return ties_of(self.lots)

    @property
    def signs(self) -> NDArray[np.float32]:
        """Random signs, (n,)."""
        return np.where(self.lots * SIGN_DIGITS % 1.0 < 0.5, np.float32(-1), np.float32(1))


def ties_of(lots: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return what orders documents of equal worth, by their lots (n,): lower numbers come first."""
    return lots * TIE_DIGITS % 1.0


def prefixed(prefix: str, arrays: Arrays) -> Arrays:
    """Put a prefix before the names of arrays.

    >>> list(prefixed("a", {"b": np.zeros(1)}))
    ['a/b']
    """
    return {f"{prefix}/{name}": array for name, array in arrays.items()}


def without_prefix(prefix: str, arrays: Arrays) -> Arrays:
    """Return the arrays whose names have a prefix, without it."""
    return {name.removeprefix(f"{prefix}/"): array for name, array in arrays.items() if name.startswith(f"{prefix}/")}
