"""Select from the prepared shards: from each block of documents, or from the whole corpus at once."""

from typing import Any, NamedTuple

from fineweb_mask.flows.pipeline.fit import Models, fit_targets
from fineweb_mask.flows.pipeline.global_selection import jobs_of_whole_corpus
from fineweb_mask.flows.pipeline.run import Files, PerShard, Run
from fineweb_mask.models.settings import PipelineSelectionSettings
from fineweb_mask.tasks.comparison.variants import reads_targets
from fineweb_mask.tasks.select import SelectJob
from fineweb_mask.tasks.selection.blocks import Groups, grouped, merged
from fineweb_mask.tasks.selection.budgets import BudgetsJob, PriceJob
from fineweb_mask.tasks.selection.inputs.selector_inputs import EarlierSelection
from fineweb_mask.tasks.workspace.job import BadShardError
from fineweb_mask.tasks.workspace.records.counts import Counts, account, why_none_is_left
from fineweb_mask.tasks.workspace.references import StageFile
from fineweb_mask.tasks.workspace.shard_files import ShardFiles

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
    run.require_all(PerShard({shard.name: shard for shard in shards}), "score and embed")
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
        run.require_all(documents, "ingest")
        raise BadShardError(f"no source file could be read: {_reasons(run)}")
    if not any(file.rows for file in documents.values()):
        reason = why_none_is_left(list(documents.values()))
        raise BadShardError(reason)


def select(run: Run, prepared: Prepared) -> Selection:
    """Select documents from every block, or from all shards by one rule."""
    settings = run.settings.selection
    if settings.scope == "global":
        jobs = jobs_of_whole_corpus(run, prepared.shards, prepared.models.identities)
    elif settings.block_budget == "price":
        jobs = _jobs_with_divided_budget(run, grouped(prepared.shards, settings), settings)
    else:
        targets = None
        if reads_targets([settings.solver]):
            targets = fit_targets(run, prepared.documents, prepared.models)
        common = {"targets": targets, "given": EarlierSelection.of(run.settings), "scorer": run.models.selecting}
        jobs = _jobs(run, grouped(prepared.shards, settings), settings, **common)
    groups = run.all(jobs)
    masks = {name: file for job in jobs for name, file in run.files_of(job).items()}
    shards = [shard.model_copy(update={"masks": masks[shard.name]}) for shard in prepared.shards]
    return Selection(shards, sorted(groups, key=lambda group: group.name))


def _jobs(run: Run, groups: Groups, settings: PipelineSelectionSettings, **common: Any) -> list[SelectJob]:  # noqa: ANN401
    return [SelectJob(root=run.root, shards=group, settings=settings, **common) for group in groups]


def _jobs_with_divided_budget(run: Run, groups: Groups, settings: PipelineSelectionSettings) -> list[SelectJob]:
    """Divide one budget among all blocks at one price; one block has the whole budget."""
    prices = [PriceJob(root=run.root, shards=group, settings=settings) for group in groups]
    if sum(job.slices for job in prices) < 2:
        return _jobs(run, groups, settings)
    budgets = BudgetsJob(root=run.root, settings=settings, prices=[job.reference() for job in prices])
    selecting = _jobs(run, groups, settings, budgets=budgets.reference())
    if any(run.done(job) is None for job in selecting):  # else the budgets may have been removed
        run.all(prices)
        run.one(budgets)
    return selecting


def _reasons(run: Run) -> str:
    bad = list(run.quarantined.values())
    return "; ".join(bad[:LISTED]) + (f"; and {len(bad) - LISTED:,} more" if len(bad) > LISTED else "")
