"""Solve one block: its objective and scales, a solver's answer to them, and the proof of it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pkgutil import resolve_name
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fineweb_mask.models.runtime.progress import track
from fineweb_mask.models.selection.budget import Budget
from fineweb_mask.models.selection.inputs import (
    SelectionInputError,
    SelectorInputs,
    checked_budget,
    checked_column,
    checked_features,
    checked_tokens,
)
from fineweb_mask.models.selection.measures import relative_gap
from fineweb_mask.models.selection.metrics.base import Linear, Metric, metric_class
from fineweb_mask.models.selection.metrics.facility import list_length
from fineweb_mask.models.selection.near_duplicates import without_near_duplicates
from fineweb_mask.models.selection.neighbours import Neighbours, nearest
from fineweb_mask.models.selection.objective import Objective, Ranges, Term
from fineweb_mask.models.selection.solvers.mean_field import solve_mean_field
from fineweb_mask.models.selection.solvers.policy_gradient import solve_policy_gradient
from fineweb_mask.models.selection.solvers.problem import Problem, Solution
from fineweb_mask.models.selection.solvers.prove import prove
from fineweb_mask.models.settings.selection import BY_GAINS, SelectionSettings
from fineweb_mask.models.settings.selectors.registry import SELECTORS

ALIKE = 16  # documents that are like each document, itself included, of which one moves in a round
RANGE_ROUNDS = 24  # of swaps, for the best end of a metric's range


@dataclass(frozen=True, eq=False)
class Selection:
    """The selected documents, their objective, and how much better any selection could be.

    By tokens, a selection is full: it keeps within the budget, and no other document fits into the room left.

    Attributes
    ----------
    indices
        Selected documents, (K,) int64, ascending; fewer than K where too few documents are not near-duplicates of
        better ones.
    inclusion
        (n,) float32: the solver's logit, probability or score. For ranking only; larger ranks higher.
    objective
        J of the selection.
    terms
        "quality" and "diversity" as they enter J = lamb * quality + (1 - lamb) * diversity, "mean_quality" and each
        metric's raw value under its name; means are over the budget, of documents or tokens.
    upper_bound
        No full selection has a higher J. None if the solver or a metric provides no bound.
    gap
        `relative_gap` of objective, upper_bound and random_objective.
    random_objective
        J expected of a uniform random selection within the same budget.
    """

    indices: NDArray[np.int64]
    inclusion: NDArray[np.float32]
    objective: float
    terms: dict[str, float]
    upper_bound: float | None
    gap: float | None
    random_objective: float

    def __repr__(self) -> str:
        """Return what it is in a line, without its arrays."""
        bound = "no bound" if self.gap is None else f"at most {self.upper_bound:.4f} is possible, gap {self.gap:.2%}"
        terms = ", ".join(f"{name} {value:.4g}" for name, value in self.terms.items())
        of = f"{len(self.indices):,} of {len(self.inclusion):,} documents"
        return f"Selection: {of}, objective {self.objective:.4f} ({bound}; random {self.random_objective:.4f}); {terms}"


class BlockSolver:
    """Solve one block: its metrics, lists of neighbours and ranges are made once, when they are first read."""

    def __init__(
        self,
        features: Any,  # noqa: ANN401 - numpy or torch, (n, d)
        quality: Any,  # noqa: ANN401 - numpy or torch, (n,)
        settings: SelectionSettings,
        *,
        device: str | torch.device,
        tokens: Any = None,  # noqa: ANN401 - numpy or torch, (n,)
        also: SelectorInputs | None = None,
        own_metrics: Mapping[str, tuple[Metric, float]] | None = None,
        ranges: Ranges | None = None,
    ) -> None:
        """Check the inputs of a selection, as `select` describes them.

        Raises
        ------
        SelectionInputError
            If an input cannot be selected from.
        """
        device, own_metrics = torch.device(device), own_metrics or {}
        self.settings, self.rows = settings, checked_features(features, device)
        n = self.rows.n
        self.quality = checked_column(quality, "quality", n, device)
        self.also = (also or SelectorInputs()).checked(n, self.rows.d, device)
        self.tokens: Tensor | None = None
        self._costs = torch.ones(n, dtype=torch.int64, device=device)
        if settings.budget_by == "tokens":
            self.tokens = self._costs = checked_tokens(tokens, n, device)
        elif tokens is not None:
            self.tokens = checked_tokens(torch.as_tensor(tokens).clamp(min=1), n, device)
        self._limit = checked_budget(settings.budget, settings.select_ratio, int(self._costs.sum()), settings.budget_by)
        if self._limit < (shortest := int(self._costs.min())):
            raise SelectionInputError(
                f"tokens: the budget of {self._limit} is below the shortest document's {shortest}: raise it"
            )
        if taken := {"quality", *settings.metric_weights} & own_metrics.keys():
            raise SelectionInputError(f"own_metrics {sorted(taken)} have the names of terms in use: rename them")
        self.own_metrics = {name: metric for name, (metric, _) in own_metrics.items()}
        for name, metric in self.own_metrics.items():
            if not isinstance(metric, Metric):
                raise SelectionInputError(
                    f"own_metrics {name!r} must be of a subclass of fineweb_mask.Metric, received a "
                    f"{type(metric).__name__}"
                )
            if settings.solver in BY_GAINS:  # before any work
                metric.gradient(torch.full((n,), self._limit / int(self._costs.sum()), device=device))
        self.weights = settings.metric_weights | {name: weight for name, (_, weight) in own_metrics.items()}
        if ranges is not None:
            if ranges.keys() - {"quality"} != self.weights.keys():
                raise SelectionInputError(
                    f"ranges must be of the settings' metrics {sorted(self.weights)}, they are of "
                    f"{sorted(ranges.keys() - {'quality'})}"
                )
            self.ranges = ranges

    @cached_property
    def budget(self) -> Budget:
        """What may be selected: no near-duplicate of a better document."""
        threshold = self.settings.near_duplicates
        allowed = None
        if threshold is not None:
            assert self.lists is not None  # noqa: S101 - they are read
            allowed = without_near_duplicates(self.rows, self.quality, threshold, self.lists)
        return Budget.of(self._costs, self._limit, allowed)

    @cached_property
    def lists(self) -> Neighbours | None:
        """The nearest of every document; None if nothing reads them."""
        if "facility" in self.settings.metric_weights:
            return nearest(self.rows, list_length(Budget.of(self._costs, self._limit)))
        if "disf" in self.settings.metric_weights or self.settings.near_duplicates is not None:
            return nearest(self.rows, ALIKE)
        return None

    @cached_property
    def metrics(self) -> Mapping[str, Metric]:
        """The mean quality, the metrics that the settings name, and one's own."""
        built_in: dict[str, Metric] = {
            name: metric_class(name)(self.rows, self.budget, self.lists) for name in self.settings.metric_weights
        }
        return {"quality": Linear(self.quality * self.budget.shares), **built_in, **self.own_metrics}

    @cached_property
    def ranges(self) -> Ranges:
        """The scales of the terms, as `normalize` asks."""
        budget, terms = self.budget, dict[str, Term]()
        is_all = int(budget.costs[budget.allowed].sum()) <= budget.limit  # one selection: what differs is rounding
        for name, metric in track("ranges of metrics", list(self.metrics.items())):
            random = highest = metric.random_value(budget)
            if self.settings.normalize == "none":
                terms[name] = Term(random)
                continue
            if name == "quality":
                highest = float(metric.value(budget.fill(self.quality)[None])[0])
            elif not is_all:
                highest = self._highest(metric)
            terms[name] = Term.between(random, random if is_all else highest)
        return terms

    def _highest(self, metric: Metric) -> float:
        """Return the highest value that a short search finds."""
        problem = self._problem(Objective(self.budget, {"": metric}, {"": 1.0}))
        try:
            found = solve_mean_field(problem, rounds=RANGE_ROUNDS)
        except SelectionInputError:  # a custom metric without a gradient
            found = solve_policy_gradient(problem)
        return problem.objective.value_of(found.mask)

    @cached_property
    def objective(self) -> Objective:
        """Quality and metrics, weighed as `lamb` asks."""
        lamb = self.settings.lamb
        weights = {"quality": lamb} | {name: (1 - lamb) * weight for name, weight in self.weights.items()}
        weights = {name: weights[name] * term.factor for name, term in self.ranges.items()}
        constant = -sum(weights[name] * term.base for name, term in self.ranges.items())
        return Objective(self.budget, self.metrics, weights, constant)

    @cached_property
    def random_objective(self) -> float:
        """J expected of a uniform random subset."""
        terms, lamb = self.scaled({name: term.random for name, term in self.ranges.items()}), self.settings.lamb
        return lamb * terms["quality"] + (1 - lamb) * terms["diversity"]

    def scaled(self, raw: Mapping[str, float]) -> dict[str, float]:
        """Return quality and diversity as they enter J, of the raw values of the quality and every metric."""
        scaled = {name: term.scaled(raw[name]) for name, term in self.ranges.items()}
        diversity = sum(weight * scaled[name] for name, weight in self.weights.items())
        return {"quality": scaled["quality"], "diversity": diversity}

    def solve(self) -> Solution:
        """Maximise the objective, or what the solver maximises instead."""
        return solver_of(self.settings.solver)(self._problem(self.objective))

    def _problem(self, objective: Objective) -> Problem:
        """Return the problem, with its own generator: a solver's draws do not depend on those before it.

        It draws on the CPU, so that a GPU starts from the same documents.
        """
        generator = torch.Generator().manual_seed(self.settings.seed)
        near = None if self.lists is None else self.lists.nearest(ALIKE)
        return Problem(self.rows, self.quality, objective, self.settings, generator, self.also, self.tokens, near)

    def selection(self, solution: Solution) -> Selection:
        """Evaluate and prove a solution."""
        mask = solution.mask
        if not mask.any():
            raise SelectionInputError(
                f"solver {self.settings.solver} selected nothing: no document it may take fits the budget: raise it"
            )
        raw = {name: float(metric.value(mask[None])[0]) for name, metric in self.metrics.items()}
        terms = self.scaled(raw) | {"mean_quality": raw.pop("quality"), **raw}
        reached, bound = self.objective.value_of(mask), None
        if self.settings.solver in BY_GAINS:  # close enough to the optimum for a useful bound
            bound = prove(self.objective, mask, self.random_objective)
        return Selection(
            indices=mask.nonzero()[:, 0].cpu().numpy(),
            inclusion=solution.inclusion.float().cpu().numpy(),
            objective=reached,
            terms=terms,
            upper_bound=bound,
            gap=relative_gap(reached, bound, self.random_objective),
            random_objective=self.random_objective,
        )


def solver_of(name: str) -> Callable[[Problem], Solution]:
    """Return the function of a solver, importing its module.

    >>> solver_of("random").__name__
    'solve_random'
    """
    solve = SELECTORS[name].solve
    if not isinstance(solve, str):
        return solve
    solver: Callable[[Problem], Solution] = resolve_name(f"fineweb_mask.models.selection.{solve}:solve_{name}")
    return solver
