"""Learn one selection over a whole corpus: draw a sample, learn a rule on it, improve it by passes over all shards."""

from collections.abc import Sequence
from typing import Any

from fineweb_mask.flows.pipeline.run import Run
from fineweb_mask.models.errors import SettingsError
from fineweb_mask.tasks.select import SelectJob
from fineweb_mask.tasks.selection.corpus.learning import KeepRuleJob, LearnJob, MeasureJob, SampleJob
from fineweb_mask.tasks.selection.corpus.near_duplicates import ChargedJob, charges_jobs
from fineweb_mask.tasks.workspace.references import StageFile
from fineweb_mask.tasks.workspace.shard_files import ShardFiles


def jobs_of_whole_corpus(run: Run, shards: list[ShardFiles], models: list[str]) -> list[SelectJob]:
    """Return the jobs that select from all shards by one rule, which is learned first unless an earlier run kept one.

    A corpus that is no larger than the sample is selected from as one block.

    Parameters
    ----------
    run
        The run.
    shards
        All shards of the corpus.
    models
        What identifies the models of all documents.

    Raises
    ------
    SettingsError
        If no rule can do what the settings ask.
    """
    settings = run.settings.selection
    keep = KeepRuleJob(root=run.root, settings=settings, models=models, force=KeepRuleJob.stage.name in run.refit)
    if run.done(keep) is None:
        rows = sum(shard.rows for shard in shards)
        dimensions = max(int(shard.embeddings.details["dimensions"]) for shard in shards)
        sample = settings.sample or settings.sample_for(rows, dimensions)
        if sample >= rows:
            one_block = settings.model_copy(update={"block_size": rows})
            return [SelectJob(root=run.root, shards=shards, settings=one_block)]
        if settings.near_duplicates.forbid:
            raise SettingsError(
                f"selection.near_duplicates.forbid: not with scope: global and more than {sample:,} documents, because "
                "near-duplicates are in different shards: leave it out, or use scope: block"
            )
        keep = keep.model_copy(update={"learned": learn_rule(run, shards, keep, sample / rows)})
    return jobs_by_rule(run, shards, keep, run.one(keep))


def learn_rule(run: Run, shards: Sequence[ShardFiles], keep: KeepRuleJob, rate: float) -> StageFile:
    """Learn a rule on a sample of this share of the documents, and return it after the passes over all shards."""
    common: dict[str, Any] = {"root": run.root, "settings": keep.settings}
    samples = run.all([SampleJob(shard=shard, rate=rate, **common) for shard in shards])
    job = LearnJob(number=0, samples=samples, **common)
    learned = run.one(job)
    measured, penalties, charged = list[StageFile](), list[StageFile](), list[StageFile]()
    while learned.details["passes"] < keep.settings.passes:
        is_measured = bool(measured) and learned.details["again"]
        if not is_measured:
            passes = [MeasureJob(shard=shard, rule=learned, **common) for shard in shards]
            measured = run.all(passes)
            penalties = run.all(charges_jobs(run.root, keep.settings, passes))
        if penalties or is_measured:
            charging = [ChargedJob(measured=file, charges=penalties, rule=learned, **common) for file in measured]
            charged = run.all(charging)
        update = {"before": learned, "tallies": tuple(measured), "charged": tuple(charged)}
        job = job.model_copy(update={"number": job.number + 1, **update})
        learned = run.one(job)
    return learned


def jobs_by_rule(run: Run, shards: Sequence[ShardFiles], keep: KeepRuleJob, kept: StageFile) -> list[SelectJob]:
    """Return the jobs that select by a rule that is kept; the penalties of near-duplicates are found first.

    What a pass with this rule measured is not measured again.
    """
    common: dict[str, Any] = {"root": run.root, "settings": keep.settings, "rule": kept}
    measured_with = kept.details["best_measured_with"]
    passes = [MeasureJob(shard=shard, part="best", measured_with=measured_with, **common) for shard in shards]
    charges = charges_jobs(run.root, keep.settings, passes)
    common["charges"] = tuple(job.reference() for job in charges)
    selecting = [SelectJob(shards=[shard], **common) for shard in shards]
    is_done = [run.done(job) is not None for job in selecting]
    if charges and not all(is_done):  # else what is read to find the penalties may have been removed
        run.all(passes)
        run.all(charges)
    for place, measuring in enumerate(passes):
        if not is_done[place] and measuring.current() is not None:
            measured = shards[place].model_copy(update={"worth": measuring.reference()})
            selecting[place] = SelectJob(shards=[measured], **common)
    return selecting
