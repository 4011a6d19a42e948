"""Solve one block: its objective, scales and near-duplicates, a solver's answer to them, and the proof of it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib import import_module
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fineweb_mask.models.selection.graphs.neighbours import LARGE, nearest_in_groups
from fineweb_mask.models.selection.graphs.pairs import Pairs, listed_pairs, similar_pairs
from fineweb_mask.models.selection.inputs import (
    SelectionInputError,
    SelectorInputs,
    checked_budget,
    checked_features,
    checked_quality,
    checked_tokens,
)
from fineweb_mask.models.selection.metrics.base import Metric, SupportsLists, metric_class
from fineweb_mask.models.selection.metrics.near_duplicates import NearDuplicates
from fineweb_mask.models.selection.problem.measures import relative_gap
from fineweb_mask.models.selection.problem.normalisation import (
    NEAR_DUPLICATES,
    BlockEnds,
    Ranges,
    Scaled,
    find_ranges,
    weigh,
)
from fineweb_mask.models.selection.problem.objective import Objective
from fineweb_mask.models.selection.problem.token_budget import Knapsack
from fineweb_mask.models.selection.problem.upper_bound import assumption, tightened_bound
from fineweb_mask.models.selection.rows import Rows
from fineweb_mask.models.selection.solvers.mean_field import check_gradients
from fineweb_mask.models.selection.solvers.problem import History, Problem, Solution
from fineweb_mask.models.settings.selection import SelectionSettings
from fineweb_mask.models.settings.selectors.registry import SELECTORS

FORBIDDING = 3.0  # least weight of near-duplicates that are forbidden, while the objective is maximised
SHORT_LIST = 16  # neighbours of each document among which near-duplicates are looked for, without `facility`
BOUNDED = {"mean_field", "greedy"}  # solvers close enough to the optimum for a useful bound


@dataclass(frozen=True, eq=False)
class Selection:
    """The selected documents, their objective, and how much better any selection could be.

    By tokens, a selection is full: it keeps within the budget, and no other document fits into the room left.

    Attributes
    ----------
    indices
        Selected documents, (K,) int64, ascending; fewer than K where near-duplicates are forbidden and too few
        documents are unlike each other.
    inclusion
        (n,) float32: the solver's logit, probability or score. For ranking only; larger ranks higher.
    objective
        J of the selection.
    terms
        "quality", "diversity" and "near_duplicate_cost" (left out without that term) as they enter J
        (J = lamb * quality + (1 - lamb) * diversity - near_duplicate_cost), "mean_quality" and each metric's raw
        value under its name; means are over documents or tokens, as the budget counts.
    upper_bound
        No selection of K documents has a higher J, given `bound_assumes`; by tokens, no full selection of however many
        documents has one. None if the solver or a metric provides no bound.
    gap
        `relative_gap` of objective, upper_bound and random_objective.
    random_objective
        J expected of a uniform random selection within the same budget.
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

    def __repr__(self) -> str:
        """Return what it is in a line, without its arrays."""
        bound = "no bound" if self.gap is None else f"at most {self.upper_bound:.4f} is possible, gap {self.gap:.2%}"
        terms = ", ".join(f"{name} {value:.4g}" for name, value in self.terms.items())
        of = f"{len(self.indices):,} of {len(self.inclusion):,} documents"
        return f"Selection: {of}, objective {self.objective:.4f} ({bound}; random {self.random_objective:.4f}); {terms}"


