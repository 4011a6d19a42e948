"""Hold the documents of one part of a corpus, and name the arrays that are written of a selection.

Importing it does not import torch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass
from functools import reduce
from types import NoneType
from typing import Any, NamedTuple, Self, get_args, get_origin, get_type_hints

import numpy as np
from numpy.typing import NDArray

# A random key's digits from here on order documents of equal gain: the sample's keys are all small.
TIE_DIGITS = 1 << 12


Arrays = Mapping[str, NDArray[Any]]
"""Named arrays: what is written of an object, exactly as it is."""

Tree = Mapping[str, Any]
"""Arrays, numbers, trees, and named tuples or dataclasses of such, by name."""

NUMBERS = {int, float}


class Documents(NamedTuple):
    """Documents of one part of a corpus."""

    vectors: NDArray[np.floating[Any]]  # (n, d) float16 or float32
    quality: NDArray[np.float32]  # (n,)
    lots: NDArray[np.float64]  # (n,) random keys, uniform from 0 to 1, which belong to the documents
    tokens: NDArray[np.int64] | None = None  # (n,), with a budget of tokens
    worth: NDArray[np.float32] | None = None  # (n,) gain by a rule, by tokens per token, once a pass measured it
    charges: NDArray[np.float32] | None = None  # (n,) penalties, less which `worth` is, once near-duplicates are found

    def take(self, index: NDArray[Any]) -> Self:
        """Return some of the documents, by position (b,) or mask (n,)."""
        return self._replace(**{name: array[index] for name, array in tree_of(self).items()})

    @classmethod
    def concatenate(cls, parts: "Sequence[Documents]") -> "Documents":
        """Put parts one after the other."""
        return cls(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in tree_of(parts[0])})

    @property
    def costs(self) -> NDArray[np.int64]:
        """What documents take of the budget: their tokens, or 1 each, (n,)."""
        return np.ones(len(self.quality), dtype=np.int64) if self.tokens is None else self.tokens

    @property
    def ties(self) -> NDArray[np.float64]:
        """What orders documents of equal gain: lower numbers come first, (n,)."""
        return self.lots * TIE_DIGITS % 1.0


def flat(tree: Tree, prefix: str = "") -> Arrays:
    """Return the arrays of a tree, each under the names on the way to it.

    >>> list(flat({"a": {"b": np.zeros(1), "c": {"d": 1.5}}}))
    ['a/b', 'a/c/d']
    """
    found: dict[str, NDArray[Any]] = {}
    for name, branch in tree.items():
        if _hints(type(branch)):
            found |= flat(tree_of(branch), f"{prefix}{name}/")
        elif isinstance(branch, Mapping):
            found |= flat(branch, f"{prefix}{name}/")
        else:
            found[prefix + name] = np.asarray(branch.cpu() if hasattr(branch, "cpu") else branch)
    return found


def nested(arrays: Arrays) -> dict[str, Any]:
    """Return the tree that `flat` was given, with trees for its objects; branches without an array are missing.

    >>> nested({"a/b": 1, "a/c/d": 2})
    {'a': {'b': 1, 'c': {'d': 2}}}
    """
    tree: dict[str, Any] = {}
    for name, array in arrays.items():
        *branches, leaf = name.split("/")
        reduce(lambda branch, part: branch.setdefault(part, {}), branches, tree)[leaf] = array
    return tree


def numbered(branches: Mapping[str, Any]) -> Tree:
    """Return branches of any names under their numbers, or numbers as one array, and the names.

    >>> list(numbered({"a/b": [1], "": [2]}))
    ['names', '0', '1']
    """
    found = {str(number): branch for number, branch in enumerate(branches.values()) if branch is not None}
    if found and all(isinstance(branch, int | float) for branch in found.values()):
        found = {"numbers": np.array(list(branches.values()), dtype=np.float64)}
    return {"names": np.array(list(branches), dtype=np.str_), **found}


def tree_of(value: object) -> Tree:
    """Return the fields of a named tuple or a dataclass by name, without those that are None; its numbers as one."""
    hints = _hints(type(value))
    fields = {name: getattr(value, name) for name, hint in hints.items() if hint not in NUMBERS}
    found = {name: numbered(field) if isinstance(field, Mapping) else field for name, field in fields.items()}
    if numbers := [getattr(value, name) for name in hints if name not in fields]:
        found["numbers"] = np.array(numbers, dtype=np.float64)
    return {name: field for name, field in found.items() if field is not None}


def made(kind: Any, tree: Any, device: Any = "cpu") -> Any:  # noqa: ANN401 - any type, of which it returns an object
    """Make an object of a type, or a mapping of names to such, of the tree that `nested` returns for one.

    >>> place = NamedTuple("place", [("at", float), ("by", Mapping[str, int])])
    >>> made(place, nested(flat({"a": place(0.5, {"x/y": 2})}))["a"])
    place(at=0.5, by={'x/y': 2})
    """
    if NoneType in get_args(kind):
        [kind] = (one for one in get_args(kind) if one is not NoneType)
    if tree is None or get_origin(kind) is np.ndarray:
        return tree
    if kind in NUMBERS:
        return kind(tree)
    if get_origin(kind) is Mapping:
        names, (_, each) = tree["names"].tolist(), get_args(kind)
        branches = tree["numbers"] if "numbers" in tree else [tree.get(str(number)) for number in range(len(names))]
        return {name: made(each, branch, device) for name, branch in zip(names, branches, strict=True)}
    if hints := _hints(kind):
        numbers = iter(tree.get("numbers", ()))
        found = {name: next(numbers) if hint in NUMBERS else tree.get(name) for name, hint in hints.items()}
        return kind(**{name: made(hints[name], field, device) for name, field in found.items()})
    import torch

    return torch.as_tensor(tree, device=device)


def _hints(kind: type) -> dict[str, Any]:
    """Return the types of the fields of named tuples or dataclasses; none of other types."""
    return get_type_hints(kind) if hasattr(kind, "_fields") or is_dataclass(kind) else {}


def sampled(part: Documents, rate: float) -> Documents:
    """Return the documents of a part that are in the sample, each with probability `rate`: those of low random keys.

    >>> part = Documents(np.eye(4), np.ones(4), np.array([0.1, 0.6, 0.3, 0.9]))
    >>> len(sampled(part, 0.5).quality)
    2
    """
    return part.take(part.lots < rate)
