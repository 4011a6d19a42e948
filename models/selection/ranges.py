"""Scale the terms of the objective as `normalize` asks (ours).

`range` maps each term so that 0 is the value of a uniform random subset and 1 the best that the term alone can
reach: lamb = 0.5 then means the same on every corpus. Both ends of quality are exact. The random end of a metric is
its `random_value`, or else the mean over sampled masks; its best end is what the solver finds with lamb = 0.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import torch

from fineweb_mask.models.runtime.progress import track
from fineweb_mask.models.selection.metrics.base import Metric
from fineweb_mask.models.selection.objective import Objective

RANDOM_MASKS = 16  # drawn to estimate a metric on random subsets
NO_RANGE = 1e-6  # a range below this share of the term's size is float32 rounding: the term is constant


@dataclass(frozen=True)
class Term:
    """One term of the objective: (raw - base) * factor."""

    random: float  # raw value expected of a uniform random subset
    base: float = 0.0
    factor: float = 1.0

    @classmethod
    def between(cls, low: float, high: float) -> Self:
        """Map low to 0 and high to 1; a term that does not vary is 0 everywhere."""
        varies = high - low > NO_RANGE * max(abs(low), abs(high))
        return cls(low, low, 1 / (high - low) if varies else 0.0)

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

    def random_objective(self, lamb: float, weights: Mapping[str, float]) -> float:
        """J expected of a uniform random subset."""
        raw = {name: term.random for name, term in self.metrics.items()}
        terms = self.terms({"mean_quality": self.quality.random, **raw}, weights)
        return lamb * terms["quality"] + (1 - lamb) * terms["diversity"]


def find_ranges(
    none: Objective,
    metrics: Mapping[str, Metric],
    normalize: str,
    generator: torch.Generator,
    solve: Callable[[Objective], float],
) -> Ranges:
    """Find the scale of every term.

    Parameters
    ----------
    none
        The objective, without any term.
    metrics
        The metrics by name.
    normalize
        "none" or "range", as in the settings.
    generator
        Draws the masks on which a metric without `random_value` is estimated.
    solve
        Returns the highest value that it finds of an objective.
    """
    budget, quality = none.budget, none.quality
    everyone = quality.double() @ budget.costs.double() / budget.costs.sum()
    quality_term = Term(float(everyone))
    terms = {name: Term(_random(metric, none, generator)) for name, metric in metrics.items()}
    if normalize == "none":
        return Ranges(quality_term, terms)
    if int(budget.costs[budget.allowed].sum()) <= budget.limit:  # one selection: what differs is rounding
        terms = {name: Term.between(term.random, term.random) for name, term in terms.items()}
        return Ranges(Term.between(quality_term.random, quality_term.random), terms)
    best = float(none.mean_quality(budget.fill(quality)[None])[0])
    for name, metric in track("ranges of metrics", list(metrics.items())):
        alone = replace(none, metrics={name: metric}, weights={name: 1.0})
        terms[name] = Term.between(terms[name].random, solve(alone))
    return Ranges(Term.between(quality_term.random, best), terms)


def weigh(
    none: Objective, metrics: Mapping[str, Metric], ranges: Ranges, *, lamb: float, weights: Mapping[str, float]
) -> Objective:
    """Weigh quality and metrics of known ranges as `lamb` asks, in an objective without any term."""
    terms = ranges.metrics
    shares = {name: (1 - lamb) * weights[name] * term.factor for name, term in terms.items()}
    linear_weight = lamb * ranges.quality.factor
    constant = -linear_weight * ranges.quality.base - sum(shares[name] * term.base for name, term in terms.items())
    return replace(none, metrics=metrics, linear_weight=linear_weight, weights=shares, constant=constant)


def _random(metric: Metric, objective: Objective, generator: torch.Generator) -> float:
    """Return `random_value`, or the mean over a few random selections."""
    if metric.offers("random_value"):
        return metric.random_value(objective.budget)
    keys = torch.rand((RANDOM_MASKS, objective.n), generator=generator).to(objective.quality.device)
    masks = torch.stack([objective.budget.fill(one) for one in keys])
    return float(metric.value(masks).double().mean())
