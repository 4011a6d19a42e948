"""Apply a rule to all parts of a corpus: find its threshold, the objective it reaches, and a bound on every other one.

One pass reads every document once. Documents near the expected threshold, the *margin*, are kept with their vectors;
of all others only sums are. When the parts are added up, the threshold is found within the margin, and all sums are
exact, because those of the margin's selected documents are added then.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fineweb_mask.models.selection.corpus.documents import Arrays, Documents, prefixed, without_prefix
from fineweb_mask.models.selection.corpus.rule import FIRST, LAST, Measured, Place, Rule
from fineweb_mask.models.selection.inputs import SelectionInputError
from fineweb_mask.models.selection.metrics.moment import MomentMetric


class Margin(NamedTuple):
    """Between which places the threshold is expected, and levels of worth between which documents are counted."""

    upper: Place  # documents before it are selected
    lower: Place  # documents after it are not
    levels: NDArray[np.float32]  # (b,), ascending

    def arrays(self) -> Arrays:
        """Return what `of_arrays` makes the margin of."""
        return {"places": np.array([self.upper, self.lower]), "levels": self.levels}

    @classmethod
    def of_arrays(cls, arrays: Arrays) -> Self:
        """Make the margin of its arrays."""
        upper, lower = arrays["places"].tolist()
        return cls(Place(*upper), Place(*lower), arrays["levels"])


@dataclass(frozen=True, eq=False)
class Sums:
    """Sums over selected documents, float64."""

    documents: int
    tokens: int
    mass: float
    quality: float  # times mass
    credits: Mapping[str, float]  # of the metrics that have them
    gains: float
    moments: Mapping[str, Tensor]

    @classmethod
    def of(cls, documents: Documents, measured: Measured, chosen: NDArray[np.bool_]) -> "Sums":
        """Sum over some of the documents, (n,)."""
        device = measured.gains.device
        mask = torch.as_tensor(chosen, device=device)
        taken = mask.double()
        masses = taken if measured.masses is None else taken * measured.masses.double()
        credits_of = {
            name: float(metric.credit.double() @ taken)
            for name, metric in measured.metrics.items()
            if metric.credit is not None
        }
        return cls(
            documents=int(chosen.sum()),
            tokens=0 if documents.tokens is None else int(documents.tokens[chosen].sum()),
            mass=float(masses.sum()),
            quality=float(masses @ torch.as_tensor(documents.quality, device=device).double()),
            credits=credits_of,
            gains=float(measured.gains[mask].sum(dtype=torch.float64)),
            moments={name: metric.moment(mask).cpu() for name, metric in measured.metrics.items()},
        )

    def arrays(self) -> Arrays:
        """Return what `of_arrays` makes the sums of."""
        return {
            "counts": np.array([self.documents, self.tokens], dtype=np.int64),
            "numbers": np.array([self.mass, self.quality, self.gains]),
            **prefixed("credits", {name: np.array(credit) for name, credit in self.credits.items()}),
            **prefixed("moments", {name: moment.numpy() for name, moment in self.moments.items()}),
        }

    @classmethod
    def of_arrays(cls, arrays: Arrays) -> Self:
        """Make the sums of their arrays."""
        documents, tokens = arrays["counts"].tolist()
        mass, quality, gains = arrays["numbers"].tolist()
        credits_of = {name: float(credit) for name, credit in without_prefix("credits", arrays).items()}
        moments = {name: torch.from_numpy(moment) for name, moment in without_prefix("moments", arrays).items()}
        return cls(documents, tokens, mass, quality, credits_of, gains, moments)

    def __add__(self, other: "Sums") -> "Sums":
        return Sums(
            self.documents + other.documents,
            self.tokens + other.tokens,
            self.mass + other.mass,
            self.quality + other.quality,
            {name: value + other.credits[name] for name, value in self.credits.items()},
            self.gains + other.gains,
            {name: moment + other.moments[name] for name, moment in self.moments.items()},
        )


class Ranking(NamedTuple):
    """What the threshold is found by: a few numbers for each document of the margin."""

    worth: NDArray[np.float32]  # (m,)
    ties: NDArray[np.float64]  # (m,)
    costs: NDArray[np.int64]  # (m,)
    spent: int  # cost of the documents before the margin
    counts: NDArray[np.int64]  # (b + 1,), see `Tally`


@dataclass(frozen=True, eq=False)
class Tally:
    """What a pass keeps of a part: sums before the margin, the margin's documents, and counts by level."""

    before: Sums
    margin: Documents
    worth: NDArray[np.float32]  # of the margin's documents
    counts: NDArray[np.int64]  # (b + 1,) documents, or tokens, below the first level, between each two, above the last

    @classmethod
    def of(cls, rule: Rule, margin: Margin, part: Documents, device: torch.device) -> Self:
        """Pass over a part."""
        return cls.of_measured(margin, part, rule.measure(part, device))

    @classmethod
    def of_measured(cls, margin: Margin, part: Documents, measured: Measured) -> Self:
        """Pass over a part that a rule has measured."""
        before = margin.upper.admits(measured.worth, part.ties)
        within = margin.lower.admits(measured.worth, part.ties) & ~before
        buckets = np.searchsorted(margin.levels, measured.worth, side="right")
        counts = np.bincount(buckets, weights=part.costs, minlength=len(margin.levels) + 1).astype(np.int64)
        return cls(Sums.of(part, measured, before), part.take(within), measured.worth[within], counts)

    def arrays(self) -> Arrays:
        """Return what `of_arrays` makes the tally of."""
        return {
            "worth": self.worth,
            "counts": self.counts,
            **prefixed("margin", self.margin.arrays()),
            **prefixed("before", self.before.arrays()),
        }

    @classmethod
    def of_arrays(cls, arrays: Arrays) -> Self:
        """Make the tally of its arrays."""
        before = Sums.of_arrays(without_prefix("before", arrays))
        margin = Documents.of_arrays(without_prefix("margin", arrays))
        return cls(before, margin, arrays["worth"], arrays["counts"])

    @property
    def ranking(self) -> Ranking:
        """What the threshold is found by."""
        spent = self.before.documents if self.margin.tokens is None else self.before.tokens
        return Ranking(self.worth, self.margin.ties, self.margin.costs, spent, self.counts)

    @classmethod
    def total(cls, tallies: Sequence[Self]) -> Self:
        """Add up the tallies of a part's parts, in their order."""
        before = tallies[0].before
        for tally in tallies[1:]:
            before = before + tally.before
        return cls(
            before,
            Documents.concatenate([tally.margin for tally in tallies]),
            np.concatenate([tally.worth for tally in tallies]),
            np.sum([tally.counts for tally in tallies], axis=0),
        )


