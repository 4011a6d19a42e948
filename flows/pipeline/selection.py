"""Select from the prepared shards: from each block of documents, or from the whole corpus by one threshold policy."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from fineweb_mask.flows.pipeline.fit import Models, fit_targets
from fineweb_mask.flows.pipeline.run import Files, PerShard, Run
from fineweb_mask.models.errors import SettingsError
from fineweb_mask.tasks.comparison.variants import reads_targets
from fineweb_mask.tasks.select import SelectJob
from fineweb_mask.tasks.selection.blocks import grouped, merged
from fineweb_mask.tasks.selection.corpus.learning import KeepPolicyJob, LearnJob, SampleJob
from fineweb_mask.tasks.selection.corpus.passes import MeasureJob, penalties_jobs
from fineweb_mask.tasks.selection.groups import CountJob, SharesJob
from fineweb_mask.tasks.workspace.job import BadShardError
from fineweb_mask.tasks.workspace.records.counts import Counts, account, why_none_is_left
from fineweb_mask.tasks.workspace.references import ShardFiles, StageFile

LISTED = 3
"""Most reasons in one message."""


class Prepared(NamedTuple):
    """What a selection reads."""

    shards: list[ShardFiles]  # those that no stage found bad, in the order of the source
    models: Models
    documents: Files  # also of shards that a later stage found bad


class Selection(NamedTuple):
    """What was selected."""

    shards: list[ShardFiles]  # with their masks, in the order of the source
    groups: list[StageFile]  # what was recorded of each group of shards, in the order of their names

    @property
    def blocks(self) -> list[dict[str, Any]]:
        """What was recorded of every block, or of the whole corpus."""
        return merged([block for group in self.groups for block in group.details["blocks"]])

    @property
    def counts(self) -> Counts:
        """The document and token counts of the shards."""
        return account([shard.documents for shard in self.shards], self.groups)


def prepared(run: Run, documents: Files, models: Models, scores: Files, vectors: Files, duplicates: Files) -> Prepared:
    """Return the shards that every stage so far has made its file of.

    Raises
    ------
    BadShardError
        If there is none; the message says why.
    """
    shards = [
        ShardFiles(
            documents=documents[name],
            scores=scores[name],
            embeddings=vectors[name],
            duplicates=duplicates[name],
        )
        for name in run.shards
        if name in scores and name in vectors and name in duplicates
    ]
    run.require_all(PerShard({shard.name: shard for shard in shards}))
    if not shards:
        raise BadShardError(f"no shard could be scored and embedded: {_reasons(run)}")
    return Prepared(shards, models, documents)


def check_any_document(run: Run, documents: Files) -> None:
    """Check that ingest left something to go on with.

    Raises
    ------
    BadShardError
        If it did not; the message says why.
    """
    if not documents:
        run.require_all(documents)
        raise BadShardError(f"no source file could be read: {_reasons(run)}")
    if not any(file.rows for file in documents.values()):
        reason = why_none_is_left(list(documents.values()))
        raise BadShardError(reason)


def select(run: Run, prepared: Prepared) -> Selection:
    """Select documents from every block, or from all shards by one rule."""
    settings = run.settings.selection
    if settings.scope == "global":
        jobs = jobs_of_whole_corpus(run, prepared.shards, prepared.models.identities)
    else:
        targets = None
        if reads_targets([settings.solver]):
            targets = fit_targets(run, prepared.documents, prepared.models)
        common: dict[str, Any] = {"root": run.root, "settings": settings}
        jobs = [SelectJob(shards=shards, targets=targets, **common) for shards in grouped(prepared.shards, settings)]
        if settings.groups is not None and settings.groups.shares != "proportional":
            jobs = _with_shares(run, prepared.shards, jobs)
    groups = run.all(jobs)
    masks = {name: file for job in jobs for name, file in run.files_of(job).items()}
    shards = [shard.model_copy(update={"masks": masks[shard.name]}) for shard in prepared.shards]
    return Selection(shards, sorted(groups, key=lambda group: group.name))


def _with_shares(run: Run, shards: list[ShardFiles], jobs: list[SelectJob]) -> list[SelectJob]:
    """Return the jobs with the shares of the documents' groups, which are found first where a job is not done."""
    common: dict[str, Any] = {"root": run.root, "settings": run.settings.selection}
    counts = [CountJob(shard=shard, **common) for shard in shards]
    dividing = SharesJob(counts=[job.reference() for job in counts], **common)
    selecting = [job.model_copy(update={"shares": dividing.reference()}) for job in jobs]
    if any(run.done(job) is None for job in selecting):  # else the shares may have been removed
        run.all(counts)
        run.one(dividing)
    return selecting


