"""Scale the terms of the objective as `normalize` asks (ours).

`range` maps each term so that 0 is the value of a uniform random subset and 1 the best that the term alone can
reach: lamb = 0.5 then means the same on every corpus. Both ends of quality are exact. The random end of a metric is
its `random_value`, or else the mean over sampled masks; its best end is what the solver finds with lamb = 0.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor

from fineweb_mask.models.runtime.progress import track
from fineweb_mask.models.selection.metrics.base import Metric, SupportsGradient, SupportsRandomValue
from fineweb_mask.models.selection.metrics.near_duplicates import NearDuplicates
from fineweb_mask.models.selection.problem.objective import Objective
from fineweb_mask.models.selection.rows import Rows
from fineweb_mask.models.selection.solvers.mean_field import solve_mean_field
from fineweb_mask.models.selection.solvers.policy_gradient import solve_policy_gradient
from fineweb_mask.models.selection.solvers.problem import Problem
from fineweb_mask.models.settings.selection import SelectionSettings

RANDOM_MASKS = 16  # drawn to estimate a metric on random subsets
NEAR_DUPLICATES = "near_duplicates"  # the name of that term among an objective's metrics
RANGE_STEPS, RANGE_RISE = 24, 0.005  # of annealing; a round of swaps that gains so small a share of all is the last
NO_RANGE = 1e-6  # a range below this share of the term's size is float32 rounding: the term is constant


@dataclass(frozen=True)
class Term:
    """One term of the objective: (raw - base) * factor."""

    random: float  # raw value expected of a uniform random subset
    base: float = 0.0
    factor: float = 1.0

    def scaled(self, raw: float) -> float:
        """Return the term as it enters J."""
        return (raw - self.base) * self.factor


@dataclass(frozen=True)
class Ranges:
    """The scales of all terms at one budget: the same for every solver and every `lamb`."""

    quality: Term
    metrics: Mapping[str, Term]

    @classmethod
    def of_details(cls, details: Mapping[str, Any]) -> Self:
        """Make the ranges of what `asdict` made of them."""
        metrics = {name: Term(**term) for name, term in details["metrics"].items()}
        return cls(Term(**details["quality"]), metrics)

    def terms(self, raw: Mapping[str, float], weights: Mapping[str, float]) -> dict[str, float]:
        """Return quality and diversity as they enter J, and then the raw values: "mean_quality" and every metric's."""
        diversity = sum(weights[name] * term.scaled(raw[name]) for name, term in self.metrics.items())
        return {"quality": self.quality.scaled(raw["mean_quality"]), "diversity": diversity, **raw}


@dataclass(frozen=True)
class Scaled:
    """An objective and the scales and weights of its terms."""

    objective: Objective
    ranges: Ranges
    weights: Mapping[str, float]
    near_duplicates: tuple[NearDuplicates, float] | None = None  # that term and its weight: `lamb` does not change it

    def random_objective(self, lamb: float) -> float:
        """J expected of a uniform random subset."""
        ranges, penalty = self.ranges, 0.0
        raw = {name: term.random for name, term in ranges.metrics.items()}
        terms = ranges.terms({"mean_quality": ranges.quality.random, **raw}, self.weights)
        if self.near_duplicates is not None:
            pairs, weight = self.near_duplicates
            penalty = weight * pairs.random_value(self.objective.size)
        return lamb * terms["quality"] + (1 - lamb) * terms["diversity"] + penalty

    def terms(self, mask: Tensor) -> dict[str, float]:
        """Evaluate every term on a selection, (n,) bool."""
        raw = {name: float(self.objective.metrics[name].value(mask[None])[0]) for name in self.ranges.metrics}
        terms = self.ranges.terms({"mean_quality": self.objective.mean_quality(mask), **raw}, self.weights)
        if self.near_duplicates is not None:
            pairs, weight = self.near_duplicates
            terms["near_duplicate_cost"] = -weight * float(pairs.value(mask[None])[0])
        return terms