class Outcome(NamedTuple):
    """What a rule reaches on a corpus."""

    rule: Rule  # with the threshold that fills the budget
    sums: Sums  # of the selection
    objective: float
    upper_bound: float  # of the objective of every selection of as many documents, or as many tokens or more
    raw: dict[str, float]  # "mean_quality", and every metric's value under its name


def find_threshold(margin: Margin, rankings: Sequence[Ranking], budget: int) -> Place | None:
    """Find the last place that is selected within a budget of documents or tokens, from the rankings of all parts.

    None if it is not in the margin: pass again, with the margin that `margin_at` finds.

    Raises
    ------
    SelectionInputError
        If the budget of tokens does not hold the document of most worth.
    """
    worth, ties, costs = (
        np.concatenate([getattr(one, name) for one in rankings]) for name in ("worth", "ties", "costs")
    )
    spent = sum(one.spent for one in rankings)
    left = budget - spent
    if left < 0 or not len(costs):
        return None
    order = np.lexsort((ties, -worth))
    reach = costs[order].cumsum()
    taken = int(np.searchsorted(reach, left, side="right"))
    if taken == len(order) and reach[-1] < left and spent + reach[-1] < sum(one.counts.sum() for one in rankings):
        return None
    if not taken and not spent:
        raise SelectionInputError(
            f"tokens: the budget of {budget} does not hold the document that is worth most: raise it"
        )
    return Place(float(worth[order[taken - 1]]), float(ties[order[taken - 1]])) if taken else margin.upper


def conclude(rule: Rule, threshold: Place, tallies: Iterable[Tally], device: torch.device) -> Outcome:
    """Sum what a rule selects with a threshold, from the tallies of all parts, one after the other."""
    sums, metrics = None, dict[str, MomentMetric]()
    for tally in tallies:
        part = tally.before
        if len(tally.worth):
            measured = rule.measure(tally.margin, device)
            metrics = measured.metrics
            masses = np.ones(len(tally.worth)) if measured.masses is None else measured.masses.cpu().double().numpy()
            gains = torch.as_tensor(tally.worth.astype(np.float64) * masses, device=device)  # as they were in the part
            chosen = threshold.admits(tally.worth, tally.margin.ties)
            part = part + Sums.of(tally.margin, measured._replace(gains=gains), chosen)
        sums = part if sums is None else sums + part
    assert sums is not None  # noqa: S101 - the threshold is that of a document
    raw = {"mean_quality": sums.quality / sums.mass}
    for name, metric in metrics.items():
        value = float(metric.of_moment(sums.moments[name].to(device), sums.mass))
        raw[name] = value + sums.credits.get(name, 0.0) / sums.mass**2
    bound = _bound(rule, metrics, sums)
    return Outcome(rule.at(threshold), sums, rule.objective.value(raw), bound, raw)


def _bound(rule: Rule, metrics: Mapping[str, MomentMetric], sums: Sums) -> float:
    """Bound J of every selection with at least the mass of the documents of most worth, and at most that of a full one.

    With a budget of documents, these are all selections. With one of tokens, the gains are those for a full selection,
    and `fill` is by how much all means are larger for a lesser one: the mean worth is highest for the least mass. The
    metrics' credits are divided by the mass twice, and are at most those of documents as long as the longest.
    """
    objective = rule.objective
    fill = objective.size / sums.mass
    credited = sum(objective.weights[name] for name, metric in metrics.items() if metric.credit is not None)
    return rule.height + fill * sums.gains + (fill**2 - fill) * credited * objective.longest / objective.size


def margin_at(margin: Margin, rankings: Sequence[Ranking], budget: int) -> Margin:
    """Return the margin between the two levels that the threshold is between."""
    counts = np.sum([one.counts for one in rankings], axis=0)
    reach = counts[::-1].cumsum()[::-1]  # cost of the documents from a bucket's lower level on
    bucket = int((reach >= budget).sum()) - 1
    levels = margin.levels.tolist()
    return Margin(
        upper=Place(levels[bucket], -1.0) if bucket < len(levels) else FIRST,
        lower=Place(levels[bucket - 1], 1.0) if bucket > 0 else LAST,
        levels=margin.levels,
    )
