"""Learn a rule on a random sample of a corpus, and correct it by what a pass over the corpus measured (ours).

The sample's moments, scaled up, stand for those of the corpus. A pass measures by how much they are wrong at one rule;
that difference, a control variate, is added to them when the next rule is learned.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fineweb_mask.models.runtime.progress import track
from fineweb_mask.models.selection.corpus.documents import Arrays, Documents, prefixed, without_prefix
from fineweb_mask.models.selection.corpus.near_duplicates import SPARE, Search, cell_centres
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
from fineweb_mask.models.selection.corpus.survey import Survey
from fineweb_mask.models.selection.inputs import checked_budget, checked_features
from fineweb_mask.models.selection.knapsack import Knapsack
from fineweb_mask.models.selection.metrics.base import Metric, SupportsRandomValue
from fineweb_mask.models.selection.metrics.moment import MomentMetric
from fineweb_mask.models.selection.objective import Objective
from fineweb_mask.models.selection.ranges import BlockEnds, Ranges, find_ranges, weigh
from fineweb_mask.models.selection.rows import Standard
from fineweb_mask.models.selection.solvers.mean_field import AVERAGED, COOLING, highest_share
from fineweb_mask.models.settings.selection import SelectionSettings

DEVIATIONS = 5.0  # of the number of documents before the threshold: the margin holds it but for one time in a million
LEVELS = 1024  # of worth, between which a pass counts documents


@dataclass(frozen=True, eq=False)
class Learned:
    """A rule, where its threshold is expected, and the sample's moments under it."""

    rule: Rule
    margin: Margin
    moments: Mapping[str, Tensor]  # scaled up, without correction
    search: Search | None = None  # if near-duplicates are charged for

    def arrays(self) -> Arrays:
        """Return what `of_arrays` makes it of."""
        return {
            **prefixed("rule", self.rule.arrays()),
            **prefixed("margin", self.margin.arrays()),
            **prefixed("moments", {name: moment.cpu().numpy() for name, moment in self.moments.items()}),
            **prefixed("search", {} if self.search is None else self.search.arrays()),
        }

    @classmethod
    def of_arrays(cls, arrays: Arrays, device: torch.device) -> Self:
        """Make it of its arrays."""
        moments, search = without_prefix("moments", arrays), without_prefix("search", arrays)
        return cls(
            Rule.of_arrays(without_prefix("rule", arrays), device),
            Margin.of_arrays(without_prefix("margin", arrays)),
            {name: torch.as_tensor(moment, device=device) for name, moment in moments.items()},
            Search.of_arrays(search, device) if search else None,
        )


