"""Scale the terms of the objective as `normalize` asks (ours).

`range` maps each term so that 0 is the value of a uniform random subset and 1 the best that the term alone can
reach: lamb = 0.5 then means the same on every corpus. Both ends of quality are exact. The random end of a metric is
its `random_value`, or else the mean over sampled masks; its best end is what the solver finds with lamb = 0
(`BlockSolver.ranges`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

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
