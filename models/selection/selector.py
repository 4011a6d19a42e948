"""`select`: one block of documents in, the selected indices and their proof out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from models.selection.baselines import (
    solve_quality_sampling,
    solve_random,
    solve_semdedup,
    solve_top_quality,
)
from models.selection.certificate import tightened_bound
from models.selection.checks import (
    SelectionInputError,
    checked_budget,
    checked_features,
    checked_quality,
    checked_tokens,
)
from models.selection.greedy import solve_greedy
from models.selection.mean_field import solve_mean_field
from models.selection.policy_gradient import solve_policy_gradient
from models.selection.problem import History, Problem, Solution
from models.selection.scaling import Scaled, built_in_metrics, scale
from models.selection.settings import SelectionSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy as np
    from torch import Tensor

    from models.selection.objectives import Metric
    from models.selection.rows import Rows

__all__ = ["SOLVERS", "Selection", "SelectionInputError", "SelectionSettings", "select"]

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
    >>> from models.selection import SelectionSettings, select
    >>> random = np.random.default_rng(0)
    >>> features, quality = random.normal(size=(100, 8)), random.random(100)
    >>> len(select(features, quality, SelectionSettings(select_ratio=0.3)).indices)
    30
    """
    settings = settings or SelectionSettings()
    device = torch.device(device)
    rows = checked_features(features, device)
    combined = checked_quality(quality, rows.n, device, settings.quality_weights)
    task = _Task(rows, combined, settings, History(progress))
    task.own_metrics.update(own_metrics or {})
    if not settings.metric_weights and not own_metrics:
        msg = "metrics is empty and there are no own_metrics: name at least one"
        raise SelectionInputError(msg)
    if taken := settings.metric_weights.keys() & task.own_metrics.keys():
        msg = f"own_metrics {sorted(taken)} have the names of built-in metrics in use: name them otherwise"
        raise SelectionInputError(msg)
    if settings.budget_by == "tokens":
        return _select_tokens(task, checked_tokens(tokens, rows.n, device))
    budget = checked_budget(settings.budget, settings.select_ratio, rows.n, "documents")
    scaled, solution = task.solve(budget)
    return task.selection(scaled, solution)


class _Task:
    """One call of `select`, solvable at several budgets."""

    def __init__(self, rows: Rows, quality: Tensor, settings: SelectionSettings, history: History) -> None:
        self.rows, self.quality, self.settings, self.history = rows, quality, settings, history
        self.metrics: dict[str, Metric] = {}
        self.own_metrics: dict[str, tuple[Metric, float]] = {}

    def solve(self, budget: int) -> tuple[Scaled, Solution]:
        """Scale the objective for a budget of documents and maximise it."""
        generator = torch.Generator(self.rows.device).manual_seed(self.settings.seed)
        own = {name: metric for name, (metric, _) in self.own_metrics.items()}
        own_weights = {name: weight for name, (_, weight) in self.own_metrics.items()}
        if not self.metrics:
            self.metrics = built_in_metrics(self.rows, self.settings, budget) | own
        scaled = scale(
            self.rows,
            self.quality,
            self.settings,
            self.metrics,
            weights=self.settings.metric_weights | own_weights,
            budget=budget,
            generator=generator,
        )
        problem = Problem(self.rows, scaled.objective, self.settings, generator, self.history)
        return scaled, SOLVERS[self.settings.solver](problem)

    def selection(self, scaled: Scaled, solution: Solution) -> Selection:
        """Evaluate and prove the answer."""
        objective = scaled.objective
        reached = objective.value_of(solution.mask)
        random_objective = scaled.random_objective(self.settings.lamb)
        bound = None
        if self.settings.solver in BOUNDED and int(solution.mask.sum()) == objective.budget:
            pi = solution.mask.float() if solution.relaxed is None else solution.relaxed
            bound = tightened_bound(objective, pi, solution.mask, random_objective)
        gap = None
        if bound is not None:
            room = bound - random_objective
            gap = max(bound - reached, 0.0) / room if room > 0 else 0.0
        return Selection(
            indices=solution.mask.nonzero()[:, 0].cpu().numpy(),
            inclusion=solution.inclusion.float().cpu().numpy(),
            objective=reached,
            terms=scaled.terms(solution.mask),
            upper_bound=bound,
            gap=gap,
            random_objective=random_objective,
            history=self.history.entries,
        )


def _select_tokens(task: _Task, tokens: Tensor) -> Selection:
    """Select under a budget of tokens: solve for the number of documents that fills it, then fit.

    Each solve corrects the number of documents by the tokens that the last one used. The closest answer is
    then cut or filled in the order of its own ranking. It has no bound where that changes its size.
    """
    limit = checked_budget(task.settings.budget, task.settings.select_ratio, int(tokens.sum()), "tokens")
    if limit < int(tokens.min()):
        msg = f"tokens: the budget of {limit} is below the shortest document's {int(tokens.min())}: raise it"
        raise SelectionInputError(msg)
    n_documents = max(1, round(limit / int(tokens.sum()) * task.rows.n))
    tried: set[int] = set()
    closest: tuple[float, Scaled, Solution] | None = None
    while n_documents not in tried and len(tried) < TOKEN_ROUNDS:
        tried.add(n_documents)
        scaled, solution = task.solve(n_documents)
        used = int(tokens[solution.mask].sum())
        distance = abs(used / limit - 1)
        if closest is None or distance < closest[0]:
            closest = (distance, scaled, solution)
        if distance < TOKEN_TOLERANCE:
            break
        n_documents = min(task.rows.n, max(1, round(n_documents * limit / used)))
    assert closest is not None  # noqa: S101 - the loop runs at least once
    _, scaled, solution = closest
    solution = Solution(_fit(solution, tokens, limit), solution.inclusion)
    return task.selection(scaled, solution)


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
