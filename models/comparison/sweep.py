"""Select once for each `lamb` from one block: the frontier of quality and diversity (ours).

Everything that does not depend on `lamb` is computed once: unit rows, lists of neighbours, metrics, the range of every
term and which documents are near-duplicates. J is linear in quality and diversity, so every selection can be evaluated
under every `lamb`. Each value gets the best of all, so that along the values quality never falls and diversity never
rises.
"""

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from fineweb_mask.models.runtime.progress import track
from fineweb_mask.models.runtime.threads import same_threads
from fineweb_mask.models.selection.block import BlockSolver, Selection
from fineweb_mask.models.selection.inputs import SelectionInputError
from fineweb_mask.models.selection.ranges import Ranges
from fineweb_mask.models.selection.solvers.problem import History, Solution
from fineweb_mask.models.settings.selection import SelectionSettings


class Swept(NamedTuple):
    """The selection for one `lamb`."""

    lamb: float
    selection: Selection
    seconds: float  # spent on solving, without the proof


class _Found(NamedTuple):
    lamb: float
    solution: Solution
    history: History
    seconds: float
    terms: dict[str, float]

    def value(self, lamb: float) -> float:
        return lamb * self.terms["quality"] + (1 - lamb) * self.terms["diversity"]


@same_threads()
def sweep(
    features: Any,  # noqa: ANN401 - numpy or torch, (n, d)
    quality: Any,  # noqa: ANN401 - numpy or torch, (n,) or (n, columns)
    settings: SelectionSettings,
    lambs: Sequence[float],
    *,
    device: str | torch.device = "cpu",
    tokens: Any = None,  # noqa: ANN401 - numpy or torch, (n,)
    ranges: Ranges | None = None,
) -> list[Swept]:
    """Select once for each weight of quality, with the closed-form solver.

    Parameters
    ----------
    features, quality, settings, device, tokens, ranges
        As for `select`; the settings' `lamb` and `solver` do not matter.
    lambs
        Weights of quality, from 0 to 1.

    Returns
    -------
    list of Swept
        In the order of `lamb`, each value once: quality never falls along it.

    Raises
    ------
    SelectionInputError
        If an input cannot be selected from, or `lambs` is empty or has a value outside 0 to 1.

    Examples
    --------
    >>> import numpy as np
    >>> from fineweb_mask.models.settings.selection import SelectionSettings
    >>> random = np.random.default_rng(0)
    >>> features, quality = random.normal(size=(100, 8)), random.random(100)
    >>> swept = sweep(features, quality, SelectionSettings(select_ratio=0.2), [0, 0.5, 1])
    >>> [one.lamb for one in swept]
    [0, 0.5, 1]
    >>> bool(swept[0].selection.terms["diversity"] > swept[2].selection.terms["diversity"])
    True
    """
    values = sorted(set(lambs))
    if not values or not 0 <= values[0] <= values[-1] <= 1:
        raise SelectionInputError(f"lamb must have at least one value, all from 0 to 1, received {list(lambs)}")
    settings = settings.model_copy(update={"solver": "mean_field"})
    block = BlockSolver(features, quality, settings, device=device, tokens=tokens, ranges=ranges)
    found = [_solve(block, lamb) for lamb in track("values of lamb", values, part=(0, 0.5))]
    return [_best(block, one, found) for one in track("proofs", found, part=(0.5, 1))]


def _solve(block: BlockSolver, lamb: float) -> _Found:
    objective = block.objective(lamb)  # with the ranges, before the clock of the first value starts
    history, started = History(), time.perf_counter()
    solution = block.solve(objective, history)
    return _Found(lamb, solution, history, time.perf_counter() - started, block.terms(solution.mask))


def _best(block: BlockSolver, own: _Found, found: list[_Found]) -> Swept:
    """Prove the best selection found for a value."""
    best = max(found, key=lambda one: one.value(own.lamb))
    if best.value(own.lamb) <= own.value(own.lamb):
        best = own
    selection = block.selection(own.lamb, best.solution, own.history, effort=0.5)
    return Swept(own.lamb, selection, own.seconds)
