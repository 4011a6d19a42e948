"""Select documents from one block, and prove how much better any selection could be."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fineweb_mask.models.runtime.progress import track
from fineweb_mask.models.selection.certificate import assumption, tightened_bound
from fineweb_mask.models.selection.inputs import (
    SelectionInputError,
    checked_budget,
    checked_features,
    checked_quality,
    checked_tokens,
)
from fineweb_mask.models.selection.measures import relative_gap
from fineweb_mask.models.selection.metrics.base import Metric
from fineweb_mask.models.selection.ranges import Ranges, Scaled, built_in_metrics, find_ranges, weigh
from fineweb_mask.models.selection.rows import Rows
from fineweb_mask.models.selection.solvers.baselines import (
    solve_quality_sampling,
    solve_random,
    solve_semdedup,
    solve_top_quality,
)
from fineweb_mask.models.selection.solvers.greedy import solve_greedy
from fineweb_mask.models.selection.solvers.mean_field import solve_mean_field
from fineweb_mask.models.selection.solvers.policy_gradient import solve_policy_gradient
from fineweb_mask.models.selection.solvers.problem import History, Problem, Solution
from fineweb_mask.models.settings.selection import SelectionSettings

__all__ = ["SOLVERS", "Selection", "SelectionInputError", "SelectionSettings", "select", "term_ranges"]

SOLVERS: dict[str, Callable[[Problem], Solution]] = {
    "mean_field": solve_mean_field,
    "policy_gradient": solve_policy_gradient,
    "greedy": solve_greedy,
    "top_quality": solve_top_quality,
    "random": solve_random,
    "quality_sampling": solve_quality_sampling,
    "semdedup": solve_semdedup,
}
BOUNDED = {"mean_field", "greedy"}  # solvers close enough to the optimum for a useful bound
TOKEN_ROUNDS = 5  # most solves to find how many documents fill a budget of tokens
TOKEN_TOLERANCE = 0.002  # of the budget of tokens: a closer answer is left to the final fit


@dataclass(frozen=True, eq=False)
class Selection:
    """The selected documents, their objective, and how much better any selection could be.

    Attributes
    ----------
    indices
        Selected documents, (K,) int64, ascending.
    inclusion
        (n,) float32: the solver's logit, probability or score. For ranking only; larger ranks higher.
    objective
        J of the selection.
    terms
        "quality" and "diversity" as they enter J (J = lamb * quality + (1 - lamb) * diversity),
        "mean_quality" and each metric's raw value under its name.
    upper_bound
        No selection of K documents has a higher J, given `bound_assumes`. None if the solver or a metric provides no
        bound.
    gap
        `relative_gap` of objective, upper_bound and random_objective.
    random_objective
        J expected of a uniform random selection of K documents.
    history
        (step, seconds since the start, best objective so far).
    bound_assumes
        What the bound takes for granted: approximate lists of `facility`. None if it is proven, or there is no bound.
    """

    indices: NDArray[np.int64]
    inclusion: NDArray[np.float32]
    objective: float
    terms: dict[str, float]
    upper_bound: float | None
    gap: float | None
    random_objective: float
    history: list[tuple[int, float, float]]
    bound_assumes: str | None = None


def select(
    features: Any,  # noqa: ANN401 - numpy or torch, (n, d)
    quality: Any,  # noqa: ANN401 - numpy or torch, (n,) or (n, columns)
    settings: SelectionSettings | None = None,
    *,
    device: str | torch.device = "cpu",
    tokens: Any = None,  # noqa: ANN401 - numpy or torch, (n,)
    own_metrics: Mapping[str, tuple[Metric, float]] | None = None,
    ranges: Ranges | None = None,
    progress: Callable[[int, float, float], None] | None = None,
) -> Selection:
    """Select the documents that together maximise lamb * quality + (1 - lamb) * diversity.

    Parameters
    ----------
    features
        Embeddings, (n, d) float16 or float32. Rows are normalised to unit length in float32. float16 features
        are copied to float32 only if that copy is small, and otherwise converted block by block.
    quality
        (n,) or (n, columns) float32. Several columns are standardised and summed under
        `settings.quality_weights`.
    settings
        What to maximise and how; by default `SelectionSettings()`.
    device
        "cpu", "cuda" or a torch device.
    tokens
        Token count of each document, (n,) integers; required with `budget_by="tokens"`. The selection then
        fills the budget of tokens as far as whole documents allow and never exceeds it.
    own_metrics
        Your own metrics in addition to those of `settings.metrics` (which may be `{}`): name -> (metric, weight).
        A metric has `value(masks)`; further methods enable more solvers and the upper bound, see
        `models/selection/metrics/base.py`.
    ranges
        Result of `term_ranges` for the same documents, budget and metrics, which several selections of one block
        can share. Not for a budget of tokens.
    progress
        Called with (step, seconds, objective) for each entry of the history.

    Returns
    -------
    Selection
        Identical, bit for bit, for the same inputs, seed and device.

    Raises
    ------
    SelectionInputError
        If an input cannot be selected from; the message names column, first bad row and remedy.
    FalseBoundError
        If the selection exceeds its upper bound, because a metric of your own has a wrong tangent.

    Examples
    --------
    >>> import numpy as np
    >>> from fineweb_mask.models.selection import SelectionSettings, select
    >>> random = np.random.default_rng(0)
    >>> features, quality = random.normal(size=(100, 8)), random.random(100)
    >>> selection = select(features, quality, SelectionSettings(metrics="facility", select_ratio=0.3))
    >>> len(selection.indices)
    30
    >>> selection.random_objective < selection.objective <= selection.upper_bound
    True
    """
    settings = settings or SelectionSettings()
    if not settings.metric_weights and not own_metrics:
        raise SelectionInputError("metrics is empty and there are no own_metrics: name at least one")
    block = checked_block(features, quality, settings, device=device, tokens=tokens, own_metrics=own_metrics)
    if ranges is not None and block.limit is not None:
        raise SelectionInputError("ranges belong to a budget of documents: leave them out with budget_by='tokens'")
    history = History(progress)
    if block.limit is not None:
        scaled, solution = solve_tokens(block, history, settings.lamb)
    else:
        if ranges is not None:
            block.take_ranges(ranges)
        scaled, solution = block.solve(block.budget, history, settings.lamb)
    return block.selection(scaled, solution, history, settings.lamb)


def term_ranges(
    features: Any,  # noqa: ANN401 - numpy or torch, (n, d)
    quality: Any,  # noqa: ANN401 - numpy or torch, (n,) or (n, columns)
    settings: SelectionSettings,
    *,
    device: str | torch.device = "cpu",
) -> Ranges:
    """Find the scales of the terms under `normalize`, for selections to be measured on one scale.

    Parameters
    ----------
    features, quality, settings, device
        As for `select`, with a budget of documents. `solver` and `lamb` are ignored.

    Raises
    ------
    SelectionInputError
        If an input cannot be selected from.
    """
    block = checked_block(features, quality, settings, device=device)
    return block.ranges(block.budget)


def checked_block(
    features: Any,  # noqa: ANN401 - numpy or torch, (n, d)
    quality: Any,  # noqa: ANN401 - numpy or torch, (n,) or (n, columns)
    settings: SelectionSettings,
    *,
    device: str | torch.device,
    tokens: Any = None,  # noqa: ANN401 - numpy or torch, (n,)
    own_metrics: Mapping[str, tuple[Metric, float]] | None = None,
) -> "BlockSolver":
    """Check the inputs of a selection, as `select` describes them, and make its solver."""
    device = torch.device(device)
    rows = checked_features(features, device)
    combined = checked_quality(quality, rows.n, device, settings.quality_weights)
    block = BlockSolver(rows, combined, settings, own_metrics or {})
    if settings.budget_by == "tokens":
        block.limit_tokens(checked_tokens(tokens, rows.n, device))
    return block


class BlockSolver:
    """Solve one block, unit rows (n, d) and quality (n,) float32, several times, sharing metrics and ranges."""

    def __init__(
        self, rows: Rows, quality: Tensor, settings: SelectionSettings, own_metrics: Mapping[str, tuple[Metric, float]]
    ) -> None:
        if taken := settings.metric_weights.keys() & own_metrics.keys():
            raise SelectionInputError(
                f"own_metrics {sorted(taken)} have the names of built-in metrics in use: rename them"
            )
        self.rows, self.quality, self.settings = rows, quality, settings
        self.weights = settings.metric_weights | {name: weight for name, (_, weight) in own_metrics.items()}
        self.tokens: Tensor | None = None
        self.limit: int | None = None  # of tokens
        self._own = {name: metric for name, (metric, _) in own_metrics.items()}
        self._metrics: dict[str, Metric] = {}
        self._ranges: dict[int, Ranges] = {}  # by budget

    def limit_tokens(self, tokens: Tensor) -> None:
        """Set a budget of tokens, from the tokens of each document, (n,)."""
        self.tokens = tokens
        total = int(tokens.sum())
        self.limit = checked_budget(self.settings.budget, self.settings.select_ratio, total, "tokens")
        if self.limit < int(tokens.min()):
            raise SelectionInputError(
                f"tokens: the budget of {self.limit} is below the shortest document's {int(tokens.min())}: raise it"
            )

    @property
    def budget(self) -> int:
        """Documents to select; for a budget of tokens, about as many as fill it."""
        if self.limit is not None and self.tokens is not None:
            return max(1, round(self.limit / int(self.tokens.sum()) * self.rows.n))
        return checked_budget(self.settings.budget, self.settings.select_ratio, self.rows.n, "documents")

    def metrics(self, budget: int) -> Mapping[str, Metric]:
        """Return the metrics, made for the first budget requested."""
        if not self._metrics:
            self._metrics = built_in_metrics(self.rows, self.settings, budget) | self._own
        return self._metrics

    def take_ranges(self, ranges: Ranges) -> None:
        """Use ranges found before for the budget of documents."""
        if ranges.metrics.keys() != self.weights.keys():
            raise SelectionInputError(
                f"ranges are of the metrics {sorted(ranges.metrics)}, the settings' are {sorted(self.weights)}"
            )
        self._ranges[self.budget] = ranges

    def ranges(self, budget: int) -> Ranges:
        """Find the scales of the terms at a budget, once."""
        if budget not in self._ranges:
            self._ranges[budget] = find_ranges(
                self.rows, self.quality, self.settings, self.metrics(budget), budget=budget, generator=self._generator()
            )
        return self._ranges[budget]

    def scaled(self, budget: int, lamb: float) -> Scaled:
        """Return the objective of selections of `budget` documents."""
        ranges = self.ranges(budget)
        return weigh(self.quality, self.metrics(budget), ranges, lamb=lamb, weights=self.weights, budget=budget)

    def solve(self, budget: int, history: History, lamb: float, start: Tensor | None = None) -> tuple[Scaled, Solution]:
        """Maximise the objective of selections of `budget` documents."""
        scaled = self.scaled(budget, lamb)
        problem = Problem(self.rows, scaled.objective, self.settings, self._generator(), history, start)
        return scaled, SOLVERS[self.settings.solver](problem)

    def _generator(self) -> torch.Generator:
        """Return a newly seeded generator, so that a solver's draws do not depend on those that found the ranges."""
        return torch.Generator(self.rows.device).manual_seed(self.settings.seed)

    def selection(
        self, scaled: Scaled, solution: Solution, history: History, lamb: float, effort_share: float = 1.0
    ) -> Selection:
        """Evaluate and prove a solution."""
        objective = scaled.objective
        reached = objective.value_of(solution.mask)
        random_objective = scaled.random_objective(lamb)
        bound = None
        if self.settings.solver in BOUNDED and int(solution.mask.sum()) == objective.budget:
            pi = solution.mask.float() if solution.relaxed is None else solution.relaxed
            bound = tightened_bound(objective, pi, solution.mask, random_objective, effort_share=effort_share)
        return Selection(
            indices=solution.mask.nonzero()[:, 0].cpu().numpy(),
            inclusion=solution.inclusion.float().cpu().numpy(),
            objective=reached,
            terms=scaled.terms(solution.mask),
            upper_bound=bound,
            gap=relative_gap(reached, bound, random_objective),
            random_objective=random_objective,
            history=history.entries,
            bound_assumes=None if bound is None else assumption(objective),
        )


