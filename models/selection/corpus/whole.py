"""Select from a corpus in parts that are read one after the other: the whole algorithm in one process."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from fineweb_mask.models.runtime.threads import same_threads
from fineweb_mask.models.selection.corpus.documents import Documents, sampled
from fineweb_mask.models.selection.corpus.near_duplicates import near_duplicate_penalties
from fineweb_mask.models.selection.corpus.passes import (
    Bound,
    Margin,
    Outcome,
    Tally,
    conclude,
    find_threshold,
    margin_at,
)
from fineweb_mask.models.selection.corpus.rule import Rule
from fineweb_mask.models.selection.corpus.sample import CorpusStatistics, Learned, SampleProblem
from fineweb_mask.models.selection.problem.measures import relative_gap
from fineweb_mask.models.selection.problem.normalisation import Ranges
from fineweb_mask.models.settings.selection import DIRECTIONS, SelectionSettings

Parts = Callable[[], Iterable[Documents]]
"""Returns the parts of a corpus, always in the same order."""


class Step(NamedTuple):
    """What a pass found."""

    objective: float
    upper_bound: float


class CorpusSelection(NamedTuple):
    """A selection from a corpus.

    Attributes
    ----------
    masks
        Which documents of each part are selected, (n,) bool each.
    objective
        J of the selection: the best of the passes.
    upper_bound
        No selection of as many documents, or of as many tokens or more, has a higher J: the lowest bound of the passes.
    random_objective
        J expected of a random selection, estimated by the sample.
    gap
        `relative_gap` of these three.
    raw
        "mean_quality" and every metric's value.
    steps
        What every pass found.
    rule
        What selects: `rule.select(documents, device)` selects from documents that came since.
    ranges
        The scales of the terms.
    """

    masks: list[NDArray[np.bool_]]
    objective: float
    upper_bound: float
    random_objective: float
    gap: float | None
    raw: dict[str, float]
    steps: list[Step]
    rule: Rule
    ranges: Ranges


@same_threads()
def select_corpus(
    parts: Parts,
    settings: SelectionSettings,
    *,
    rate: float = 1.0,
    passes: int = 2,
    directions: int = DIRECTIONS,
    device: str | torch.device = "cpu",
) -> CorpusSelection:
    """Select the documents of a corpus that together maximise the objective, without holding more than one part.

    Parameters
    ----------
    parts
        Returns the parts; it is called `passes` + 2 times.
    settings
        What to maximise. `solver` and `near_duplicates.forbid` are not read.
    rate
        Share of the documents in the sample that the rule is learned on, which is kept in memory.
    passes
        Rules that are learned and applied; the best one is kept.
    directions
        Principal directions in which metrics of the second moment are measured.
    device
        "cpu", "cuda" or a torch device.

    Examples
    --------
    >>> random = np.random.default_rng(0)
    >>> part = Documents(random.normal(size=(500, 8)), random.random(500, np.float32), random.random(500))
    >>> selection = select_corpus(lambda: [part], SelectionSettings(metrics="pairwise", lamb=0.8))
    >>> int(selection.masks[0].sum()), selection.gap < 0.02
    (50, True)
    """
    device = torch.device(device)
    summed = [(CorpusStatistics.of(part, device), sampled(part, rate)) for part in parts()]
    statistics = CorpusStatistics.total([one for one, _ in summed])
    sample = Documents.concatenate([chosen for _, chosen in summed])
    problem = SampleProblem(sample, statistics, settings, directions, device)
    learned, tried = problem.learn(), list[_Tried]()
    for number in range(passes):
        tried.append(_try(parts, problem, learned, device))
        if number + 1 < passes:
            learned = problem.corrected(learned, tried[-1].outcome)
    best = max(tried, key=lambda one: one.outcome.objective)
    bound = min(one.bound.at(best.outcome.bound.used) for one in tried)
    return CorpusSelection(
        masks=best.masks or [best.outcome.rule.select(part, device)[0] for part in parts()],
        objective=best.outcome.objective,
        upper_bound=bound,
        random_objective=problem.random_objective,
        gap=relative_gap(best.outcome.objective, bound, problem.random_objective),
        raw=best.outcome.raw,
        steps=[Step(one.outcome.objective, one.bound.at(one.outcome.bound.used)) for one in tried],
        rule=best.outcome.rule,
        ranges=problem.ranges,
    )


class _Tried(NamedTuple):
    """What a rule selects."""

    outcome: Outcome
    bound: Bound
    masks: list[NDArray[np.bool_]] | None  # one for each part, if near-duplicates are penalised


def _try(parts: Parts, problem: SampleProblem, learned: Learned, device: torch.device) -> _Tried:
    """Pass over all parts with a rule, and find what it selects when near-duplicates are penalised."""
    outcome = apply(parts, learned.rule, learned.margin, problem.budget, device)
    if learned.search is None:
        return _Tried(outcome, outcome.bound, None)
    search = learned.search
    while True:
        found, candidates = list[tuple[NDArray[np.int64], NDArray[np.int64]]](), list[Documents]()
        for part in parts():
            measured = part._replace(worth=learned.rule.measure(part, device).worth)
            found.append(search.candidates(measured, device))
            candidates.append(measured.take(found[-1][0]))
        everyone, clusters = Documents.concatenate(candidates), np.concatenate([of_part for _, of_part in found])
        penalties = np.zeros(len(clusters), dtype=np.float32)
        for cluster in np.unique(clusters):
            own = clusters == cluster
            penalties[own] = near_duplicate_penalties(
                learned.rule, problem.settings.near_duplicates, everyone.take(own), device
            )
        by_part = np.split(penalties, np.cumsum([len(index) for index, _ in found])[:-1])
        candidates = [part._replace(charges=of_part) for part, of_part in zip(candidates, by_part, strict=True)]
        some = [part for part in candidates if len(part.quality)]
        penalised = apply(lambda: some, learned.rule, search.margin, problem.budget, device)  # noqa: B023
        if search.is_wide_enough(penalised.rule.threshold, int(everyone.costs.sum()), problem.budget):
            break
        problem.spare *= 2
        search = problem.search(learned.rule, learned.margin, problem.spare)
    masks = [np.zeros(len(part.quality), dtype=bool) for part in parts()]
    for mask, (index, _), part in zip(masks, found, candidates, strict=True):
        if len(index):
            mask[index] = penalised.rule.select(part, device)[0]
    return _Tried(penalised, outcome.bound, masks)


def apply(parts: Parts, rule: Rule, margin: Margin, budget: int, device: torch.device) -> Outcome:
    """Pass over all parts with a rule, and again where the threshold was not in the margin."""
    while True:
        tallies = [Tally.of(margin, part, rule.measure(part, device)) for part in parts()]
        rankings = [tally.ranking for tally in tallies]
        threshold = find_threshold(margin, rankings, budget)
        if threshold is not None:
            return conclude(rule, threshold, tallies, budget, device)
        margin = margin_at(margin, rankings, budget)
