"""Solve one block: its objective and scales, a solver's answer to them, and the proof of it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
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
    checked_features,
    checked_quality,
    checked_tokens,
)
from fineweb_mask.models.selection.measures import relative_gap
from fineweb_mask.models.selection.metrics.base import Metric, metric_class
from fineweb_mask.models.selection.metrics.facility import list_length
from fineweb_mask.models.selection.near_duplicates import without_near_duplicates
from fineweb_mask.models.selection.neighbours import Neighbours, nearest
from fineweb_mask.models.selection.objective import Objective
from fineweb_mask.models.selection.ranges import Ranges, Term
from fineweb_mask.models.selection.solvers.mean_field import solve_mean_field
from fineweb_mask.models.selection.solvers.policy_gradient import solve_policy_gradient
from fineweb_mask.models.selection.solvers.problem import History, Problem, Solution
from fineweb_mask.models.selection.solvers.prove import prove
from fineweb_mask.models.settings.selection import BY_GAINS, SelectionSettings
from fineweb_mask.models.settings.selectors.registry import SELECTORS

SHORT_LIST = 16  # neighbours of each document, without `facility`
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
    history
        (step, seconds since the start, best objective so far).
    """

    indices: NDArray[np.int64]
    inclusion: NDArray[np.float32]
    objective: float
    terms: dict[str, float]
    upper_bound: float | None
    gap: float | None
    random_objective: float
    history: list[tuple[int, float, float]]

    def __repr__(self) -> str:
        """Return what it is in a line, without its arrays."""
        bound = "no bound" if self.gap is None else f"at most {self.upper_bound:.4f} is possible, gap {self.gap:.2%}"
        terms = ", ".join(f"{name} {value:.4g}" for name, value in self.terms.items())
        of = f"{len(self.indices):,} of {len(self.inclusion):,} documents"
        return f"Selection: {of}, objective {self.objective:.4f} ({bound}; random {self.random_objective:.4f}); {terms}"


