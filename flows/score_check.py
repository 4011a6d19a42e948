"""Check a workspace's scores inside the groups of a column, without any label."""

from contextlib import suppress
from typing import Any

from fineweb_mask.flows.curate import ingest_shards, score_and_embed_shards, score_shards
from fineweb_mask.flows.pipeline.fit import Quality, fit_quality
from fineweb_mask.flows.pipeline.records import shard_files
from fineweb_mask.flows.pipeline.run import MissingInputError, Run, UnfinishedError
from fineweb_mask.flows.pipeline.selector_runs import published
from fineweb_mask.flows.pipeline.start import as_flow, start_run
from fineweb_mask.flows.summary import CheckSummary
from fineweb_mask.models.errors import SettingsError
from fineweb_mask.models.settings import FROM_QUALITY, PipelineSettings
from fineweb_mask.tasks.audit.score_check import PAGES, ScoreCheckJob
from fineweb_mask.tasks.workspace.references import ShardFiles


class ScoreCheckSummary(CheckSummary):
    """What a check of scores found; `fineweb-mask score-check --json` prints it."""

    by: str
    scores: dict[str, dict[str, float | None]]  # over all groups
    groups: list[dict[str, Any]]


@as_flow("score-check")
def score_check(settings: PipelineSettings, by: str = "dump", pages: int = PAGES) -> ScoreCheckSummary:
    """Measure the scores of a finished workspace in every group, and write a page; nothing else is built.

    Parameters
    ----------
    settings
        The recipe of the workspace, which has been run.
    by
        Column of the documents or the scores, such as a source or a dump.
    pages
        How many pages are damaged and scored again, of all groups together.

    Raises
    ------
    SettingsError
        If nothing is scored yet, or there are too few pages.
    DataError
        If there is no such column, or it has too many values.
    """
    check_pages(pages)
    if not settings.quality.scorers:
        raise SettingsError("quality.scorers: there is no score to check, received []: name one, such as {kind: rules}")
    with start_run(settings, keep=False, scope=frozenset({ScoreCheckJob.stage.name})) as run:
        quality, shards = scored(run)
        job = ScoreCheckJob(
            root=run.root,
            shards=shards,
            models=quality.scorers,
            statistics=quality.statistics,
            settings=settings.quality,
            by=by,
            pages=pages,
        )
        found = run.one(job).details
        table = [
            {"group": group["group"], "documents": group["documents"]}
            | {name: round(group["scores"]["quality"][name], 4) for name in ("mean", "deviation", "of_the_best")}
            for group in found["groups"]
        ]
        return published(ScoreCheckSummary, run, job.folder, table, f"The scores inside every {by}.", **found)


def check_pages(pages: int) -> None:
    """Check that some pages are damaged.

    Raises
    ------
    SettingsError
        If none is.
    """
    if pages < 1:
        raise SettingsError(f"--pages must be at least 1, of none nothing is learned: received {pages}")


def scored(run: Run) -> tuple[Quality, list[ShardFiles]]:
    """Return what scores were made by, and the shards that have them, of a run that makes none itself.

    Raises
    ------
    SettingsError
        If no shard has scores.
    """
    with suppress(UnfinishedError, MissingInputError):
        documents = ingest_shards(run)
        quality = fit_quality(run, documents)
        together = run.settings.embedding.model == FROM_QUALITY
        (score_and_embed_shards if together else score_shards)(run, documents, quality)
        if shards := [shard for shard in shard_files(run) if shard.scores.path]:
            return quality, shards
    raise SettingsError(f"{run.settings.workspace} has no scores: run its recipe first, as far as the scores at least")