def solve_tokens(block: BlockSolver, history: History, lamb: float) -> tuple[Scaled, Solution]:
    """Solve for the number of documents that fills the budget of tokens, then fit the selection to it.

    Each solve corrects the number of documents by the tokens that the previous one used. The closest answer is then
    cut or filled in the order of its own ranking. If that changes its size, it has no bound.
    """
    limit, tokens = block.limit, block.tokens
    assert limit is not None  # noqa: S101 - only called for a budget of tokens
    assert tokens is not None  # noqa: S101
    n_documents = block.budget
    tried: set[int] = set()
    closest: tuple[float, Scaled, Solution] | None = None
    for _ in track("solves for the budget of tokens", range(TOKEN_ROUNDS)):
        if n_documents in tried:
            break
        tried.add(n_documents)
        scaled, solution = block.solve(n_documents, history, lamb)
        used = int(tokens[solution.mask].sum())
        distance = abs(used / limit - 1)
        if closest is None or distance < closest[0]:
            closest = (distance, scaled, solution)
        if distance < TOKEN_TOLERANCE:
            break
        n_documents = min(block.rows.n, max(1, round(n_documents * limit / used)))
    assert closest is not None  # noqa: S101 - the loop runs at least once
    _, scaled, solution = closest
    return scaled, Solution(_fit(solution, tokens, limit), solution.inclusion)


def _fit(solution: Solution, tokens: Tensor, limit: int) -> Tensor:
    """Take the selected documents, then the others, each by inclusion and if its tokens fit: (n,) bool."""
    wanted = solution.inclusion.double()
    span = wanted.max() - wanted.min() + 1
    order = (wanted + span * solution.mask).sort(descending=True, stable=True).indices
    kept = torch.zeros_like(solution.mask)
    left = limit
    while len(order := order[tokens[order] <= left]):
        fits = order[tokens[order].cumsum(0) <= left]
        kept[fits] = True
        left -= int(tokens[fits].sum())
        order = order[len(fits) :]
    return kept
