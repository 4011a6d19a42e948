"""Learn one selection over a whole corpus, by jobs that draw a sample, learn, and pass over all shards."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from fineweb_mask.flows.engine.scheduler import Jobs, OnDone, add_all
from fineweb_mask.models.errors import SettingsError
from fineweb_mask.tasks.select import SelectJob
from fineweb_mask.tasks.selection.corpus.learning import KeepPolicyJob, LearnJob, SampleJob
from fineweb_mask.tasks.selection.corpus.passes import MeasureJob, penalties_jobs
from fineweb_mask.tasks.workspace.references import StageFile
from fineweb_mask.tasks.workspace.shard_files import ShardFiles

Select = Callable[[list[SelectJob]], None]
"""Adds jobs that select."""


class Found(NamedTuple):
    """What a pass found."""

    measured: list[StageFile]  # by shard
    charges: list[StageFile]  # by cell


def select_from_corpus(jobs: Jobs, shards: list[ShardFiles], rule: KeepPolicyJob, select: Select) -> None:
    """Select from all shards at once, by a rule that an earlier run may have learned; from few documents, as one block.

    Raises
    ------
    SettingsError
        If no rule can do what the settings ask.
    """
    root, settings = rule.root, rule.settings

    def by_rule(kept: StageFile | None) -> None:
        if kept is not None:
            select_by_rule(jobs, shards, kept, rule, select)

    if not rule.force and jobs.done(rule) is not None:
        jobs.add(rule, by_rule)
        return
    rows = sum(shard.rows for shard in shards)
    dimensions = max(int(shard.embeddings.details.get("dimensions", 0)) for shard in shards)
    sample = settings.sample_for(rows, dimensions)
    if sample >= rows:
        one_block = settings.model_copy(update={"block_size": rows, "blocks": "by_shard"})
        select([SelectJob(root=root, shards=shards, settings=one_block)])
        return
    if settings.near_duplicates.forbid:
        raise SettingsError(
            f"selection.near_duplicates.forbid: not with scope: global and more than {sample:,} documents, because "
            "near-duplicates are in different shards: leave it out, or use scope: block"
        )
    learn_selection(jobs, shards, rule, sample / rows, by_rule)


def select_by_rule(
    jobs: Jobs,
    shards: Sequence[ShardFiles],
    kept: StageFile,
    keep: KeepPolicyJob,
    select: Select,
) -> None:
    """Select from all shards by a rule that is kept, and find first what near-duplicates pay, if that is not known.

    What a pass with this rule measured is not measured again.
    """
    of_all: dict[str, Any] = {"root": keep.root, "settings": keep.settings, "policy": kept}
    measured_with = kept.details["best_measured_with"]
    passes = [MeasureJob(shard=shard, part="best", measured_with=measured_with, **of_all) for shard in shards]
    charges = penalties_jobs(keep.root, keep.settings, passes)
    of_all["penalties"] = tuple(job.reference() for job in charges)
    selecting = [SelectJob(shards=[shard], **of_all) for shard in shards]
    is_done = [jobs.done(job) is not None for job in selecting]

    def add(_: object = None) -> None:
        for place, measuring in enumerate(passes):
            if not is_done[place] and measuring.current() is not None:
                judged = shards[place].model_copy(update={"worth": measuring.reference()})
                selecting[place] = SelectJob(shards=[judged], **of_all)
        select(selecting)

    if charges and not all(is_done):  # else what is read to find the charges may be removed
        add_all(jobs, passes, lambda _: add_all(jobs, charges, add))
    else:
        add()


def learn_selection(
    jobs: Jobs,
    shards: Sequence[ShardFiles],
    keep: KeepPolicyJob,
    rate: float,
    on_kept: OnDone,
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
    """
    _Learning(jobs, shards, keep, on_kept).begin(rate)


class _Learning(NamedTuple):
    """Adds the jobs that learn a rule: after each, those that read its output."""

    jobs: Jobs
    shards: Sequence[ShardFiles]
    keep: KeepPolicyJob
    on_kept: OnDone

    @property
    def common(self) -> dict[str, Any]:
        """What all jobs have."""
        return {"root": self.keep.root, "settings": self.keep.settings}

    def begin(self, rate: float) -> None:
        """Draw the sample, and learn the first rule."""
        samples = [SampleJob(shard=shard, rate=rate, **self.common) for shard in self.shards]
        add_all(self.jobs, samples, lambda files: self.learn(LearnJob(number=0, samples=files, **self.common), None))

    def learn(self, job: LearnJob, found: Found | None) -> None:
        """Learn a rule, and pass over the shards with it, or keep the best one."""

        def on_learned(learned: StageFile | None) -> None:
            if learned is None:
                return
            if learned.details["passes"] == self.keep.settings.passes:
                self.add_one(self.keep.model_copy(update={"learned": learned}), self.on_kept)
            elif found is not None and learned.details["again"]:
                self.measure_charged(job, learned, found)
            else:
                self.measure(job, learned)

        self.add_one(job, on_learned)

    def measure(self, job: LearnJob, learned: StageFile) -> None:
        """Pass over all shards, and find what their candidates pay for near-duplicates."""
        passes = [MeasureJob(shard=shard, policy=learned, **self.common) for shard in self.shards]
        cells = penalties_jobs(self.keep.root, self.keep.settings, passes)

        def on_measured(measured: list[StageFile]) -> None:
            if cells:
                add_all(self.jobs, cells, lambda paid: self.measure_charged(job, learned, Found(measured, paid)))
            else:
                self.gather(job, learned, Found(measured, []), [])

        add_all(self.jobs, passes, on_measured)

    def measure_charged(self, job: LearnJob, learned: StageFile, found: Found) -> None:
        """Pass over the candidates of all shards, less what they pay."""
        charged = [
            MeasureJob(shard=shard, measured=file, penalties=tuple(found.charges), policy=learned, **self.common)
            for shard, file in zip(self.shards, found.measured, strict=True)
        ]
        add_all(self.jobs, charged, lambda files: self.gather(job, learned, found, files))

    def gather(self, job: LearnJob, learned: StageFile, found: Found, charged: list[StageFile]) -> None:
        """Gather a pass, and go on."""
        update = {"number": job.number + 1, "before": learned, "tallies": tuple(found.measured)}
        self.learn(job.model_copy(update={**update, "penalised": tuple(charged)}), found)

    def add_one(self, job: LearnJob | KeepPolicyJob, on_done: OnDone) -> None:
        """Add one job, which the listeners do not expect yet."""
        self.jobs.expect(job.stage.shown_as, 1)
        self.jobs.add(job, on_done)
