"""Many selections of one block, one for each `lamb`: the frontier of quality and diversity (ours).

What does not depend on `lamb` is made once: unit rows, metrics with their graphs, the range of every term, and
for `disf` the kernel of all documents, where it fits `HELD_BYTES`. `pairwise` is solved from the probabilities that
solved the value before, without the hot part of the annealing. The others are solved from anew: annealing `facility`
from probabilities that have settled lost up to 5% of J where it was measured, `disf` 0.2%. J is linear in quality and
diversity, so every selection found can be judged under every `lamb`: each gets the best of all, and the frontier is
monotone.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple

from fineweb_mask.models.runtime.progress import track
from fineweb_mask.models.selection.inputs import SelectionInputError
from fineweb_mask.models.selection.metrics.disf import Disf
from fineweb_mask.models.selection.metrics.kernel import KernelMetric
from fineweb_mask.models.selection.metrics.pairwise import Pairwise
from fineweb_mask.models.selection.selector import Block, Selection, checked_block, solve_tokens
from fineweb_mask.models.selection.solvers.problem import History

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

    from fineweb_mask.models.selection.ranges import Ranges, Scaled
    from fineweb_mask.models.selection.solvers.problem import Solution
    from fineweb_mask.models.settings.selection import SelectionSettings

HELD_BYTES = 2 << 30  # of kernel matrices that are kept: n = 23,000 for one metric
KERNEL_EFFORT = 0.5  # of a single selection's proof: it costs more than the solve, and there is one for each value


class Swept(NamedTuple):
    """The selection for one `lamb`."""

    lamb: float
    selection: Selection
    seconds: float  # of solving, without the proof


class _Found(NamedTuple):
    lamb: float
    scaled: Scaled
    solution: Solution
    history: History
    seconds: float
    terms: dict[str, float]

    def objective(self, lamb: float) -> float:
        return lamb * self.terms["quality"] + (1 - lamb) * self.terms["diversity"]


def sweep(
    features: Any,  # noqa: ANN401 - numpy or torch, (n, d)
    quality: Any,  # noqa: ANN401 - numpy or torch, (n,) or (n, columns)
    settings: SelectionSettings,
    lambs: Sequence[float],
    *,
    device: str | torch.device = "cpu",
    tokens: Any = None,  # noqa: ANN401 - numpy or torch, (n,)
    ranges: Ranges | None = None,
    progress: Callable[[int, float], None] | None = None,
) -> list[Swept]:
    """Select once for every weight of quality, with the closed-form solver.

    Parameters
    ----------
    features, quality, settings, device, tokens, ranges
        As for `select`; the settings' `lamb` and `solver` do not matter.
    lambs
        Weights of quality, from 0 to 1.
    progress
        Called with (values done, the value) after each.

    Returns
    -------
    list of Swept
        In the order of `lamb`, each value once: mean quality never falls along it.

    Raises
    ------
    SelectionInputError
        If an input cannot be selected from, or there is no value, or one outside 0 to 1.
    """
    values = sorted(set(lambs))
    if not values or not 0 <= values[0] <= values[-1] <= 1:
        msg = f"lamb must have at least one value, all from 0 to 1, received {list(lambs)}"
        raise SelectionInputError(msg)
    settings = settings.model_copy(update={"solver": "mean_field"})
    block = checked_block(features, quality, settings, device=device, tokens=tokens)
    if ranges is not None:
        block.take_ranges(ranges)
    _hold_matrices(block)
    found: list[_Found] = []
    for lamb in track("values of lamb", values, part=(0, 0.5)):
        found.append(_solve(block, lamb, found[-1] if found else None))
        if progress is not None:
            progress(len(found), lamb)
    return [_best(block, one, found) for one in track("proofs", found, part=(0.5, 1))]


def _hold_matrices(block: Block) -> None:
    kernels = [metric for metric in block.metrics(block.budget).values() if isinstance(metric, KernelMetric)]
    if any(isinstance(metric, Disf) for metric in kernels) and 4 * block.rows.n**2 * len(kernels) <= HELD_BYTES:
        for metric in kernels:
            metric.hold_matrix()


def _solve(block: Block, lamb: float, last: _Found | None) -> _Found:
    block.ranges(block.budget)  # not counted as the first value's
    history, started = History(), time.perf_counter()
    if block.limit is not None:
        scaled, solution = solve_tokens(block, history, lamb)
    else:
        warm = all(isinstance(metric, Pairwise) for metric in block.metrics(block.budget).values())
        start = last.solution.relaxed if last is not None and warm else None
        scaled, solution = block.solve(block.budget, history, lamb, start)
    seconds = time.perf_counter() - started
    return _Found(lamb, scaled, solution, history, seconds, scaled.terms(solution.mask))


def _best(block: Block, own: _Found, found: list[_Found]) -> Swept:
    """Prove the best selection found for a value; those of another budget or scale are not compared."""
    same_scale = [one for one in found if one.scaled.metrics is own.scaled.metrics and block.limit is None]
    best = max(same_scale, key=lambda one: one.objective(own.lamb), default=own)
    if best.objective(own.lamb) <= own.objective(own.lamb):
        best = own
    kernels = any(isinstance(metric, KernelMetric) for metric in own.scaled.objective.metrics.values())
    effort = KERNEL_EFFORT if kernels else 1.0
    selection = block.selection(own.scaled, best.solution, own.history, own.lamb, effort)
    return Swept(own.lamb, selection, own.seconds)
