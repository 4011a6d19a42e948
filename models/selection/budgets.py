"""Divide one budget among blocks that are selected from separately, at one dual price (ours).

A block's curve says what it adds to the objective of the whole selection, by how much is selected from it. The budgets
are those at which the last unit adds the same in every block: its dual price. A block in which it adds more gives more.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray

from fineweb_mask.models.selection.block import checked_block
from fineweb_mask.models.selection.problem.normalisation import Ranges, Term
from fineweb_mask.models.selection.solvers.problem import History
from fineweb_mask.models.settings.selection import METRICS, SelectionSettings

MULTIPLES = (0.25, 1.0, 4.0)
"""Of the share `select_ratio`, at which a curve is measured: no block gives less or more than these ends."""

STEPS = 200  # bisections: past the rounding of float64


@dataclass(frozen=True, order=True)
class Point:
    """A selection from a block."""

    budget: int  # documents or tokens
    mass: int  # selected documents or tokens: what the objective is a mean over
    terms: dict[str, float]  # as `Selection.terms`


@dataclass(frozen=True)
class Offer:
    """What a block has to give: its size, the ranges of its terms, and a few selections from it."""

    available: int  # documents or tokens, as the budget counts
    mass: int  # all its documents or tokens
    ranges: Ranges  # at the share that is selected from the corpus
    points: list[Point]  # by rising budget, as many as differ

    @classmethod
    def of(
        cls,
        features: Any,  # noqa: ANN401 - as for `select`
        quality: Any,  # noqa: ANN401
        settings: SelectionSettings,
        *,
        device: str | torch.device = "cpu",
        tokens: NDArray[np.integer[Any]] | None = None,
    ) -> Self:
        """Select from a block, as `select` does, at a few shares; the ranges are those at `select_ratio`."""
        ones = np.ones(len(features), dtype=np.int64)
        lengths = ones if tokens is None or settings.budget_by == "documents" else tokens
        masses = ones if settings.weighed_by == "documents" else lengths
        available, least = int(lengths.sum()), int(lengths.min())
        budgets = [
            min(available, max(least, round(multiple * settings.select_ratio * available))) for multiple in MULTIPLES
        ]
        usual, points = budgets[MULTIPLES.index(1.0)], list[Point]()
        ranges: Ranges | None = None
        for budget in sorted(set(budgets), key=lambda budget: budget != usual):  # that of the ranges first
            one = settings.model_copy(update={"budget": budget})
            block = checked_block(features, quality, one, device=device, tokens=lengths)
            ranges = ranges or block.ranges
            block.take_ranges(ranges)
            scaled, solution = block.solve(History(), settings.lamb)
            mask = solution.mask.cpu().numpy()
            points.append(Point(budget, int(masses[mask].sum()), scaled.terms(solution.mask)))
        assert ranges is not None  # noqa: S101 - there is at least one budget
        return cls(available, int(masses.sum()), ranges, sorted(points))

    @classmethod
    def of_details(cls, details: Mapping[str, Any]) -> Self:
        """Make it of what `asdict` made of it."""
        points = [Point(**point) for point in details["points"]]
        return cls(details["available"], details["mass"], Ranges.of_details(details["ranges"]), points)


def common_scales(offers: Sequence[Offer]) -> Ranges:
    """Return one scale for every term: the means of the blocks' ends, weighted by their masses."""
    masses = np.array([offer.mass for offer in offers], dtype=np.float64)

    def common(terms: Sequence[Term]) -> Term:
        widths = [1 / term.factor if term.factor else 0.0 for term in terms]
        width = float(np.average(widths, weights=masses))
        random, base = (
            float(np.average([getattr(term, end) for term in terms], weights=masses)) for end in ("random", "base")
        )
        return Term(random, base, 1 / width if width else 0.0)

    names = offers[0].ranges.metrics
    return Ranges(
        common([offer.ranges.quality for offer in offers]),
        {name: common([offer.ranges.metrics[name] for offer in offers]) for name in names},
    )