class BlockSolver:
    """Solve one block, several times with the same metrics, lists of neighbours and ranges."""

    def __init__(
        self,
        features: Any,  # noqa: ANN401 - numpy or torch, (n, d)
        quality: Any,  # noqa: ANN401 - numpy or torch, (n,) or (n, columns)
        settings: SelectionSettings,
        *,
        device: str | torch.device,
        tokens: Any = None,  # noqa: ANN401 - numpy or torch, (n,)
        quality_weights: Sequence[float] | None = None,
        own_metrics: Mapping[str, tuple[Metric, float]] | None = None,
        ranges: Ranges | None = None,
    ) -> None:
        """Check the inputs of a selection, as `select` describes them; without ranges, they are found when first read.

        Raises
        ------
        SelectionInputError
            If an input cannot be selected from.
        """
        device, own_metrics = torch.device(device), own_metrics or {}
        self.settings, self.also = settings, SelectorInputs()
        self.rows = checked_features(features, device)
        self.quality = checked_quality(quality, self.rows.n, device, quality_weights)
        self.tokens: Tensor | None = None
        self._costs = torch.ones(self.rows.n, dtype=torch.int64, device=device)
        if settings.budget_by == "tokens":
            self.tokens = self._costs = checked_tokens(tokens, self.rows.n, device)
        elif tokens is not None:
            self.tokens = checked_tokens(torch.as_tensor(tokens).clamp(min=1), self.rows.n, device)
        self._limit = checked_budget(settings.budget, settings.select_ratio, int(self._costs.sum()), settings.budget_by)
        if self._limit < (shortest := int(self._costs.min())):
            raise SelectionInputError(
                f"tokens: the budget of {self._limit} is below the shortest document's {shortest}: raise it"
            )
        if taken := settings.metric_weights.keys() & own_metrics.keys():
            raise SelectionInputError(
                f"own_metrics {sorted(taken)} have the names of built-in metrics in use: rename them"
            )
        self.own_metrics = {name: metric for name, (metric, _) in own_metrics.items()}
        for name, metric in self.own_metrics.items():
            if not isinstance(metric, Metric):
                raise SelectionInputError(
                    f"own_metrics {name!r} must be of a subclass of fineweb_mask.Metric, received a "
                    f"{type(metric).__name__}"
                )
            if settings.solver == "mean_field" and not metric.offers("gradient"):
                raise SelectionInputError(
                    f"metric {name!r} has no gradient(inclusion): add one, or use solver 'policy_gradient'"
                )
        self.weights = settings.metric_weights | {name: weight for name, (_, weight) in own_metrics.items()}
        if ranges is not None:
            if ranges.metrics.keys() != self.weights.keys():
                raise SelectionInputError(
                    f"ranges must be of the settings' metrics {sorted(self.weights)}, they are of "
                    f"{sorted(ranges.metrics)}"
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
            return nearest(self.rows, SHORT_LIST)
        return None

    @cached_property
    def metrics(self) -> Mapping[str, Metric]:
        """The metrics that the settings name, and one's own."""
        built_in: dict[str, Metric] = {
            name: metric_class(name).of(self.rows, self.budget, self.lists) for name in self.settings.metric_weights
        }
        return built_in | self.own_metrics

    @cached_property
    def none(self) -> Objective:
        """The objective, before it has terms."""
        return Objective(self.budget, self.quality)

    @cached_property
    def ranges(self) -> Ranges:
        """The scales of the terms, as `normalize` asks."""
        none, budget = self.none, self.budget
        quality = Term(float(self.quality.double() @ budget.costs.double() / budget.costs.sum()))
        terms = {name: Term(metric.random_value(budget)) for name, metric in self.metrics.items()}
        if self.settings.normalize == "none":
            return Ranges(quality, terms)
        if int(budget.costs[budget.allowed].sum()) <= budget.limit:  # one selection: what differs is rounding
            terms = {name: Term.between(term.random, term.random) for name, term in terms.items()}
            return Ranges(Term.between(quality.random, quality.random), terms)
        best = float(none.mean_quality(budget.fill(self.quality)[None])[0])
        for name, metric in track("ranges of metrics", list(self.metrics.items())):
            alone = replace(none, metrics={name: metric}, weights={name: 1.0})
            terms[name] = Term.between(terms[name].random, self._highest(alone))
        return Ranges(Term.between(quality.random, best), terms)

    def _highest(self, objective: Objective) -> float:
        """Return the highest value that a short search finds."""
        problem = self._problem(objective, History())
        if all(metric.offers("gradient") for metric in objective.metrics.values()):
            return objective.value_of(solve_mean_field(problem, rounds=RANGE_ROUNDS).mask)
        return objective.value_of(solve_policy_gradient(problem).mask)

    def objective(self, lamb: float) -> Objective:
        """Weigh quality and metrics as `lamb` asks."""
        quality, terms = self.ranges.quality, self.ranges.metrics
        shares = {name: (1 - lamb) * self.weights[name] * term.factor for name, term in terms.items()}
        linear_weight = lamb * quality.factor
        constant = -linear_weight * quality.base - sum(shares[name] * term.base for name, term in terms.items())
        return replace(self.none, metrics=self.metrics, linear_weight=linear_weight, weights=shares, constant=constant)

    def solve(self, objective: Objective, history: History) -> Solution:
        """Maximise an objective, or what the solver maximises instead."""
        return solver_of(self.settings.solver)(self._problem(objective, history))

    def _problem(self, objective: Objective, history: History) -> Problem:
        return Problem(
            self.rows,
            objective,
            self.settings,
            self.generator(),
            history,
            also=self.also,
            tokens=self.tokens,
            lists=self.lists,
        )

    def generator(self) -> torch.Generator:
        """Return a newly seeded generator, so that a solver's draws do not depend on those that found the ranges.

        It draws on the CPU, so that a GPU starts from the same documents.
        """
        return torch.Generator().manual_seed(self.settings.seed)

    def terms(self, mask: Tensor) -> dict[str, float]:
        """Evaluate every term on a selection, (n,) bool."""
        raw = {name: float(self.metrics[name].value(mask[None])[0]) for name in self.ranges.metrics}
        raw = {"mean_quality": float(self.none.mean_quality(mask[None])[0]), **raw}
        return self.ranges.terms(raw, self.weights)

    def select(self, progress: Callable[[int, float, float], None] | None = None) -> Selection:
        """Solve the block with the settings' `lamb`, and prove the solution."""
        lamb, history = self.settings.lamb, History(progress)
        return self.selection(lamb, self.solve(self.objective(lamb), history), history)

    def selection(self, lamb: float, solution: Solution, history: History, effort: float = 1.0) -> Selection:
        """Evaluate and prove a solution, with a share of the usual effort."""
        if not solution.mask.any():
            raise SelectionInputError(
                f"solver {self.settings.solver} selected nothing: no document it may take fits the budget: raise it"
            )
        objective, random_objective = self.objective(lamb), self.ranges.random_objective(lamb, self.weights)
        reached = objective.value_of(solution.mask)
        bound = None
        if self.settings.solver in BY_GAINS:  # close enough to the optimum for a useful bound
            bound = prove(objective, solution.mask, random_objective, effort)
        return Selection(
            indices=solution.mask.nonzero()[:, 0].cpu().numpy(),
            inclusion=solution.inclusion.float().cpu().numpy(),
            objective=reached,
            terms=self.terms(solution.mask),
            upper_bound=bound,
            gap=relative_gap(reached, bound, random_objective),
            random_objective=random_objective,
            history=history.entries,
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
