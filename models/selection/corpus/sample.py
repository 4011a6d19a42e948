"""Learn a rule on a random sample of a corpus, and correct it by what a pass over the corpus measured (ours).

The sample's moments, scaled up, stand for those of the corpus. A pass measures by how much they are wrong at one rule;
that difference, a control variate, is added to them when the next rule is learned.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fineweb_mask.models.runtime.progress import track
from fineweb_mask.models.selection.corpus.documents import ALL, Documents, inside
from fineweb_mask.models.selection.corpus.near_duplicates import SPARE, Search, cluster_centres
from fineweb_mask.models.selection.corpus.passes import Margin, Outcome
from fineweb_mask.models.selection.corpus.rule import (
    FIRST,
    LAST,
    CorpusObjective,
    Frame,
    Place,
    Rule,
    linear_gains,
)
from fineweb_mask.models.selection.inputs import SelectionInputError, checked_budget, checked_features
from fineweb_mask.models.selection.metrics.base import Metric, SupportsMoment, SupportsRandomValue
from fineweb_mask.models.selection.metrics.kernel import moment_metric_class
from fineweb_mask.models.selection.problem.normalisation import BlockEnds, Ranges, find_ranges, weigh
from fineweb_mask.models.selection.problem.objective import Objective
from fineweb_mask.models.selection.problem.token_budget import Knapsack, probabilities
from fineweb_mask.models.selection.rows import Rows, Standard
from fineweb_mask.models.selection.solvers.mean_field import AVERAGED, COOLING, highest_share
from fineweb_mask.models.settings.selection import GroupSettings, SelectionSettings


@dataclass(frozen=True, eq=False)
class CorpusStatistics:
    """Sums over documents; those of parts add up to those of the corpus.

    The unit rows' sums and sums of squares are (d,) float64.
    """

    documents: int
    tokens: int
    longest: int  # most tokens of a document
    sums: Tensor
    squares: Tensor
    groups: Mapping[str, int]  # what the documents of each group cost

    @classmethod
    def of(cls, part: Documents, device: torch.device) -> Self:
        """Sum over the documents of a part."""
        rows = checked_features(part.vectors, device)
        sums, squares = (torch.zeros(rows.d, dtype=torch.float64, device=device) for _ in range(2))
        for block in (rows.block(slices) for slices in rows.slices()):
            sums += block.sum(0, dtype=torch.float64)
            squares += block.square().sum(0, dtype=torch.float64)
        tokens, longest = (0, 0) if part.tokens is None else (int(part.tokens.sum()), int(part.tokens.max()))
        costs = {} if part.groups is None else {str(name): 0 for name in np.unique(part.groups)}
        costs = {name: int(part.costs[own].sum()) for name, own in inside(part, costs)}
        return cls(len(part.quality), tokens, longest, sums.cpu(), squares.cpu(), costs)

    @classmethod
    def total(cls, parts: Sequence[Self]) -> Self:
        """Add up the parts of parts, in their order."""
        return cls(
            sum(one.documents for one in parts),
            sum(one.tokens for one in parts),
            max(one.longest for one in parts),
            torch.stack([one.sums for one in parts]).sum(0),
            torch.stack([one.squares for one in parts]).sum(0),
            dict(sum((Counter(one.groups) for one in parts), Counter())),
        )

    @property
    def standard(self) -> Standard:
        """The mean and the deviation of every dimension over the corpus."""
        mean = self.sums / self.documents
        return Standard.of(mean, (self.squares / self.documents - mean.square()).clamp(min=0))


def group_budgets(shares: str | Mapping[str, float], budget: int, costs: Mapping[str, int]) -> dict[str, int]:
    """Divide a budget of documents, or tokens, among groups: each as much as it has at most, if it is not repeated.

    Parameters
    ----------
    shares
        "equal", "proportional", or the share of each group.
    budget
        Documents or tokens of all groups.
    costs
        What all documents of each group cost together.

    Raises
    ------
    SelectionInputError
        If a group that has a share has no documents.

    Examples
    --------
    >>> group_budgets("equal", 10, {"a": 100, "b": 4})
    {'a': 5, 'b': 5}
    >>> group_budgets("proportional", 10, {"a": 70, "b": 30})
    {'a': 7, 'b': 3}
    """
    if isinstance(shares, Mapping):
        if missing := sorted(set(shares) - set(costs)):
            raise SelectionInputError(
                f"groups.shares: no document is in {', '.join(map(repr, missing))}; the groups are "
                f"{', '.join(map(repr, sorted(costs)[:20]))}: correct the names, or leave them out"
            )
        parts = {name: shares[name] for name in sorted(shares)}
    else:
        total = sum(costs.values())
        parts = {name: 1 / len(costs) if shares == "equal" else costs[name] / total for name in sorted(costs)}
    exact = {name: share * budget for name, share in parts.items()}
    found = {name: math.floor(share) for name, share in exact.items()}
    rest = round(sum(exact.values())) - sum(found.values())
    for name in sorted(found, key=lambda name: (found[name] - exact[name], name))[:rest]:
        found[name] += 1  # those with the largest remainders
    return {name: share for name, share in found.items() if share}


DEVIATIONS = 5.0  # standard deviations of the threshold's rank: the margin misses it one time in a million
AVERAGED_LONG, COOLING_LONG = AVERAGED._replace(n_steps=300), 100  # where clusters' documents gain all alike
LEVELS = 1024  # levels between which a pass counts documents


@dataclass(frozen=True, eq=False)
class Learned:
    """A rule, where its threshold is expected, and the sample's moments under it."""

    rule: Rule
    margins: Mapping[str, Margin]  # by group
    moments: Mapping[str, Tensor]  # scaled up, without correction
    search: Search | None = None  # if near-duplicates are penalised


