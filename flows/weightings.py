"""Learn the weights of a recipe's scores, or the shares of its groups, from what random ones teach a language model."""

from collections.abc import Mapping
from typing import Any, Literal

from fineweb_mask.flows.pipeline.start import as_flow
from fineweb_mask.flows.recipe import with_overrides
from fineweb_mask.flows.summary import PageSummary
from fineweb_mask.flows.tune import check as check_search
from fineweb_mask.flows.tune import score_overrides, searched, weighed
from fineweb_mask.models.errors import SettingsError
from fineweb_mask.models.settings import FIRST_IN_FORM, Overrides, PipelineSettings
from fineweb_mask.models.witness.weightings import FEWEST_MODELS
from fineweb_mask.tasks.source.discovery import SourceShard
from fineweb_mask.tasks.witness.weightings import WeightingsJob

MODELS = 256
Weighed = Literal["scores", "groups"]


class WeightingsSummary(PageSummary):
    """The weights that are predicted to teach most; `fineweb-mask score-weights --json` and `group-shares` print it."""

    weights: dict[str, float]  # by score, or by group; they add up to 1
    predicted: float  # loss, as a share of that of random documents
    rank_correlation: float  # of the losses with predictions for weightings that were left out of the fit
    measured_on: list[str]  # held-out sets
    final: dict[str, Any]  # on the half of the held-out documents that decided nothing
    overrides: dict[str, Any]  # by key, what the recipe becomes


@as_flow("weightings")
def weightings(
    settings: PipelineSettings,
    of: Weighed = "scores",
    targets: dict[str, str] | None = None,
    models: int = MODELS,
    overrides: Overrides = FIRST_IN_FORM,
) -> WeightingsSummary:
    """Select by random weights, predict the best, and write a page; the pipeline's own masks stay as they are.

    Parameters
    ----------
    settings
        The recipe: its documents, share and seed are every selection's.
    of
        What is weighed: `scores` of documents, or `groups`, the shares of `selection.groups`.
    targets
        By name, files of texts that should be predicted well. Without any, documents of the corpus are held out.
    models
        How many selections are measured.
    overrides
        Settings instead of the recipe's, by section: `{"selection": {"select_ratio": 0.1}}`.

    Raises
    ------
    SettingsError
        If there is nothing to weigh, too few models, a budget that is no share, or a file does not exist.
    DataError
        If there is too little to hold out or to learn from.
    """
    settings = with_overrides(settings, overrides)
    return searched(
        WeightingsSummary,
        WeightingsJob,
        settings,
        lambda found: {"overrides": as_overrides(settings, of, found["weights"])},
        targets=check(settings, of, targets or {}, models),
        weights=weighed(settings) if of == "scores" else {},
        models=models,
    )


def check(
    settings: PipelineSettings, of: Weighed, targets: dict[str, str], models: int
) -> dict[str, list[SourceShard]]:
    """Check that there is something to weigh and that everything that is named exists; return the targets' files.

    Raises
    ------
    SettingsError
        With what to change.
    """
    if of == "scores" and len(names := weighed(settings)) < 2:
        raise SettingsError(
            "quality.scorers: there must be two scores or more to weigh, combined by weighted_sum: found "
            f"{', '.join(names) or 'none'}"
        )
    if of == "groups" and settings.selection.groups is None:
        raise SettingsError("selection.groups: set selection.groups.column, whose values get shares")
    return check_search(settings, targets, models, "--models", FEWEST_MODELS)


def as_overrides(settings: PipelineSettings, of: Weighed, weights: Mapping[str, float]) -> dict[str, Any]:
    """Return the settings, by key, that make a recipe select by these weights; rounded shares add up to 1."""
    rounded = {name: round(weight, 4) for name, weight in weights.items()}
    if of == "scores":
        return score_overrides(settings, rounded)
    shares = {name: share for name, share in rounded.items() if share}
    largest = max(shares, key=lambda name: shares[name])
    shares[largest] = round(shares[largest] + 1 - sum(shares.values()), 4)
    return {"selection.groups.shares": shares, "selection.budget_by": "tokens"}