def _reasons(run: Run) -> str:
    bad = list(run.quarantined.values())
    return "; ".join(bad[:LISTED]) + (f"; and {len(bad) - LISTED:,} more" if len(bad) > LISTED else "")


def jobs_of_whole_corpus(run: Run, shards: list[ShardFiles], models: list[str]) -> list[SelectJob]:
    """Return the jobs that select from all shards by one policy, which is learned first unless an earlier run kept one.

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
        If no policy can do what the settings ask.
    """
    settings = run.settings.selection
    keep = KeepPolicyJob(root=run.root, settings=settings, models=models, force=KeepPolicyJob.stage.name in run.refit)
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
        keep = keep.model_copy(update={"learned": learn_policy(run, shards, keep, sample / rows)})
    return jobs_by_policy(run, shards, keep, run.one(keep))


def learn_policy(run: Run, shards: Sequence[ShardFiles], keep: KeepPolicyJob, rate: float) -> StageFile:
    """Learn a policy on a sample of this share of the documents, and return it after the passes over all shards."""
    common: dict[str, Any] = {"root": run.root, "settings": keep.settings}
    samples = run.all([SampleJob(shard=shard, rate=rate, **common) for shard in shards])
    job = LearnJob(number=0, samples=samples, **common)
    learned = run.one(job)
    measured, penalties, penalised = list[StageFile](), list[StageFile](), list[StageFile]()
    while learned.details["passes"] < keep.settings.passes:
        is_measured = bool(measured) and learned.details["again"]
        if not is_measured:
            passes = [MeasureJob(shard=shard, policy=learned, **common) for shard in shards]
            measured = run.all(passes)
            penalties = run.all(penalties_jobs(run.root, keep.settings, passes))
        if penalties or is_measured:
            again = {"policy": learned, "penalties": tuple(penalties), **common}
            pairs = zip(shards, measured, strict=True)
            penalised = run.all([MeasureJob(shard=shard, measured=file, **again) for shard, file in pairs])
        update = {"before": learned, "tallies": tuple(measured), "penalised": tuple(penalised)}
        job = job.model_copy(update={"number": job.number + 1, **update})
        learned = run.one(job)
    return learned


def jobs_by_policy(run: Run, shards: Sequence[ShardFiles], keep: KeepPolicyJob, kept: StageFile) -> list[SelectJob]:
    """Return the jobs that select by a policy that is kept; the penalties of near-duplicates are found first.

    What a pass with this policy measured is not measured again.
    """
    common: dict[str, Any] = {"root": run.root, "settings": keep.settings, "policy": kept}
    measured_with = kept.details["best_measured_with"]
    passes = [MeasureJob(shard=shard, part="best", measured_with=measured_with, **common) for shard in shards]
    penalties = penalties_jobs(run.root, keep.settings, passes)
    common["penalties"] = tuple(job.reference() for job in penalties)
    selecting = [SelectJob(shards=[shard], **common) for shard in shards]
    is_done = [run.done(job) is not None for job in selecting]
    if penalties and not all(is_done):  # else what is read to find the penalties may have been removed
        run.all(passes)
        run.all(penalties)
    for place, measuring in enumerate(passes):
        if not is_done[place] and measuring.current() is not None:
            measured = shards[place].model_copy(update={"worth": measuring.reference()})
            selecting[place] = SelectJob(shards=[measured], **common)
    return selecting
