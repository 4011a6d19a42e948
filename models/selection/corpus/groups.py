"""Divide a budget among groups of documents, each of which then has a threshold of its own."""

import math
from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from fineweb_mask.models.selection.corpus.documents import Documents
from fineweb_mask.models.selection.inputs import SelectionInputError

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