class SampleProblem:
    """The selection problem of a corpus, as a random sample of its documents shows it.

    Parameters
    ----------
    sample
        The documents of the sample.
    statistics
        Sums over all documents of the corpus.
    settings
        What to maximise. `solver` and `near_duplicates.forbid` are not read.
    directions
        Principal directions in which metrics of the second moment are measured.
    ranges, frame
        The scales of the terms and the coordinates, if an earlier problem found them.
    spare
        Documents for each one of the budget among which near-duplicates are looked for.
    groups
        How the budget is divided among the documents' groups.

    Attributes
    ----------
    budget
        Documents, or tokens, that are selected: less than asked for if a group has less than its share.
    budgets
        The same by group.
    asked
        What the groups' shares are, which some may not have.
    repeats
        How often selected documents are used, by group, where it is not once.
    """

    def __init__(
        self,
        sample: Documents,
        statistics: CorpusStatistics,
        settings: SelectionSettings,
        directions: int,
        device: torch.device,
        *,
        ranges: Ranges | None = None,
        frame: Frame | None = None,
        spare: float = SPARE,
        groups: GroupSettings | None = None,
    ) -> None:
        self.sample, self.settings, self.documents, self.spare = sample, settings, statistics.documents, spare
        rows = checked_features(sample.vectors, device)
        self.quality = torch.as_tensor(sample.quality, device=device)
        generator = torch.Generator().manual_seed(settings.seed)
        by_tokens = sample.tokens is not None
        total, unit = (statistics.tokens, "tokens") if by_tokens else (statistics.documents, "documents")
        self.budget = checked_budget(settings.budget, settings.select_ratio, total, unit)
        self.budgets, self.repeats = {ALL: self.budget}, dict[str, float]()
        self.asked = self.budgets
        if groups is not None:
            self.asked = group_budgets(groups.shares, self.budget, statistics.groups)
            self.budgets = {name: min(share, statistics.groups[name]) for name, share in self.asked.items()}
            self.budget = sum(self.budgets.values())
            times = {
                name: min(share / statistics.groups[name], groups.max_repeats) for name, share in self.asked.items()
            }
            self.repeats = {name: time for name, time in times.items() if time > 1}
        self._whole = {name for name, costs in statistics.groups.items() if self.budgets.get(name) == costs}
        if self._whole == set(self.budgets):  # all documents: as without groups
            self._whole = set()
        knapsack, longest = None, 1.0
        if sample.tokens is None:
            mean_tokens, size = None, float(self.budget)
            self._limits = self._limits_of(rows.n / statistics.documents)
            count = sum(self._limits.values())
            self._scale = size / count
        else:
            mean_tokens = statistics.tokens / statistics.documents
            longest = statistics.longest / mean_tokens
            tokens, size = torch.as_tensor(sample.tokens, device=device), self.budget / mean_tokens
            self._limits = self._limits_of(int(tokens.sum()) / statistics.tokens)
            limit, costs = sum(self._limits.values()), tokens.double() / mean_tokens
            knapsack = Knapsack(tokens, limit, costs, costs.float(), by_tokens=True, size=limit / mean_tokens)
            count, self._scale = max(1, round(knapsack.size)), self.budget / limit
        names = settings.metric_weights
        if frame is None:
            standard = Standard(*(part.to(device) for part in statistics.standard))
            frame = Frame(standard, {}, mean_tokens)
            masses = frame.masses(sample, device)
            fitted = {
                name: moment_metric_class(name).fit(
                    rows, masses, standard, selected=count, directions=directions, generator=generator
                )
                for name in names
            }
            frame = replace(frame, fitted=fitted)
        self.frame, self.metrics = frame, frame.metrics(sample, rows)
        self._masses = self.frame.masses(sample, device)
        ends = SampleEnds(self, size, settings, rows, generator)
        none = Objective(self.quality, count, knapsack=knapsack)
        self.ranges = ranges or find_ranges(none, self.metrics, ends)
        self.scaled = weigh(none, self.metrics, self.ranges, lamb=settings.lamb, weights=names)
        block = self.scaled.objective
        self.objective = CorpusObjective(block.linear_weight, block.weights, block.constant, size, longest)

    @property
    def random_objective(self) -> float:
        """J expected of a random selection, estimated by the sample."""
        return self.scaled.random_objective(self.settings.lamb)

    def _limits_of(self, rate: float) -> dict[str, int]:
        """Return the sample's part of the budgets: at least a document, and all where all are selected."""
        found = {}
        for name, own in inside(self.sample, self.budgets):
            costs = self.sample.costs[own]
            if len(costs):
                found[name] = (
                    int(costs.sum()) if name in self._whole else max(int(costs.min()), round(self.budgets[name] * rate))
                )
        return found

    def _probabilities(self, block: Objective, gains: Tensor, temperature: float) -> Tensor:
        """Return the inclusion probabilities that fill the budget of every group, (n,) float32."""
        if self.sample.groups is None:
            return block.probabilities(gains, temperature)
        found = torch.zeros_like(gains)
        for name, own in inside(self.sample, self._limits):
            index = torch.as_tensor(own.nonzero()[0], device=gains.device)
            if self._limits[name] >= int(self.sample.costs[own].sum()):
                found[index] = 1.0
            elif block.knapsack is None:
                found[index] = probabilities(gains[index], temperature, self._limits[name])
            else:
                part = replace(block.knapsack.restrict(index), limit=self._limits[name])
                found[index] = part.probabilities(gains[index], temperature)
        return found

    def learn(self, offset: Mapping[str, Tensor] | None = None) -> Learned:
        """Learn the rule whose own selection has the moments that it is the tangent at.

        `offset` is added to the metrics' moments, which otherwise are the sample's, scaled up.
        """
        moments, _ = self.anneal(self.scaled.objective, self.objective, offset or {})
        height = self.objective.constant + sum(
            self.objective.weights[name] * metric.height(moments[name], self.objective.size)
            for name, metric in self.metrics.items()
        )
        rule = Rule(self.frame, self.objective, moments, height, 0.0)
        worth = self._worth(rule)
        rule = replace(rule, spread=float(worth.std(dtype=np.float64)), repeats=self.repeats)
        mask, margins = np.zeros(len(worth), dtype=bool), dict[str, Margin]()
        for name, order in self._orders(worth):
            costs = self.sample.costs[order]
            taken = int(np.searchsorted(costs.cumsum(), self._limits.get(name, 0), side="right"))
            mask[order[:taken]] = True
            margins[name] = self._margin(name, worth, order, taken)
        chosen = torch.as_tensor(mask, device=self.quality.device)
        own = {name: metric.moment(chosen) * self._scale for name, metric in self.metrics.items()}
        search = self.search(rule, margins, self.spare) if self.settings.near_duplicates.weight > 0 else None
        return Learned(rule, margins, own, search)

    def corrected(self, learned: Learned, outcome: Outcome) -> Learned:
        """Learn the next rule, from what a pass over the corpus measured of one."""
        device = self.quality.device
        offset = {name: outcome.sums.moments[name].to(device) - own for name, own in learned.moments.items()}
        return self.learn(offset)

    def search(self, rule: Rule, margins: Mapping[str, Margin], spare: float) -> Search:
        """Return where near-duplicates are looked for: among so many documents for each one of the budget."""
        worth, floors, levels = self._worth(rule), dict[str, float](), dict[str, float]()
        for name, order in self._orders(worth):
            reach, limit = self.sample.costs[order].cumsum(), self._limits.get(name, 0)
            last, taken = (int(place) for place in np.searchsorted(reach, [spare * limit, limit]))
            floors[name] = float(worth[order[last]]) if last < len(order) else -math.inf
            levels[name] = float(worth[order[min(taken, len(order) - 1)]]) if len(order) else 0.0
        seed, device = self.settings.seed, self.quality.device
        centres = cluster_centres(self.sample, spare * self.objective.size, seed, device)
        return Search(floors, levels, centres, margins)

    def _worth(self, rule: Rule) -> NDArray[np.float32]:
        return rule.measure_with(self.metrics, self.sample, self._masses).worth

    def _orders(self, worth: NDArray[np.float32]) -> Iterator[tuple[str, NDArray[np.int64]]]:
        """Yield the places of each group's documents of the sample, by marginal gain (n,), the best first."""
        for name, own in inside(self.sample, self.budgets):
            places = own.nonzero()[0]
            yield name, places[np.lexsort((self.sample.ties[places], -worth[places]))]

    def anneal(
        self, block: Objective, objective: CorpusObjective, offset: Mapping[str, Tensor]
    ) -> tuple[dict[str, Tensor], Tensor]:
        """Find the inclusion probabilities of the sample at which the corpus's objective is highest.

        Every step is one of Frank and Wolfe's, towards smoothed selections, with exact line search. When it is cold,
        the steps zigzag: the answer is their mean. Return the metrics' moments, with the offset, and the probabilities.
        """
        metrics = {name: self.metrics[name] for name in objective.weights}
        linear = linear_gains(objective, self.sample, metrics, self._masses) * self._scale

        def moments_of(inclusion: Tensor) -> dict[str, Tensor]:
            return {
                name: metric.moment(inclusion) * self._scale + offset.get(name, 0.0) for name, metric in metrics.items()
            }

        inclusion = torch.full_like(self.quality, block.share)
        moments = mean = moments_of(inclusion)
        is_steep = any(metric.is_steep for metric in metrics.values())
        schedule, cooling = (AVERAGED_LONG, COOLING_LONG) if is_steep else (AVERAGED, COOLING)
        for step in track("annealing steps", range(schedule.n_steps)):
            gains = linear.clone()
            for name, metric in metrics.items():
                weight = objective.weights[name] * self._scale
                gains += metric.gradient_at(moments[name], objective.size, weight)
            cooled = min(step / (cooling - 1), 1.0)
            temperature = schedule.hottest * (schedule.coldest / schedule.hottest) ** cooled * block.deviation(gains)
            if temperature <= 0:  # all documents gain the same
                break
            target = self._probabilities(block, gains, temperature)
            reached = moments_of(target)
            rise = float(linear.double() @ (target - inclusion).double())
            curved = [
                (weight, metrics[name].along(moments[name], reached[name] - moments[name], objective.size))
                for name, weight in objective.weights.items()
            ]
            share = highest_share(lambda at: rise + sum(weight * slope(at) for weight, slope in curved))  # noqa: B023
            inclusion = torch.lerp(inclusion, target, share)
            moments = {name: torch.lerp(moment, reached[name], share) for name, moment in moments.items()}
            newest = 1 / max(1, step - cooling + 1)
            mean = {name: torch.lerp(mean[name], moment, newest) for name, moment in moments.items()}
        return mean, inclusion

    def _margin(self, name: str, worth: NDArray[np.float32], order: NDArray[np.int64], taken: int) -> Margin:
        """Return the places between which a group's threshold is, for the sample's order of its documents."""
        n, ties = len(order), self.sample.ties
        of_group = worth[order] if n else worth
        levels = np.unique(np.quantile(of_group, np.linspace(0, 1, LEVELS)).astype(np.float32))
        if name in self._whole:
            return Margin(LAST, LAST, levels)
        if not n:
            return Margin(FIRST, LAST, levels)
        reach = DEVIATIONS * math.sqrt(taken * max(1 - taken / n, 0.0)) + DEVIATIONS
        first, last = math.floor(taken - reach), math.ceil(taken + reach)

        def place(rank: int) -> Place:
            return Place(float(worth[order[rank]]), float(ties[order[rank]]))

        return Margin(place(first) if first >= 0 else FIRST, place(last) if last < n else LAST, levels)


