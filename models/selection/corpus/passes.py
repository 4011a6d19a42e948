"""Apply a rule to all parts of a corpus: find its threshold, the objective it reaches, and a bound on every other one.

One pass reads every document once. Documents near the expected threshold, the *margin*, are kept with their vectors;
of all others only sums are. When the parts are added up, the threshold is found within the margin, and all sums are
exact, because those of the margin's selected documents are added then.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fineweb_mask.models.selection.corpus.documents import Documents
from fineweb_mask.models.selection.corpus.rule import FIRST, LAST, Measured, Place, Rule
from fineweb_mask.models.selection.inputs import SelectionInputError
from fineweb_mask.models.selection.metrics.kernel import KernelMetric


class Margin(NamedTuple):
    """Between which places the threshold is expected, and levels of gain between which documents are counted."""

    upper: Place  # documents before it are selected
    lower: Place  # documents after it are not
    levels: NDArray[np.float32]  # (b,), ascending


class Sums(NamedTuple):
    """Sums over selected documents, float64."""

    documents: int
    tokens: int
    mass: float
    quality: float  # times mass
    credits: Mapping[str, float]  # by metric, for those that have them
    gains: float
    moments: Mapping[str, Tensor]
    penalties: float = 0.0

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
            penalties=0.0
            if documents.charges is None
            else float(masses @ torch.as_tensor(documents.charges).to(masses)),
        )

    def plus(self, other: "Sums") -> "Sums":
        """Add the sums over other documents."""

        def added(own: Any, their: Any) -> Any:  # noqa: ANN401 - a number, or numbers by metric
            return {name: one + their[name] for name, one in own.items()} if isinstance(own, dict) else own + their

        return Sums(*map(added, self, other))


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
    worth: NDArray[np.float32]  # for the margin's documents
    counts: NDArray[np.int64]  # (b + 1,) documents, or tokens, below the first level, between each two, above the last

    @classmethod
    def of(cls, margin: Margin, part: Documents, measured: Measured) -> Self:
        """Pass over a part, as a rule sees it."""
        before = margin.upper.admits(measured.worth, part.ties)
        within = margin.lower.admits(measured.worth, part.ties) & ~before
        buckets = np.searchsorted(margin.levels, measured.worth, side="right")
        counts = np.bincount(buckets, weights=part.costs, minlength=len(margin.levels) + 1).astype(np.int64)
        return cls(Sums.of(part, measured, before), part.take(within), measured.worth[within], counts)

    @property
    def ranking(self) -> Ranking:
        """What the threshold is found by."""
        spent = self.before.documents if self.margin.tokens is None else self.before.tokens
        return Ranking(self.worth, self.margin.ties, self.margin.costs, spent, self.counts)

    @classmethod
    def total(cls, tallies: Sequence[Self]) -> Self:
        """Add up the tallies of a part's parts, in their order."""
        return cls(
            reduce(Sums.plus, (tally.before for tally in tallies)),
            Documents.concatenate([tally.margin for tally in tallies]),
            np.concatenate([tally.worth for tally in tallies]),
            np.sum([tally.counts for tally in tallies], axis=0),
        )


class Outcome(NamedTuple):
    """What a rule reaches on a corpus."""

    rule: Rule  # with the threshold that fills the budget
    sums: Sums  # over the selection
    objective: float
    bound: "Bound"  # without meaning where near-duplicates are penalised
    raw: dict[str, float]  # "mean_quality", and every metric's value under its name
    near_duplicate_cost: float = 0.0  # as it enters the objective


class Bound(NamedTuple):
    """An upper bound on J, which depends on how little of a budget of tokens may be used."""

    height: float
    gains: float  # summed over the documents that a rule selects
    used: float  # their mass
    worth: float  # marginal gain of the last one, per mass
    full: float  # mass of a full budget
    credited: float  # the metrics' credits, at most, per mass

    def at(self, least: float) -> float:
        """Bound J of every selection that uses this mass of the budget, or more.

        The gains of the best documents of a mass are concave in it: at most those of the rule's own documents, and
        `worth` for every unit of mass beyond or short of them. Gains are for a full budget; all means are larger by
        full over used mass where less is used, and credits, which are divided by the mass twice, by its square.
        """
        fill = self.full / least
        reach = max(fill * self._reach(least), self._reach(self.full))
        return self.height + reach + (fill**2 - fill) * self.credited

    def _reach(self, mass: float) -> float:
        return self.gains + (mass - self.used) * self.worth


def find_threshold(margin: Margin, rankings: Sequence[Ranking], budget: int) -> Place | None:
    """Find the last place that is selected within a budget of documents or tokens, from the rankings of all parts.

    None if it is not in the margin: pass again, with the margin that `margin_at` finds.

    Raises
    ------
    SelectionInputError
        If the budget of tokens does not hold the document of most gain.
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


def conclude(rule: Rule, threshold: Place, tallies: Iterable[Tally], budget: int, device: torch.device) -> Outcome:
    """Sum what a rule selects with its threshold, from the tallies of all parts, one after the other."""
    sums, metrics = None, dict[str, KernelMetric]()
    for tally in tallies:
        part = tally.before
        if len(tally.worth):
            measured = rule.measure(tally.margin, device)
            metrics = measured.metrics
            masses = np.ones(len(tally.worth)) if measured.masses is None else measured.masses.cpu().double().numpy()
            worth = torch.as_tensor(tally.worth.astype(np.float64) * masses, device=device)  # as they were in the part
            chosen = threshold.admits(tally.worth, tally.margin.ties)
            part = part.plus(Sums.of(tally.margin, measured._replace(gains=worth), chosen))
        sums = part if sums is None else sums.plus(part)
    assert sums is not None  # noqa: S101 - the threshold is that of a document
    raw = {"mean_quality": sums.quality / sums.mass}
    for name, metric in metrics.items():
        value = float(metric.of_moment(sums.moments[name].to(device), sums.mass))
        raw[name] = value + sums.credits.get(name, 0.0) / sums.mass**2
    cost = sums.penalties * rule.objective.size / sums.mass
    per_mass = rule.frame.mean_tokens or 1.0
    spent = sums.documents if rule.frame.mean_tokens is None else sums.tokens
    credited = sum(rule.objective.weights[name] for name, metric in metrics.items() if metric.credit is not None)
    bound = Bound(
        rule.height,
        sums.gains,
        spent / per_mass,
        0.0 if spent == budget else threshold.worth,
        budget / per_mass,
        credited * rule.objective.longest / rule.objective.size,
    )
    return Outcome(replace(rule, threshold=threshold), sums, rule.objective.value(raw) - cost, bound, raw, cost)


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
