"""Search the settings of a recipe's selection by what it teaches a language model of n-grams."""

from typing import Any

from fineweb_mask.flows.curate import prepare
from fineweb_mask.flows.pipeline.inputs import check_inputs
from fineweb_mask.flows.pipeline.selector_runs import published
from fineweb_mask.flows.pipeline.start import as_flow, start_run
from fineweb_mask.flows.recipe import with_overrides
from fineweb_mask.flows.summary import PageSummary
from fineweb_mask.models.errors import SettingsError
from fineweb_mask.models.settings import FIRST_IN_FORM, Overrides, PipelineSettings
from fineweb_mask.tasks.source.discovery import SourceShard, find_files
from fineweb_mask.tasks.witness.tune import Trial, TuneJob

TRIALS, MINUTES = 64, 30.0


class TuneSummary(PageSummary):
    """What a search found; `fineweb-mask tune --json` prints it."""

    trials: int
    best: dict[str, Any]
    sets: list[str]  # by which trials were judged
    final: dict[str, Any]  # on the half of the held-out documents that the search did not see
    overrides: dict[str, Any]  # by key, what the recipe becomes


@as_flow("tune")
def tune(
    settings: PipelineSettings,
    targets: dict[str, str] | None = None,
    trials: int = TRIALS,
    minutes: float = MINUTES,
    overrides: Overrides = FIRST_IN_FORM,
) -> TuneSummary:
    """Try settings of the selection, and write a page on the best; the pipeline's own masks stay as they are.

    Parameters
    ----------
    settings
        The recipe: its documents, budget and seed are every trial's. Weights of scores are searched where it has
        several, shares of groups where it has `selection.groups`.
    targets
        By name, files of texts that should be predicted well. Without any, documents of the corpus are held out.
    trials
        How many settings are tried, the recipe's own included.
    minutes
        After which no further trial begins.
    overrides
        Settings instead of the recipe's, by section: `{"selection": {"lamb": 0.3}}`.

    Raises
    ------
    SettingsError
        If the recipe selects so many documents and not a share, or a file does not exist.
    DataError
        If there is too little to hold out or to learn from.
    """
    settings = with_overrides(settings, overrides)
    files = check(settings, targets or {}, trials)
    with start_run(settings, keep=False) as run:
        settings, groups = run.settings, run.settings.selection.groups
        ready = prepare(run)
        job = TuneJob(
            root=run.root,
            shards=ready.shards,
            settings=settings.selection,
            weights=weighed(settings),
            targets=files,
            by=None if groups is None else groups.column,
            trials=trials,
            minutes=minutes,
        )
        found = run.one(job).details
        table = [
            {"held-out set": name, "settings": arm, **effect}
            for name, measured in found["final"]["sets"].items()
            for arm, effect in measured["against_random"].items()
        ]
        also = {
            "documents": sum(shard.rows for shard in ready.shards),
            "trials": len(found["trials"]),
            "overrides": as_overrides(settings, Trial.model_validate(found["best"])),
        }
        description = "Differences to random documents, in bits per byte."
        return published(TuneSummary, run, job.folder, table, description, **{**found, **also})


def check(settings: PipelineSettings, targets: dict[str, str], trials: int) -> dict[str, list[SourceShard]]:
    """Check that there are enough trials and that everything that is named exists; return the files of the targets.

    Raises
    ------
    SettingsError
        With the name of what is missing.
    """
    if settings.selection.budget is not None:
        raise SettingsError("selection.budget: trials have a share of the corpus: set select_ratio instead")
    if trials < 2:
        raise SettingsError(f"--trials must be at least 2, the recipe's settings and others: received {trials}")
    check_inputs(settings)
    return {name: find_files(path, f"target {name}") for name, path in targets.items()}


def weighed(settings: PipelineSettings) -> dict[str, float]:
    """Return the weights of the scores that can be weighed otherwise; none where they are not summed."""
    if settings.quality.combine != "weighted_sum":
        return {}
    return {one.name: one.weight for one in settings.quality.scorers}


def as_overrides(settings: PipelineSettings, trial: Trial) -> dict[str, Any]:
    """Return the settings, by key, that make a recipe select as a trial did."""
    found: dict[str, Any] = {"selection.lamb": trial.lamb, "selection.metrics": trial.metrics}
    found |= {"selection.solver": "mean_field", "selection.budget_by": "tokens"}
    for place, scorer in enumerate(settings.quality.scorers):
        if scorer.name in trial.weights:
            found[f"quality.scorers.{place}.weight"] = trial.weights[scorer.name]
    if trial.shares:
        found["selection.groups.shares"] = trial.shares
    return found