@dataclass(frozen=True)
class Curve:
    """A block's value v(k) = c + (level + fall) k - fall k log k.

    The dual price v'(k) = level - fall log k falls with k.
    """

    usual: float  # the share of the block that is selected from the corpus
    least: int
    most: int
    level: float = 0.0
    fall: float = 0.0  # 0 where no falling price fits: the block gives its usual share

    @classmethod
    def through(cls, budgets: Sequence[int], values: Sequence[float], usual: float) -> Self:
        """Fit the curve to its values at three budgets; with fewer, or if its dual price does not fall, it has none."""
        found = cls(usual, budgets[0], budgets[-1])
        if len(budgets) < len(MULTIPLES):
            return found
        k = np.array(budgets, dtype=np.float64)
        rises = np.stack([np.diff(k), -np.diff(k * np.log(k))], axis=1)
        both, fall = np.linalg.solve(rises, np.diff(values)).tolist()
        return cls(usual, budgets[0], budgets[-1], both - fall, fall) if fall > 0 else found

    def price(self, budget: float) -> float:
        """Return what the last unit of a budget adds."""
        return float(self.level - self.fall * np.log(budget))

    def demand(self, price: float) -> float:
        """Return the budget at which the last unit adds as much as a dual price."""
        if not self.fall:
            return min(max(self.usual, self.least), self.most)
        exponent = (self.level - price) / self.fall
        return float(np.exp(np.clip(exponent, np.log(self.least), np.log(self.most))))


def curve(offer: Offer, scales: Ranges, settings: SelectionSettings) -> Curve:
    """Return the curve of a block, all terms on the scales of the corpus.

    Quality, near-duplicates and the metrics of a moment are means over what is selected, so that a block counts by what
    is selected from it. `facility` is a mean over all documents, of which the block has the same share at every budget.
    """
    lamb, whole = settings.lamb, settings.select_ratio * offer.mass

    def value(point: Point) -> float:
        terms = point.terms
        mean = lamb * scales.quality.scaled(terms["mean_quality"]) - terms.get("near_duplicate_cost", 0.0)
        total = point.mass * mean
        for name, weight in settings.metric_weights.items():
            counted = whole if METRICS[name].moment is None else point.mass
            total += (1 - lamb) * weight * scales.metrics[name].scaled(terms[name]) * counted
        return total

    budgets = [point.budget for point in offer.points]
    return Curve.through(budgets, [value(point) for point in offer.points], settings.select_ratio * offer.available)


class Division(NamedTuple):
    """A budget that is divided among blocks."""

    price: float | None  # dual price: what the last unit adds in every block between its ends; None if no block's falls
    budgets: list[int]  # by block


def divide(curves: Sequence[Curve], total: int) -> Division:
    """Divide a total among blocks at one dual price; where their ends forbid it, the nearest total that they allow.

    Examples
    --------
    >>> poor, rich = (Curve(10, 2, 40, level, 1.0) for level in (1.0, 2.0))
    >>> divide([poor, rich], 20).budgets
    [5, 15]
    """
    least, most = (np.array([getattr(one, end) for one in curves], dtype=np.int64) for end in ("least", "most"))
    total = int(np.clip(total, least.sum(), most.sum()))
    falling = [one for one in curves if one.fall]
    price = None
    if falling:
        low = min(one.price(one.most) for one in falling)
        high = max(one.price(one.least) for one in falling)
        for _ in range(STEPS):
            price = (low + high) / 2
            if sum(one.demand(price) for one in curves) > total:
                low = price
            else:
                high = price
    wanted = np.array([one.demand(0.0 if price is None else price) for one in curves])
    short = total - wanted.sum()
    room = most - wanted if short > 0 else wanted - least  # where no price fits, each by the room that it has
    if room.sum() > 0:
        wanted += short * room / room.sum()
    return Division(price, _rounded(wanted, least, most, total))


def _rounded(wanted: NDArray[np.float64], least: NDArray[np.int64], most: NDArray[np.int64], total: int) -> list[int]:
    """Round budgets (b,) between their ends to a total, those of the largest remainders up, ties by position."""
    budgets = np.clip(np.floor(wanted + 1e-9).astype(np.int64), least, most)
    while rest := total - int(budgets.sum()):
        step = 1 if rest > 0 else -1
        order = np.argsort(step * (budgets - wanted), kind="stable")
        order = order[budgets[order] != (most if rest > 0 else least)[order]]
        budgets[order[: abs(rest)]] += step
    return [int(budget) for budget in budgets]


def scales_at(scales: Ranges, counted: float) -> Ranges:
    """Return the scales by which a block's own objective counts the terms as that of the whole selection does.

    A block's objective is a mean over what is selected from it. `facility` counts in it more the less that is:
    `counted` is the usual share of the block over its budget.
    """
    metrics = {
        name: replace(term, factor=term.factor * (counted if METRICS[name].moment is None else 1.0))
        for name, term in scales.metrics.items()
    }
    return Ranges(scales.quality, metrics)
