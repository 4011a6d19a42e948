"""`select`: one block of documents in, the selected indices and their proof out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from fineweb_mask.models.runtime.progress import track
from fineweb_mask.models.selection.certificate import tightened_bound
from fineweb_mask.models.selection.inputs import (
    SelectionInputError,
    checked_budget,
    checked_features,
    checked_quality,
    checked_tokens,
)
from fineweb_mask.models.selection.ranges import Ranges, Scaled, built_in_metrics, find_ranges, weigh
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

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy as np
    from torch import Tensor

    from fineweb_mask.models.selection.metrics.base import Metric
    from fineweb_mask.models.selection.rows import Rows

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
BOUNDED = {"mean_field", "greedy"}  # solvers good enough for a bound from their answer to mean something
TOKEN_ROUNDS = 5  # most selections solved to find how many documents fill a budget of tokens
TOKEN_TOLERANCE = 0.002  # of the budget of tokens: closer is left to the final fit


@dataclass(frozen=True, eq=False)
class Selection:
    """What was selected, how good it is, and how much better any selection could be.

    Attributes
    ----------
    indices
        Selected documents, (K,) int64, ascending.
    inclusion
        (n,) float32: the solver's logit, probability or score; larger is more wanted. For ranking only.
    objective
        J of the selection.
    terms
        "quality" and "diversity" as they enter J (J = lamb * quality + (1 - lamb) * diversity),
        "mean_quality" and each metric's raw value under its name.
    upper_bound
        No selection of K documents has a higher J; None where the solver or a metric gives no bound.
    gap
        (upper_bound - objective) / (upper_bound - random_objective).
    random_objective
        J expected of a uniform random selection of K documents.
    history
        (step, seconds, best objective so far).
    """

    indices: np.ndarray
    inclusion: np.ndarray
    objective: float
    terms: dict[str, float]
    upper_bound: float | None
    gap: float | None
    random_objective: float
    history: list[tuple[int, float, float]]


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
        Embeddings, (n, d) float16 or float32. Rows are normalised to unit length in float32; float16 features
        are copied to float32 only where that copy is small, and otherwise converted block by block.
    quality
        (n,) or (n, columns) float32. Several columns are standardised and summed under
        `settings.quality_weights`.
    settings
        What to maximise and how; defaults where omitted.
    device
        "cpu", "cuda" or a torch device.
    tokens
        Token count of each document, (n,) integers; needed with `budget_by="tokens"`. The selection then
        fills the budget of tokens as far as whole documents allow and never exceeds it.
    own_metrics
        Metrics of your own beside those of `settings.metrics` (which may be `{}`): name -> (metric, weight).
        A metric has `value(masks)`, (G, n) bool -> (G,), larger is more diverse; with
        `gradient(inclusion)`, (n,) -> (n,), `mean_field` can solve it too.
    ranges
        What `term_ranges` found for the same documents, budget and metrics: several selections of one block
        share it. A budget of tokens takes none.
    progress
        Called with (step, seconds, objective) as the history grows.

    Returns
    -------
    Selection
        The same one, bit for bit, for the same inputs, seed and device.

    Raises
    ------
    SelectionInputError
        If an input cannot be selected from; the message names column, first bad row and remedy.

    Examples
    --------
    >>> import numpy as np
    >>> from fineweb_mask.models.selection import SelectionSettings, select
    >>> random = np.random.default_rng(0)
    >>> features, quality = random.normal(size=(100, 8)), random.random(100)
    >>> len(select(features, quality, SelectionSettings(select_ratio=0.3)).indices)
    30
    """
    settings = settings or SelectionSettings()
    if not settings.metric_weights and not own_metrics:
        msg = "metrics is empty and there are no own_metrics: name at least one"
        raise SelectionInputError(msg)
    block = checked_block(features, quality, settings, device=device, tokens=tokens, own_metrics=own_metrics)
    if ranges is not None and block.limit is not None:
        msg = "ranges belong to a budget of documents: leave them out with budget_by='tokens'"
        raise SelectionInputError(msg)
    history = History(progress)
    if block.limit is not None:
        return _select_tokens(block, history, settings.lamb)
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
    """Find what `normalize` makes of the terms, for selections that are to be measured on one scale.

    Parameters
    ----------
    features, quality, settings, device
        As for `select`; solver and lamb do not matter. The budget is one of documents.

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
) -> Block:
    """Check the inputs of a selection, as `select` describes them, and make its block."""
    device = torch.device(device)
    rows = checked_features(features, device)
    combined = checked_quality(quality, rows.n, device, settings.quality_weights)
    block = Block(rows, combined, settings, own_metrics or {})
    if settings.budget_by == "tokens":
        block.limit_tokens(checked_tokens(tokens, rows.n, device))
    return block


class Block:
    """One block of documents: what several solves of it share.

    Parameters
    ----------
    rows, quality
        The documents: unit rows (n, d), and (n,) float32.
    settings
        What to maximise and how.
    own_metrics
        Metrics beside those of the settings: name -> (metric, weight).
    """

    def __init__(
        self,
        rows: Rows,
        quality: Tensor,  # (n,)
        settings: SelectionSettings,
        own_metrics: Mapping[str, tuple[Metric, float]],
    ) -> None:
        if taken := settings.metric_weights.keys() & own_metrics.keys():
            msg = f"own_metrics {sorted(taken)} have the names of built-in metrics in use: name them otherwise"
            raise SelectionInputError(msg)
        self.rows, self.quality, self.settings = rows, quality, settings
        self.weights = settings.metric_weights | {name: weight for name, (_, weight) in own_metrics.items()}
        self.tokens: Tensor | None = None
        self.limit: int | None = None  # of tokens
        self._own = {name: metric for name, (metric, _) in own_metrics.items()}
        self._metrics: dict[str, Metric] = {}
        self._ranges: dict[int, Ranges] = {}  # by budget

    def limit_tokens(self, tokens: Tensor) -> None:
        """Make the budget one of tokens, (n,)."""
        self.tokens = tokens
        total = int(tokens.sum())
        self.limit = checked_budget(self.settings.budget, self.settings.select_ratio, total, "tokens")
        if self.limit < int(tokens.min()):
            msg = f"tokens: the budget of {self.limit} is below the shortest document's {int(tokens.min())}: raise it"
            raise SelectionInputError(msg)

    @property
    def budget(self) -> int:
        """Documents to select; with a budget of tokens, about as many as fill it."""
        if self.limit is not None and self.tokens is not None:
            return max(1, round(self.limit / int(self.tokens.sum()) * self.rows.n))
        return checked_budget(self.settings.budget, self.settings.select_ratio, self.rows.n, "documents")

    def metrics(self, budget: int) -> Mapping[str, Metric]:
        """Give the metrics, made for the first budget that is asked for."""
        if not self._metrics:
            self._metrics = built_in_metrics(self.rows, self.settings, budget) | self._own
        return self._metrics

    def take_ranges(self, ranges: Ranges) -> None:
        """Use what was found before for the budget of documents."""
        if ranges.metrics.keys() != self.weights.keys():
            msg = f"ranges are of the metrics {sorted(ranges.metrics)}, the settings' are {sorted(self.weights)}"
            raise SelectionInputError(msg)
        self._ranges[self.budget] = ranges

    def ranges(self, budget: int) -> Ranges:
        """Find what `normalize` makes of the terms at a budget, once."""
        if budget not in self._ranges:
            self._ranges[budget] = find_ranges(
                self.rows,
                self.quality,
                self.settings,
                self.metrics(budget),
                budget=budget,
                generator=self._generator(),
            )
        return self._ranges[budget]

    def scaled(self, budget: int, lamb: float) -> Scaled:
        """Weigh the objective of selections of a number of documents."""
        ranges = self.ranges(budget)
        return weigh(self.quality, self.metrics(budget), ranges, lamb=lamb, weights=self.weights, budget=budget)

    def solve(self, budget: int, history: History, lamb: float, start: Tensor | None = None) -> tuple[Scaled, Solution]:
        """Scale the objective for a budget of documents and maximise it."""
        scaled = self.scaled(budget, lamb)
        problem = Problem(self.rows, scaled.objective, self.settings, self._generator(), history, start)
        return scaled, SOLVERS[self.settings.solver](problem)

    def _generator(self) -> torch.Generator:
        """Start the draws anew: those of a solver do not depend on what was drawn to find the ranges."""
        return torch.Generator(self.rows.device).manual_seed(self.settings.seed)

    def selection(
        self, scaled: Scaled, solution: Solution, history: History, lamb: float, effort_share: float = 1.0
    ) -> Selection:
        """Evaluate and prove the answer."""
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
        )


def relative_gap(objective: float, bound: float | None, random_objective: float) -> float | None:
    """Give (bound - objective) / (bound - random objective), at least 0; None without a bound."""
    if bound is None:
        return None
    room = bound - random_objective
    return max(bound - objective, 0.0) / room if room > 0 else 0.0


def _select_tokens(block: Block, history: History, lamb: float) -> Selection:
    """Select under a budget of tokens."""
    scaled, solution = solve_tokens(block, history, lamb)
    return block.selection(scaled, solution, history, lamb)


def solve_tokens(block: Block, history: History, lamb: float) -> tuple[Scaled, Solution]:
    """Solve for the number of documents that fills the budget of tokens, then fit.

    Each solve corrects the number of documents by the tokens that the last one used. The closest answer is
    then cut or filled in the order of its own ranking. It has no bound where that changes its size.
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
    """Take documents in the order selected first, then by inclusion, as long as each fits: (n,) bool."""
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