class BlockEnds:
    """The ends of a metric's range over the selections of a block."""

    def __init__(self, settings: SelectionSettings, rows: Rows, generator: torch.Generator) -> None:
        self.settings, self._rows, self._generator = settings, rows, generator

    def random(self, metric: Metric, objective: Objective) -> float:
        """Return `random_value`, or the mean over a few random selections."""
        if isinstance(metric, SupportsRandomValue):
            return metric.random_value(objective.size)
        keys = torch.rand((RANDOM_MASKS, objective.n), generator=self._generator).to(objective.quality.device)
        masks = torch.stack([objective.top(one) for one in keys])
        return float(metric.value(masks).double().mean())

    def best(self, metric: Metric, objective: Objective) -> float:
        """Return the value of the selection that a solver finds, in fewer steps than the answer takes."""
        short = partial(solve_mean_field, n_steps=RANGE_STEPS, least_rise=RANGE_RISE)
        solve = short if isinstance(metric, SupportsGradient) else solve_policy_gradient
        problem = Problem(self._rows, objective, self.settings, self._generator)
        return objective.value_of(solve(problem).mask)


def find_ranges(none: Objective, metrics: Mapping[str, Metric], ends: BlockEnds) -> Ranges:
    """Find the scale of every term, of an objective without any; for `range` every metric is maximised alone."""
    quality, knapsack = none.quality, none.knapsack
    quality_term = Term(none.mean_quality(torch.ones_like(quality, dtype=torch.bool)))
    terms = {name: Term(ends.random(metric, none)) for name, metric in metrics.items()}
    is_forced = none.n <= none.budget if knapsack is None else int(knapsack.tokens.sum()) <= knapsack.limit
    if ends.settings.normalize == "range" and is_forced:  # there is one selection: what its terms differ by is rounding
        none_of = {name: _range(term.random, term.random) for name, term in terms.items()}
        return Ranges(_range(quality_term.random, quality_term.random), none_of)
    if ends.settings.normalize == "range":
        if knapsack is None:
            best = float(quality.topk(none.budget, sorted=False).values.mean(dtype=torch.float64))
        else:
            best = none.mean_quality(knapsack.best_mean(quality))
        quality_term = _range(quality_term.random, best)
        for name, metric in track("ranges of metrics", list(metrics.items())):
            alone = replace(none, metrics={name: metric}, weights={name: 1.0})
            terms[name] = _range(terms[name].random, ends.best(metric, alone))
    return Ranges(quality_term, terms)


def weigh(
    none: Objective,  # without any term
    metrics: Mapping[str, Metric],
    ranges: Ranges,
    *,
    lamb: float,
    weights: Mapping[str, float],
    near_duplicates: tuple[NearDuplicates, float] | None = None,  # the term and its weight
) -> Scaled:
    """Weigh quality and metrics of known ranges as `lamb` asks."""
    terms = ranges.metrics
    shares = {name: (1 - lamb) * weights[name] * term.factor for name, term in terms.items()}
    linear_weight = lamb * ranges.quality.factor
    constant = -linear_weight * ranges.quality.base - sum(shares[name] * term.base for name, term in terms.items())
    if near_duplicates is not None:
        pairs, weight = near_duplicates
        metrics, shares = {**metrics, NEAR_DUPLICATES: pairs}, shares | {NEAR_DUPLICATES: weight}
    objective = replace(none, metrics=metrics, linear_weight=linear_weight, weights=shares, constant=constant)
    return Scaled(objective, ranges, weights, near_duplicates)


def _range(low: float, high: float) -> Term:
    """Map low to 0 and high to 1; a term that does not vary is 0 everywhere."""
    varies = high - low > NO_RANGE * max(abs(low), abs(high))
    return Term(low, low, 1 / (high - low) if varies else 0.0)
