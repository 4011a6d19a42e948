"""Learn a rule on a random sample of a corpus, and correct it by what a pass over the corpus measured (ours).

The sample's moments, scaled up, stand for those of the corpus. A pass measures by how much they are wrong at one rule;
that difference, a control variate, is added to them when the next rule is learned.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fineweb_mask.models.runtime.progress import track
from fineweb_mask.models.selection.corpus.documents import Documents
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
from fineweb_mask.models.selection.inputs import checked_budget, checked_features
from fineweb_mask.models.selection.metrics.base import Metric, SupportsRandomValue
from fineweb_mask.models.selection.metrics.kernel import kernel_metric_class
from fineweb_mask.models.selection.problem.normalisation import BlockEnds, Ranges, find_ranges, weigh
from fineweb_mask.models.selection.problem.objective import Objective
from fineweb_mask.models.selection.problem.token_budget import Knapsack
from fineweb_mask.models.selection.rows import Rows, Standard
from fineweb_mask.models.selection.solvers.mean_field import AVERAGED, COOLING, highest_share
from fineweb_mask.models.settings.selection import SelectionSettings


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

    @classmethod
    def of(cls, part: Documents, device: torch.device) -> Self:
        """Sum over the documents of a part."""
        rows = checked_features(part.vectors, device)
        sums, squares = (torch.zeros(rows.d, dtype=torch.float64, device=device) for _ in range(2))
        for block in (rows.block(slices) for slices in rows.slices()):
            sums += block.sum(0, dtype=torch.float64)
            squares += block.square().sum(0, dtype=torch.float64)
        tokens, longest = (0, 0) if part.tokens is None else (int(part.tokens.sum()), int(part.tokens.max()))
        return cls(len(part.quality), tokens, longest, sums.cpu(), squares.cpu())

    @classmethod
    def total(cls, parts: Sequence[Self]) -> Self:
        """Add up the parts of parts, in their order."""
        return cls(
            sum(one.documents for one in parts),
            sum(one.tokens for one in parts),
            max(one.longest for one in parts),
            torch.stack([one.sums for one in parts]).sum(0),
            torch.stack([one.squares for one in parts]).sum(0),
        )

    @property
    def standard(self) -> Standard:
        """The mean and the deviation of every dimension over the corpus."""
        mean = self.sums / self.documents
        return Standard.of(mean, (self.squares / self.documents - mean.square()).clamp(min=0))


DEVIATIONS = 5.0  # standard deviations of the threshold's rank: the margin misses it one time in a million
LEVELS = 1024  # levels between which a pass counts documents


@dataclass(frozen=True, eq=False)
class Learned:
    """A rule, where its threshold is expected, and the sample's moments under it."""

    rule: Rule
    margin: Margin
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

    Attributes
    ----------
    budget
        Documents, or tokens, that are selected.
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
    ) -> None:
        self.sample, self.settings, self.documents, self.spare = sample, settings, statistics.documents, spare
        rows = checked_features(sample.vectors, device)
        self.quality = torch.as_tensor(sample.quality, device=device)
        generator = torch.Generator().manual_seed(settings.seed)
        by_tokens = sample.tokens is not None
        total, unit = (statistics.tokens, "tokens") if by_tokens else (statistics.documents, "documents")
        self.budget = checked_budget(settings.budget, settings.select_ratio, total, unit)
        costs, knapsack, longest = sample.costs, None, 1.0
        share = int(costs.sum()) / total  # of the corpus, that is in the sample
        self._limit = count = max(int(costs.min()), round(self.budget * share))  # the sample's part of the budget
        self._scale = self.budget / self._limit
        if sample.tokens is None:
            mean_tokens, size = None, float(self.budget)
        else:
            mean_tokens = statistics.tokens / statistics.documents
            longest = statistics.longest / mean_tokens
            tokens, size = torch.as_tensor(sample.tokens, device=device), self.budget / mean_tokens
            knapsack = Knapsack(tokens, self._limit, tokens.double() / mean_tokens, self._limit / mean_tokens)
            count = max(1, round(knapsack.size))
        names = settings.metric_weights
        if frame is None:
            standard = Standard(*(part.to(device) for part in statistics.standard))
            frame = Frame(standard, {}, mean_tokens)
            fitted = {name: kernel_metric_class(name).fit(rows, standard, directions, generator) for name in names}
            frame = replace(frame, directions=fitted)
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
        rule = replace(rule, spread=float(worth.std(dtype=np.float64)))
        order, mask = self._order(worth), np.zeros(len(worth), dtype=bool)
        taken = int(np.searchsorted(self.sample.costs[order].cumsum(), self._limit, side="right"))
        mask[order[:taken]] = True
        margin = self._margin(worth, order, taken)
        chosen = torch.as_tensor(mask, device=self.quality.device)
        own = {name: metric.moment(chosen) * self._scale for name, metric in self.metrics.items()}
        search = self.search(rule, margin, self.spare) if self.settings.near_duplicates.weight > 0 else None
        return Learned(rule, margin, own, search)

    def corrected(self, learned: Learned, outcome: Outcome) -> Learned:
        """Learn the next rule, from what a pass over the corpus measured of one."""
        device = self.quality.device
        offset = {name: outcome.sums.moments[name].to(device) - own for name, own in learned.moments.items()}
        return self.learn(offset)

    def search(self, rule: Rule, margin: Margin, spare: float) -> Search:
        """Return where near-duplicates are looked for: among so many documents for each one of the budget."""
        worth = self._worth(rule)
        order = self._order(worth)
        last = int(np.searchsorted(self.sample.costs[order].cumsum(), spare * self._limit))
        floor = float(worth[order[last]]) if last < len(order) else -math.inf
        seed, device = self.settings.seed, self.quality.device
        return Search(floor, cluster_centres(self.sample, spare * self.objective.size, seed, device), margin)

    def _worth(self, rule: Rule) -> NDArray[np.float32]:
        return rule.measure_with(self.metrics, self.sample, self._masses).worth

    def _order(self, worth: NDArray[np.float32]) -> NDArray[np.int64]:
        """Return the places of the sample's documents by marginal gain (n,), the best first."""
        return np.lexsort((self.sample.ties, -worth))

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
        for step in track("annealing steps", range(AVERAGED.n_steps)):
            gains = linear.clone()
            for name, metric in metrics.items():
                weight = objective.weights[name] * self._scale
                gains += metric.gradient_at(moments[name], objective.size, weight)
            cooled = min(step / (COOLING - 1), 1.0)
            temperature = AVERAGED.hottest * (AVERAGED.coldest / AVERAGED.hottest) ** cooled * block.deviation(gains)
            if temperature <= 0:  # all documents gain the same
                break
            target = block.probabilities(gains, temperature)
            reached = moments_of(target)
            rise = float(linear.double() @ (target - inclusion).double())
            curved = [
                (weight, metrics[name].along(moments[name], reached[name] - moments[name], objective.size))
                for name, weight in objective.weights.items()
            ]
            share = highest_share(lambda at: rise + sum(weight * slope(at) for weight, slope in curved))  # noqa: B023
            inclusion = torch.lerp(inclusion, target, share)
            moments = {name: torch.lerp(moment, reached[name], share) for name, moment in moments.items()}
            newest = 1 / max(1, step - COOLING + 1)
            mean = {name: torch.lerp(mean[name], moment, newest) for name, moment in moments.items()}
        return mean, inclusion

    def _margin(self, worth: NDArray[np.float32], order: NDArray[np.int64], taken: int) -> Margin:
        """Return the places between which the threshold is, for the sample's order of its documents."""
        n, ties = len(order), self.sample.ties
        levels = np.unique(np.quantile(worth[order], np.linspace(0, 1, LEVELS)).astype(np.float32))
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

    def random(self, metric: Metric, objective: Objective) -> float:  # noqa: ARG002 - of the base
        """Return `random_value` for selections of the corpus."""
        assert isinstance(metric, SupportsRandomValue)  # noqa: S101 - there are no others
        return metric.random_value(self._size)

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