class BlockSolver:
    """Solve one block, unit rows (n, d) and quality (n,) float32, several times, sharing metrics and ranges."""

    def __init__(
        self, rows: Rows, quality: Tensor, settings: SelectionSettings, own_metrics: Mapping[str, tuple[Metric, float]]
    ) -> None:
        if taken := {*settings.metric_weights, NEAR_DUPLICATES} & own_metrics.keys():
            raise SelectionInputError(
                f"own_metrics {sorted(taken)} have the names of built-in metrics in use: rename them"
            )
        self.own_metrics = {name: metric for name, (metric, _) in own_metrics.items()}
        if settings.solver == "mean_field":
            check_gradients(self.own_metrics)  # before the ranges are found, which takes minutes
        self.rows, self.quality, self.settings = rows, quality, settings
        self.weights = settings.metric_weights | {name: weight for name, (_, weight) in own_metrics.items()}
        self.knapsack: Knapsack | None = None
        self.tokens: Tensor | None = None
        self.also = SelectorInputs()

    @property
    def budget(self) -> int:
        """Documents to select; for a budget of tokens, about as many as fill it."""
        if self.knapsack is not None:
            return max(1, round(self.knapsack.size))
        return checked_budget(self.settings.budget, self.settings.select_ratio, self.rows.n, "documents")

    @property
    def without_terms(self) -> Objective:
        """The objective of selections of the budget, before it has terms."""
        return Objective(self.quality, self.budget, knapsack=self.knapsack)

    @cached_property
    def metrics(self) -> Mapping[str, Metric]:
        """The metrics that the settings name, and one's own."""
        masses = None if self.knapsack is None else self.knapsack.masses
        made: dict[str, Metric] = {
            name: metric_class(name).for_block(self.rows, self.settings, self.budget, masses)
            for name in self.settings.metric_weights
        }
        return made | self.own_metrics

    @cached_property
    def ranges(self) -> Ranges:
        """The scales of the terms."""
        _ = self.near_duplicates  # before the metrics hold anything: to find them takes more memory than to keep them
        return find_ranges(self.without_terms, self.metrics, BlockEnds(self.settings, self.rows, self.generator()))

    def take_ranges(self, ranges: Ranges) -> None:
        """Use ranges found before."""
        if ranges.metrics.keys() != self.weights.keys():
            raise SelectionInputError(
                f"ranges must be of the settings' metrics {sorted(self.weights)}, they are of {sorted(ranges.metrics)}"
            )
        self.ranges = ranges

    def with_weights(self, quality: Tensor, settings: SelectionSettings) -> "BlockSolver":
        """Return the solver of the same documents and budget with another quality (n,) and other weights of metrics.

        It shares what depends on neither: the metrics, their ranges and near-duplicates.
        """
        other, names = BlockSolver(self.rows, quality, settings, {}), settings.metric_weights
        other.knapsack, other.tokens, other.near_duplicates = self.knapsack, self.tokens, self.near_duplicates
        other.metrics = {name: self.metrics[name] for name in names}
        of_quality = find_ranges(other.without_terms, {}, BlockEnds(settings, self.rows, self.generator()))
        other.ranges = Ranges(of_quality.quality, {name: self.ranges.metrics[name] for name in names})
        return other

    def scaled(self, lamb: float) -> Scaled:
        """Return the objective of selections of the budget."""
        near = self.near_duplicates
        return weigh(
            self.without_terms, self.metrics, self.ranges, lamb=lamb, weights=self.weights, near_duplicates=near
        )

    @cached_property
    def near_duplicates(self) -> tuple[NearDuplicates, float] | None:
        """The term against near-duplicates and its weight; None if the settings leave it out."""
        settings = self.settings.near_duplicates
        if not settings.counted:
            return None
        pairs = NearDuplicates.of(self.rows, settings.threshold, self.knapsack, self._pairs())
        return pairs, max(settings.weight, FORBIDDING) if settings.forbid else settings.weight

    def _pairs(self) -> Pairs:
        """Find near-duplicates: all, if they are forbidden or documents few; else those that lists of neighbours hold.

        The lists are those of `facility`, where it takes part.
        """
        settings = self.settings.near_duplicates
        facility = self.metrics.get("facility")
        if settings.forbid:
            return similar_pairs(self.rows, settings.threshold)
        if isinstance(facility, SupportsLists):
            return listed_pairs(facility.graph, settings.threshold)
        if self.rows.n <= LARGE[self.rows.device.type]:
            return similar_pairs(self.rows, settings.threshold)
        lists = nearest_in_groups(self.rows, SHORT_LIST, seed=self.settings.seed)
        return listed_pairs(lists, settings.threshold)

    def solve(self, history: History, lamb: float, start: Tensor | None = None) -> tuple[Scaled, Solution]:
        """Maximise the objective of selections of the budget."""
        scaled = self.scaled(lamb)
        return scaled, self.solution(scaled, history, start)

    def solution(self, scaled: Scaled, history: History, start: Tensor | None = None) -> Solution:
        """Maximise an objective, or what the solver maximises instead."""
        problem = Problem(
            self.rows,
            scaled.objective,
            self.settings,
            self.generator(),
            history,
            start,
            also=self.also,
            tokens=self.tokens,
        )
        solution = solver_of(self.settings.solver)(problem)
        if self.settings.near_duplicates.forbid:
            solution = replace(solution, mask=self._kept_apart(solution))
        return solution

    def _kept_apart(self, solution: Solution) -> Tensor:
        """Drop the worse of every two near-duplicates and fill up with the next best that have none: (n,) bool."""
        term = self.near_duplicates
        assert term is not None  # noqa: S101 - they are forbidden
        pairs, threshold = term[0], self.settings.near_duplicates.threshold
        most, lengths = int(solution.mask.sum()), None
        if self.knapsack is not None:
            most, lengths = self.knapsack.limit, self.knapsack.tokens
        order = in_order(solution)
        while True:
            mask = pairs.independent(order, most, lengths)
            if pairs.pairs.complete:
                return mask
            chosen = mask.nonzero()[:, 0]  # there are pairs that are not listed: look for them among these
            missed = similar_pairs(Rows(self.rows.take(chosen)), threshold)
            if not len(missed):
                return mask
            rank = torch.empty_like(order)
            rank[order] = torch.arange(len(order), device=order.device)
            first, second = chosen[missed.first], chosen[missed.second]
            worse = torch.where(rank[first] > rank[second], first, second)
            order = order[~torch.isin(order, worse)]

    def generator(self) -> torch.Generator:
        """Return a newly seeded generator, so that a solver's draws do not depend on those that found the ranges.

        It draws on the CPU, so that a GPU starts from the same documents.
        """
        return torch.Generator().manual_seed(self.settings.seed)

    def selection(
        self, scaled: Scaled, solution: Solution, history: History, lamb: float, effort_share: float = 1.0
    ) -> Selection:
        """Evaluate and prove a solution."""
        objective = scaled.objective
        if not solution.mask.any():
            raise SelectionInputError(
                f"solver {self.settings.solver} selected nothing: no document it may take fits the budget: raise it"
            )
        reached = objective.value_of(solution.mask)
        random_objective = scaled.random_objective(lamb)
        bound = None
        if self.settings.solver in BOUNDED and objective.is_filled_by(solution.mask):
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