class SampleProblem:
    """The selection problem of a corpus, as a random sample of its documents shows it.

    Parameters
    ----------
    sample
        The documents of the sample.
    survey
        Sums over all documents of the corpus.
    settings
        What to maximise. `solver` and `near_duplicates.forbid` are not read.
    directions
        Principal directions in which metrics of the second moment are measured.
    ranges, frame
        The scales of the terms and the coordinates, if an earlier problem found them.
    spare
        Documents for each one of the budget among which near-duplicates are looked for.
    """

    def __init__(
        self,
        sample: Documents,
        survey: Survey,
        settings: SelectionSettings,
        directions: int,
        device: torch.device,
        *,
        ranges: Ranges | None = None,
        frame: Frame | None = None,
        spare: float = SPARE,
    ) -> None:
        self.sample, self.settings, self.documents, self.spare = sample, settings, survey.documents, spare
        rows = checked_features(sample.vectors, device)
        self.quality = torch.as_tensor(sample.quality, device=device)
        generator = torch.Generator(device).manual_seed(settings.seed)
        by_tokens = sample.tokens is not None
        total, unit = (survey.tokens, "tokens") if by_tokens else (survey.documents, "documents")
        self.budget = checked_budget(settings.budget, settings.select_ratio, total, unit)
        knapsack = None
        if sample.tokens is None:
            mean_tokens, size, longest = None, float(self.budget), 1.0
            count = max(1, round(self.budget * rows.n / survey.documents))
            self._scale = size / count
        else:
            mean_tokens = survey.tokens / survey.documents
            longest = survey.longest / mean_tokens
            tokens, size = torch.as_tensor(sample.tokens, device=device), self.budget / mean_tokens
            limit = max(int(tokens.min()), round(self.budget * int(tokens.sum()) / survey.tokens))
            costs = tokens.double() / mean_tokens
            knapsack = Knapsack(tokens, limit, costs, costs.float(), by_tokens=True, size=limit / mean_tokens)
            count, self._scale = max(1, round(knapsack.size)), self.budget / limit
        names = settings.metric_weights
        if frame is None:
            standard = Standard(*(part.to(device) for part in survey.standard))
            frame = Frame(standard, dict.fromkeys(names), mean_tokens)
            whole = frame.metrics(sample, rows)
            kept = {name: metric.directions(directions, generator) for name, metric in whole.items()}
            frame = replace(frame, directions=kept)
        self.frame, self.metrics = frame, frame.metrics(sample, rows)
        self._masses = self.frame.masses(sample, device)
        ends = SampleEnds(self, BlockEnds(settings, rows, generator), size)
        self.ranges = ranges or find_ranges(
            rows, self.quality, settings, self.metrics, budget=count, generator=generator, knapsack=knapsack, ends=ends
        )
        self.scaled = weigh(
            self.quality, self.metrics, self.ranges, lamb=settings.lamb, weights=names, budget=count, knapsack=knapsack
        )
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
        worth, order, limit = self._ranked(rule)
        rule = replace(rule, spread=float(worth.std(dtype=np.float64)))
        taken = int(np.searchsorted(self.sample.costs[order].cumsum(), limit, side="right"))
        mask = torch.zeros_like(self.quality, dtype=torch.bool)
        mask[torch.as_tensor(order[:taken].copy(), device=mask.device)] = True
        own = {name: metric.moment(mask) * self._scale for name, metric in self.metrics.items()}
        margin = self._margin(worth, order, taken)
        search = self.search(rule, margin, self.spare) if self.settings.near_duplicates.weight > 0 else None
        return Learned(rule, margin, own, search)

    def corrected(self, learned: Learned, outcome: Outcome) -> Learned:
        """Learn the next rule, from what a pass over the corpus measured of one."""
        device = self.quality.device
        offset = {name: outcome.sums.moments[name].to(device) - own for name, own in learned.moments.items()}
        return self.learn(offset)

    def search(self, rule: Rule, margin: Margin, spare: float) -> Search:
        """Return where near-duplicates are looked for: among so many documents for each one of the budget."""
        worth, order, limit = self._ranked(rule)
        last = int(np.searchsorted(self.sample.costs[order].cumsum(), spare * limit))
        floor = float(worth[order[last]]) if last < len(order) else -math.inf
        seed, device = self.settings.seed, self.quality.device
        return Search(floor, cell_centres(self.sample, spare * self.objective.size, seed, device), margin)

    def _ranked(self, rule: Rule) -> tuple[NDArray[np.float32], NDArray[np.int64], int]:
        """Return what the sample's documents are worth, their order, and how much of their costs is selected."""
        worth = rule.measure_with(self.metrics, self.sample, self._masses).worth
        block = self.scaled.objective
        limit = block.budget if block.knapsack is None else block.knapsack.limit
        return worth, np.lexsort((self.sample.ties, -worth)), limit

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
            if temperature <= 0:  # all documents are worth the same
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
        """Return the places between which the corpus's threshold is, for the sample's order of documents (n,)."""
        n, ties = len(order), self.sample.ties
        reach = DEVIATIONS * math.sqrt(taken * max(1 - taken / n, 0.0)) + DEVIATIONS
        first, last = math.floor(taken - reach), math.ceil(taken + reach)

        def place(rank: int) -> Place:
            return Place(float(worth[order[rank]]), float(ties[order[rank]]))

        levels = np.unique(np.quantile(worth, np.linspace(0, 1, LEVELS)).astype(np.float32))
        return Margin(place(first) if first >= 0 else FIRST, place(last) if last < n else LAST, levels)


class SampleEnds:
    """The ends of a metric's range over the selections of a corpus, estimated by the sample."""

    def __init__(self, problem: SampleProblem, ends: BlockEnds, size: float) -> None:
        self._problem, self._ends, self._size = problem, ends, size

    def random(self, metric: Metric, objective: Objective) -> float:
        """Return `random_value` for selections of the corpus, or the mean over random ones of the sample."""
        if isinstance(metric, SupportsRandomValue):
            return metric.random_value(self._size)
        return self._ends.random(metric, objective)

    def best(self, metric: Metric, objective: Objective) -> float:
        """Return the value at the best moment: a selection comes as near to it as it has many documents."""
        assert isinstance(metric, MomentMetric)  # noqa: S101 - checked with the settings
        name = next(iter(objective.weights))
        aim = CorpusObjective(0.0, {name: 1.0}, 0.0, self._size, 1.0)
        moments, inclusion = self._problem.anneal(objective, aim, {})
        value = float(metric.of_moment(moments[name], self._size))
        if metric.credit is None:
            return value
        return value + float(inclusion.double() @ metric.credit.double()) / float(metric.size(inclusion)) / self._size
