"""Select from a corpus in parts that are read one after the other: the whole algorithm in one process."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from fineweb_mask.models.selection.corpus.documents import Documents
from fineweb_mask.models.selection.corpus.passes import Margin, Outcome, Tally, conclude, find_threshold, margin_at
from fineweb_mask.models.selection.corpus.rule import Rule
from fineweb_mask.models.selection.corpus.sample import SampleProblem
from fineweb_mask.models.selection.corpus.survey import Survey, sampled
from fineweb_mask.models.selection.measures import relative_gap
from fineweb_mask.models.selection.ranges import Ranges
from fineweb_mask.models.settings.selection import SelectionSettings

DIRECTIONS = 128  # of the second moment

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
        No selection of this size has a higher J: the lowest bound of the passes.
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
        What to maximise. `solver` and `near_duplicates` are not read.
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
    >>> selection = select_corpus(lambda: [part], SelectionSettings(lamb=0.8))
    >>> int(selection.masks[0].sum()), selection.gap < 0.02
    (50, True)
    """
    device = torch.device(device)
    surveyed = [(Survey.of(part, device), sampled(part, rate)) for part in parts()]
    survey = Survey.total([one for one, _ in surveyed])
    sample = Documents.concatenate([chosen for _, chosen in surveyed])
    problem = SampleProblem(sample, survey, settings, directions, device)
    learned, outcomes = problem.learn(), list[Outcome]()
    for number in range(passes):
        outcomes.append(apply(parts, learned.rule, learned.margin, problem.budget, device))
        if number + 1 < passes:
            learned = problem.corrected(learned, outcomes[-1])
    best = max(outcomes, key=lambda outcome: outcome.objective)
    bound = min(outcome.upper_bound for outcome in outcomes)
    return CorpusSelection(
        masks=[best.rule.select(part, device)[0] for part in parts()],
        objective=best.objective,
        upper_bound=bound,
        random_objective=problem.random_objective,
        gap=relative_gap(best.objective, bound, problem.random_objective),
        raw=best.raw,
        steps=[Step(outcome.objective, outcome.upper_bound) for outcome in outcomes],
        rule=best.rule,
        ranges=problem.ranges,
    )


def apply(parts: Parts, rule: Rule, margin: Margin, budget: int, device: torch.device) -> Outcome:
    """Pass over all parts with a rule, and again where its threshold was not in the margin."""
    while True:
        tallies = [Tally.of(rule, margin, part, device) for part in parts()]
        rankings = [tally.ranking for tally in tallies]
        threshold = find_threshold(margin, rankings, budget)
        if threshold is not None:
            return conclude(rule, threshold, tallies, device)
        margin = margin_at(margin, rankings, budget)