def in_order(solution: Solution) -> Tensor:
    """Return the selected documents, then the others, each by inclusion: (n,) int64."""
    wanted = solution.inclusion.double()
    span = wanted.max() - wanted.min() + 1
    return (wanted + span * solution.mask).sort(descending=True, stable=True).indices


def checked_block(
    features: Any,  # noqa: ANN401 - numpy or torch, (n, d)
    quality: Any,  # noqa: ANN401 - numpy or torch, (n,) or (n, columns)
    settings: SelectionSettings,
    *,
    device: str | torch.device,
    tokens: Any = None,  # noqa: ANN401 - numpy or torch, (n,)
    quality_weights: Sequence[float] | None = None,
    own_metrics: Mapping[str, tuple[Metric, float]] | None = None,
) -> BlockSolver:
    """Check the inputs of a selection, as `select` describes them, and make its solver."""
    device = torch.device(device)
    rows = checked_features(features, device)
    combined = checked_quality(quality, rows.n, device, quality_weights)
    block = BlockSolver(rows, combined, settings, own_metrics or {})
    if settings.budget_by == "tokens":
        block.tokens = counts = checked_tokens(tokens, rows.n, device)
        limit = checked_budget(settings.budget, settings.select_ratio, int(counts.sum()), "tokens")
        if limit < int(counts.min()):
            raise SelectionInputError(
                f"tokens: the budget of {limit} is below the shortest document's {int(counts.min())}: raise it"
            )
        block.knapsack = Knapsack.of(counts, limit)
    elif tokens is not None:
        block.tokens = checked_tokens(torch.as_tensor(tokens).clamp(min=1), rows.n, device)
    return block


def solver_of(name: str) -> Callable[[Problem], Solution]:
    """Return the function of a solver, importing its module.

    >>> solver_of("random").__name__
    'solve_random'
    """
    solve = SELECTORS[name].solve
    if not isinstance(solve, str):
        return solve
    module, _, function = solve.partition(":")
    solver: Callable[[Problem], Solution] = getattr(import_module(f"fineweb_mask.models.selection.{module}"), function)
    return solver
