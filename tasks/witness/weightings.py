"""Learn weights of scores, or shares of groups, from what many random ones teach, and write what was found on a page.

A regression over random weightings predicts which are best. How well it predicts those that were left out of its fit
says whether it learned anything.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from fineweb_mask.models.errors import DataError
from fineweb_mask.models.witness.weightings import GroupShares, ScoreWeights, searched
from fineweb_mask.tasks.reporting.page import Column, Page, Table, Tile
from fineweb_mask.tasks.witness.job import MOST_TOKENS
from fineweb_mask.tasks.witness.tune import TRIED, SearchJob, scores_at, search_page
from fineweb_mask.tasks.workspace.job import Dependencies, Stage, stage_task

MOST_GROUPS = 64
SPARE = 1.05  # times the tokens that are learned from: what a mixture has, so that half a document does not matter
FOUND = "found"
SCORES, SHARES = "score-weights", "group-shares"


class WeightingsJob(SearchJob):
    """Learn the weights of scores or, if none are given, the shares of groups."""

    stage: ClassVar[Stage] = Stage("weigh", version=1, folders=(SCORES, SHARES))
    models: int

    @property
    def name(self) -> str:
        """The name of the page, and of its folder."""
        return SCORES if self.weights else SHARES

    @property
    def folder_name(self) -> str:
        """The folder of the page."""
        return self.name

    @property
    def own(self) -> str:
        """The name of what is compared with what was found."""
        return "equal weights" if self.weights else "the corpus's shares"

    def depends_on(self) -> Dependencies:
        """Return what is weighed and how selections are made, and the fingerprints of the corpus and of the targets."""
        chosen = [self.settings.select_ratio, self.settings.seed, self.settings.near_duplicates.threshold]
        return Dependencies(settings=[sorted(self.weights), self.by, self.models, *chosen], inputs=self.inputs())


@stage_task
def weigh(job: WeightingsJob) -> None:
    """Measure random weightings, learn, and write the page; `details` hold the weights and the final figures.

    Raises
    ------
    DataError
        If there is one group, or more than `MOST_GROUPS`.
    """
    corpus, halves = job.read(MOST_TOKENS)
    lengths = corpus.pool.lengths
    names, groups = np.unique(corpus.groups, return_inverse=True)
    of: ScoreWeights | GroupShares
    if job.weights:
        names, share = np.array(list(job.weights)), round(job.settings.select_ratio * int(lengths.sum()))
        of = ScoreWeights(scores_at(job, corpus), lengths, share)
    elif 2 <= len(names) <= MOST_GROUPS:
        of = GroupShares(groups, lengths, int(SPARE * halves.tokens))
    else:
        raise DataError(
            f"selection.groups.column {job.by!r} has {len(names)} values: shares are learned of 2 to {MOST_GROUPS}; "
            "name another column"
        )
    seed = job.settings.seed
    found, drawn, losses = searched(of, halves, job.models, seed)
    arms = {FOUND: of.select(found.weights, seed + job.models), job.own: of.select(of.own, seed + job.models)}
    tried = [
        {"weights": dict(zip(names.tolist(), row, strict=True)), "loss": loss}
        for row, loss in zip(drawn.tolist(), losses, strict=True)
    ]
    details = {
        "rows": job.models,
        "weights": dict(zip(names.tolist(), found.weights.tolist(), strict=True)),
        "predicted": found.predicted,
        "rank_correlation": found.rank_correlation,
        "measured_on": halves.names,
        "tried": tried,
        "final": job.final(corpus, halves, arms),
    }
    job.write(_page(job, details), details)


def _page(job: WeightingsJob, details: Mapping[str, Any]) -> Page:
    what = "Weights of scores" if job.weights else "Shares of groups"
    tried = sorted(details["tried"], key=lambda one: one["loss"])
    rows = [[described(one["weights"]), 1 - one["loss"]] for one in tried]
    note = (
        f"{job.models} selections by random weights, on the deciding half of {', '.join(details['measured_on'])}. "
        "Predictions of those that were left out of the fit have a rank correlation of "
        f"{details['rank_correlation']:.2f} with their losses: near 0 or below, they say nothing about weights."
    )
    return search_page(
        details,
        f"{what}, by what a language model learns",
        f"{what} that are predicted to teach most: {described(details['weights'])}.",
        [
            Tile(str(job.models), "models"),
            Tile(f"{details['rank_correlation']:.2f}", "rank correlation"),
            Tile(f"{1 - details['predicted']:+.1%}", "predicted, against random documents"),
        ],
        FOUND,
        details["measured_on"],
        Table("Random weights", [Column("weights"), Column(TRIED, "share")], rows, note),
    )


def described(weights: Mapping[str, float]) -> str:
    """Return weights as text, the largest first."""
    return ", ".join(f"{name} {weight:.3f}" for name, weight in sorted(weights.items(), key=lambda one: -one[1]))
