"""Select once for each `lamb` from one block: the frontier of quality and diversity (ours).

Everything that does not depend on `lamb` is computed once: unit rows, metrics with their graphs, the range of every
term, the pairs of near-duplicates, and for `disf` the kernel of all documents if it fits `HELD_BYTES`. `pairwise`
starts from the probabilities that solved the previous value, without the hot part of the annealing. The others start
cold: from settled probabilities, `facility` lost up to 5% of J when measured, `disf` 0.2%. J is linear in quality and
diversity, so every selection can be evaluated under every `lamb`. Each value gets the best of all, so that along the
values quality less the penalty for near-duplicates never falls, and diversity less that penalty never rises.
"""

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from fineweb_mask.models.runtime.progress import track
from fineweb_mask.models.runtime.threads import same_threads
from fineweb_mask.models.selection.block import BlockSolver, Selection, checked_block
from fineweb_mask.models.selection.inputs import SelectionInputError
from fineweb_mask.models.selection.metrics.base import SupportsKernel
from fineweb_mask.models.selection.problem.normalisation import Ranges, Scaled
from fineweb_mask.models.selection.solvers.problem import History, Solution
from fineweb_mask.models.settings.selection import SelectionSettings

HELD_BYTES = 2 << 30  # for stored kernel matrices: n = 23,000 for one metric


class Swept(NamedTuple):
    """The selection for one `lamb`."""

    lamb: float
    selection: Selection
    seconds: float  # spent on solving, without the proof


class _Found(NamedTuple):
    lamb: float
    scaled: Scaled
    solution: Solution
    history: History
    seconds: float
    terms: dict[str, float]

    def objective(self, lamb: float) -> float:
        mixed = lamb * self.terms["quality"] + (1 - lamb) * self.terms["diversity"]
        return mixed - self.terms.get("near_duplicate_cost", 0.0)


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
        In the order of `lamb`, each value once: quality less the penalty for near-duplicates never falls along it.

    Raises
    ------
    SelectionInputError
        If an input cannot be selected from, or `lambs` is empty or has a value outside 0 to 1.

    Examples
    --------
    >>> import numpy as np
    >>> from fineweb_mask.models.selection import SelectionSettings
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
    block = checked_block(features, quality, settings, device=device, tokens=tokens)
    if ranges is not None:
        block.take_ranges(ranges)
    _hold_matrices(block)
    found: list[_Found] = []
    for lamb in track("values of lamb", values, part=(0, 0.5)):
        found.append(_solve(block, lamb, found[-1] if found else None))
    return [_best(block, one, found) for one in track("proofs", found, part=(0.5, 1))]


def _hold_matrices(block: BlockSolver) -> None:
    kernels = [metric for metric in block.metrics.values() if isinstance(metric, SupportsKernel)]
    curved = not all(metric.linear_in_v for metric in kernels)  # then greedy picks for every value
    if curved and 4 * block.rows.n**2 * len(kernels) <= HELD_BYTES:
        for metric in kernels:
            metric.matrix = metric.whole_kernel()  # for all greedy picks that follow


def _solve(block: BlockSolver, lamb: float, last: _Found | None) -> _Found:
    _ = block.ranges  # found before the clock of the first value starts
    history, started = History(), time.perf_counter()
    metrics = block.metrics.values()
    warm = all(isinstance(metric, SupportsKernel) and metric.linear_in_v for metric in metrics)
    start = last.solution.relaxed if last is not None and warm else None
    scaled, solution = block.solve(history, lamb, start)
    seconds = time.perf_counter() - started
    return _Found(lamb, scaled, solution, history, seconds, scaled.terms(solution.mask))


def _best(block: BlockSolver, own: _Found, found: list[_Found]) -> Swept:
    """Prove the best selection found for a value."""
    best = max(found, key=lambda one: one.objective(own.lamb))
    if best.objective(own.lamb) <= own.objective(own.lamb):
        best = own
    metrics = own.scaled.objective.metrics.values()
    effort = min((getattr(metric, "sweep_effort", 1.0) for metric in metrics), default=1.0)
    selection = block.selection(own.scaled, best.solution, own.history, own.lamb, effort)
    return Swept(own.lamb, selection, own.seconds)
