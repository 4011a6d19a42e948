"""Learn one selection over a whole corpus, by jobs that draw a sample, learn, and pass over all shards."""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from fineweb_mask.flows.engine.scheduler import Jobs, OnDone, add_all
from fineweb_mask.models.errors import SettingsError
from fineweb_mask.models.settings import PipelineSelectionSettings
from fineweb_mask.tasks.judge import Work
from fineweb_mask.tasks.selection.corpus.learning import KeepRuleJob, LearnJob, MeasureJob, SampleJob
from fineweb_mask.tasks.workspace.job import StageJob
from fineweb_mask.tasks.workspace.references import StageFile
from fineweb_mask.tasks.workspace.shard_files import NO_FILE, ShardFiles

logger = logging.getLogger(__name__)

Reading = Callable[[Work], StageJob]
"""Returns the job to add for one that reads a shard's vectors."""

Select = Callable[[list[list[ShardFiles]], PipelineSelectionSettings, StageFile | None], None]
"""Adds the jobs that select from groups of shards, by a rule if there is one."""


class Vectors(NamedTuple):
    """How jobs come by vectors that may not be stored."""

    dimensions: Callable[[], int]
    reading: Reading
    stored: Callable[[], list[ShardFiles]]  # stores those of all shards, and returns the shards that have them


def select_from_corpus(
    jobs: Jobs, shards: list[ShardFiles], rule: KeepRuleJob, select: Select, vectors: Vectors
) -> None:
    """Select from all shards at once, by a rule that an earlier run may have learned; from few documents, as one block.

    Raises
    ------
    SettingsError
        If no rule can do what the settings ask.
    """
    settings, passes = rule.settings, list[MeasureJob]()

    def by_rule(kept: StageFile | None) -> None:
        learned = "" if kept is None else kept.details.get("rule")
        worth = {job.name: job.worth for job in passes if job.rule.fingerprint == learned}
        judged = [shard.model_copy(update={"worth": worth.get(shard.name, NO_FILE)}) for shard in shards]
        select([[shard] for shard in judged], settings, kept)

    if not rule.force and (kept := jobs.done(rule)) is not None:
        learned = kept.model_copy(update={"fingerprint": kept.details.get("rule", "")})
        measured = [MeasureJob(root=rule.root, settings=settings, shard=shard, rule=learned) for shard in shards]
        passes += [job for job in measured if jobs.done(job) is not None]
        jobs.add(rule, by_rule)
        return
    rows = sum(shard.rows for shard in shards)
    sample = settings.sample or settings.sample_for(rows, vectors.dimensions())
    if sample >= rows:
        if stored := vectors.stored():
            select([stored], settings.model_copy(update={"block_size": rows, "blocks": "by_shard"}), None)
        return
    if settings.near_duplicates.forbid:
        raise SettingsError(
            f"selection.near_duplicates.forbid: not with scope: global and more than {sample:,} documents, because "
            "near-duplicates are in different shards: leave it out, or use scope: block"
        )
    if settings.near_duplicates.counted:
        logger.warning(
            "selection.scope: global does not charge for near-duplicates in more than %s documents: look at their "
            "share in the report, or use scope: block",
            f"{sample:,}",
        )
    learn_selection(jobs, shards, rule, sample / rows, by_rule, on_pass=passes.extend, reading=vectors.reading)


def learn_selection(
    jobs: Jobs,
    shards: Sequence[ShardFiles],
    keep: KeepRuleJob,
    rate: float,
    on_kept: Callable[[StageFile | None], None],
    on_pass: Callable[[list[MeasureJob]], None] = lambda _: None,
    reading: Reading = lambda job: job,
) -> None:
    """Add the jobs that learn a rule and keep it; each adds those that come after it.

    Parameters
    ----------
    jobs
        Takes the jobs.
    shards
        All shards of the corpus.
    keep
        The last job.
    rate
        Share of the documents in the sample.
    on_kept
        Called with the rule.
    on_pass
        Called with the jobs of every pass, when they are done.
    reading
        Returns the job to add for one that reads a shard's vectors.
    """
    root, settings = keep.root, keep.settings

    def add_one(job: LearnJob | KeepRuleJob, on_done: OnDone) -> None:
        jobs.expect(job.stage.shown_as, 1)
        jobs.add(job, on_done)

    def on_sampled(samples: list[StageFile]) -> None:
        first = LearnJob(root=root, settings=settings, number=0, samples=samples)
        add_one(first, partial(on_learned, first))

    def on_learned(job: LearnJob, learned: StageFile | None) -> None:
        if learned is None:
            return
        if learned.details["passes"] == settings.passes:
            add_one(keep.model_copy(update={"learned": learned}), on_kept)
            return
        measured = [MeasureJob(root=root, settings=settings, shard=shard, rule=learned) for shard in shards]
        add_all(jobs, list(map(reading, measured)), partial(on_measured, job, learned, measured))

    def on_measured(job: LearnJob, learned: StageFile, measured: list[MeasureJob], tallies: list[StageFile]) -> None:
        on_pass(measured)
        following = job.model_copy(update={"number": job.number + 1, "before": learned, "tallies": tuple(tallies)})
        add_one(following, partial(on_learned, following))

    samples = [SampleJob(root=root, settings=settings, shard=shard, rate=rate) for shard in shards]
    add_all(jobs, list(map(reading, samples)), on_sampled)
