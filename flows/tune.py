"""Search the settings of a recipe's selection by what it teaches a language model of n-grams."""

from typing import Any

from fineweb_mask.flows.curate import prepare
from fineweb_mask.flows.pipeline.inputs import check_inputs
from fineweb_mask.flows.pipeline.start import published, start_run
from fineweb_mask.flows.summary import PageSummary
from fineweb_mask.models.errors import SettingsError
from fineweb_mask.models.settings import PipelineSettings
from fineweb_mask.tasks.source.discovery import SourceShard
from fineweb_mask.tasks.witness.documents import find_targets
from fineweb_mask.tasks.witness.tune import TuneJob


class TuneSummary(PageSummary):
    """What a search found; `fineweb-mask tune --json` prints it."""

    best: dict[str, Any]  # by key, what the recipe becomes; nothing if its own settings are the best
    said: list[str]  # of documents that the search did not see, in lines


def tune(settings: PipelineSettings, targets: list[str] | None, trials: int) -> TuneSummary:
    """Try settings of the selection, and write the page; the parameters are those of `fineweb-mask tune`."""
    files, quality = check(settings, targets), settings.quality
    scorers = enumerate(quality.scorers if quality.combine == "weighted_sum" and quality.by is None else ())
    weights = {f"quality.scorers.{place}.weight": (one.name, one.weight) for place, one in scorers if one.weight}
    with start_run(settings, keep=False) as run:
        common = {"root": run.root, "settings": settings.selection, "targets": files, "trials": trials}
        job = TuneJob(shards=prepare(run).shards, weights=weights, **common)
        found = run.one(job).details
        table, documents = [{"found": line} for line in found["said"]], sum(shard.rows for shard in job.shards)
        return published(TuneSummary, run, job.folder, table, "Tuned settings.", documents=documents, **found)


def check(settings: PipelineSettings, targets: list[str] | None = None, **_: object) -> dict[str, list[SourceShard]]:
    """Check that a recipe can be tuned, and return the files of each FILE or NAME=FILE, by the file's name or NAME."""
    if settings.selection.budget is not None:
        raise SettingsError("selection.budget: trials have a share of the corpus: set select_ratio instead")
    check_inputs(settings)
    return find_targets(targets or [])
