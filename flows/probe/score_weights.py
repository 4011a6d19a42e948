"""Learn the weights of a recipe's scores: train small models on selections by random weights, and predict the best."""

from typing import Any

import numpy as np

from fineweb_mask.flows.probe.probe import ProbeSummary, run_probe
from fineweb_mask.models.errors import SettingsError
from fineweb_mask.models.probe.losses import FEWEST_MODELS, drawn_weights, learned_weights
from fineweb_mask.models.probe.settings import POOL, Arm, ProbeSettings
from fineweb_mask.models.settings import PipelineSettings
from fineweb_mask.models.settings.quality import ClassesScorerSettings


class ScoreWeightsSummary(ProbeSummary):
    """The weights that are predicted to train the best models; `fineweb-mask score-weights --json` prints them."""

    weights: dict[str, float]  # by score
    predicted: float  # bits per byte
    rank_correlation: float  # of the losses with predictions for models that were left out
    measured_on: list[str]  # held-out sets


def weighted_arms(settings: PipelineSettings, count: int) -> list[Arm]:
    """Return arms of the probe that select the documents of the highest weighted scores, by random weights.

    Raises
    ------
    SettingsError
        If there are too few scores to weigh or models to learn from, or the budget is a number and no share.
    """
    names = [one.name for one in settings.quality.scorers if not isinstance(one, ClassesScorerSettings)]
    if len(names) < 2:
        raise SettingsError(f"quality.scorers: there must be two scores or more to weigh, found {len(names)}")
    if count < FEWEST_MODELS:
        raise SettingsError(
            f"--models must be at least {FEWEST_MODELS}, from fewer nothing is learned: received {count}"
        )
    if settings.selection.budget is not None:
        raise SettingsError("selection.budget: weights are compared at a share of the corpus: set select_ratio instead")
    top = {"omega": settings.selection.select_ratio, "eta": 10.0}  # nearly a step: 1,024 copies above, 0.001 below
    return [
        Arm(name=f"weights-{number:03}", selector="quadmix", changes={"quadmix": {"weights": weights, **top}})
        for number, weights in enumerate(drawn_weights(names, count, settings.selection.seed), start=1)
    ]


def learn_score_weights(settings: PipelineSettings, models: ProbeSettings) -> ScoreWeightsSummary:
    """Run a probe whose arms `weighted_arms` made, and learn from its losses: the mean of the sets that are not `pool`.

    Without such sets the losses are those on documents of the corpus itself.
    """
    summary = run_probe(settings, models)
    sets = [name for name in summary.bits_per_byte if name != POOL] or [POOL]
    weightings = [arm.changes["quadmix"]["weights"] for arm in models.arms]
    losses = [np.mean([summary.bits_per_byte[name][arm.name]["mean"] for name in sets]) for arm in models.arms]
    found = learned_weights(weightings, losses, seed=settings.selection.seed)
    return ScoreWeightsSummary(**summary.model_dump(), **found._asdict(), measured_on=sets)


def as_overrides(settings: PipelineSettings, weights: dict[str, float]) -> dict[str, Any]:
    """Return the overrides of a recipe that give its scorers these weights.

    Other scorers get none.
    """
    return {
        f"quality.scorers.{place}.weight": round(weights.get(scorer.name, 0.0), 3)
        for place, scorer in enumerate(settings.quality.scorers)
        if not isinstance(scorer, ClassesScorerSettings)
    }