class SampleEnds(BlockEnds):
    """The ends of a metric's range over the selections of a corpus, estimated by the sample."""

    def __init__(
        self, problem: SampleProblem, size: float, settings: SelectionSettings, rows: Rows, generator: torch.Generator
    ) -> None:
        super().__init__(settings, rows, generator)
        self._problem, self._size = problem, size

    def random(self, metric: Metric, objective: Objective) -> float:
        """Return `random_value` for selections of the corpus, or that of their mean moment less what chance takes.

        Chance takes the less the more documents are selected: as much as from random selections of the sample, over
        how many times as many are selected from the corpus.
        """
        if isinstance(metric, SupportsRandomValue):
            return metric.random_value(self._size)
        assert isinstance(metric, SupportsMoment)  # noqa: S101 - there are no others
        mean = metric.moment(torch.full_like(objective.quality, objective.share))
        value = float(metric.of_moment(mean, objective.size))
        return value - (value - super().random(metric, objective)) * objective.size / self._size

    def best(self, metric: Metric, objective: Objective) -> float:
        """Return the value at the best moment: a selection comes as near to it as it has many documents."""
        name = next(iter(objective.weights))
        metric = self._problem.metrics[name]
        aim = CorpusObjective(0.0, {name: 1.0}, 0.0, self._size, 1.0)
        moments, inclusion = self._problem.anneal(objective, aim, {})
        value = float(metric.of_moment(moments[name], self._size))
        if metric.credit is None:
            return value
        return value + float(inclusion.double() @ metric.credit.double()) / float(metric.size(inclusion)) / self._size
