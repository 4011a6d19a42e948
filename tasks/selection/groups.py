"""Select from each group of documents, by the values of a column, by itself, with its own share of the budget.

Where the shares are not those of the corpus, `SharesJob` counts the documents, or tokens, of all groups, and says which
share of each is selected (models/selection/shares.py). With another shard all are counted again, which takes little
time beside selecting from every block again, which follows.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fineweb_mask.models.runtime.progress import track
from fineweb_mask.models.selection.shares import GroupShare, group_shares
from fineweb_mask.models.settings import PipelineSelectionSettings
from fineweb_mask.tasks.selection.blocks import Block, inputs_of, select_block
from fineweb_mask.tasks.selection.inputs.shard_documents import read_columns, read_groups
from fineweb_mask.tasks.workspace.job import Dependencies, Stage, StageJob, stage_task
from fineweb_mask.tasks.workspace.listing import read_footer
from fineweb_mask.tasks.workspace.references import ShardFiles, StageFile
from fineweb_mask.tasks.workspace.stage_parquet import write_arrays
from fineweb_mask.tasks.workspace.workspace import Workspace

if TYPE_CHECKING:
    from fineweb_mask.models.selection.block import Selection

ROUNDING = 0.5
"""Of a document or token: what a block's first budget has in advance, so that budgets are rounded and not cut."""


class SharesJob(StageJob):
    """Divide the budget of the corpus among its groups."""

    stage: ClassVar[Stage] = Stage("group_shares", version=2, label="select", folders=("group_shares",), interim=True)
    name: ClassVar[str] = "group-shares"
    shard_names: ClassVar[list[str]] = []  # later jobs select from them
    settings: PipelineSelectionSettings
    shards: list[ShardFiles]

    def depends_on(self) -> Dependencies:
        """Return the groups, the share that is selected and its unit, and the shards' scores, vectors, duplicates."""
        groups = self.settings.groups and self.settings.groups.model_dump()
        settings = [groups, self.settings.select_ratio, self.settings.budget_by]
        return Dependencies(settings=settings, inputs=[inputs_of(shard) for shard in self.shards])


@stage_task
def divide_budget(job: SharesJob) -> None:
    """Write which share of each group is selected."""
    total = Counter[str]()
    for shard in track("shards", job.shards):
        columns = read_columns(job.workspace, shard)
        groups = read_groups(job.workspace, shard, _column(job.settings))
        total.update(sizes_of(job.settings, groups[columns.candidate], columns.tokens[columns.candidate]))
    write_arrays(job.output, job.key, {}, {"shares": shares_of(job.settings, total)})


def sizes_of(
    settings: PipelineSelectionSettings, groups: NDArray[np.object_], tokens: NDArray[np.int64]
) -> dict[str, int]:
    """Return how many documents, or tokens, each group has, for the group and the tokens of each document, (n,)."""
    names, numbers = np.unique(groups, return_inverse=True)
    weights = tokens if settings.budget_by == "tokens" else None
    return dict(zip(names.tolist(), map(int, np.bincount(numbers, weights, len(names))), strict=True))


def shares_of(settings: PipelineSelectionSettings, sizes: Mapping[str, int]) -> dict[str, GroupShare]:
    """Return which share of each group is selected, for the sizes of all groups of a corpus."""
    assert settings.groups is not None  # noqa: S101 - the caller looks
    if settings.groups.shares == "proportional":
        return dict.fromkeys(sizes, GroupShare(settings.select_ratio, settings.select_ratio))
    return group_shares(settings.groups.shares, settings.select_ratio, sizes)


def read_shares(workspace: Workspace, file: StageFile) -> dict[str, GroupShare]:
    """Read what `divide_budget` wrote."""
    found = read_footer(workspace.resolve(file))
    assert found is not None  # noqa: S101 - the file was built by a stage
    return {name: GroupShare(*share) for name, share in found.details["shares"].items()}


class GroupSelection(NamedTuple):
    """What is selected from a block, or from the documents of a group in it."""

    block: Block
    selection: "Selection | None"  # None: nothing, for it has no share, or one that holds no document
    group: str | None = None
    budget: float = 0.0  # documents or tokens, as asked


def select_groups(
    settings: PipelineSelectionSettings, block: Block, shares: Mapping[str, GroupShare] | None = None
) -> Iterator[GroupSelection]:
    """Select from a block, or from every group of it by itself; without `shares`, as if it were the whole corpus.

    What is left of one budget, such as one that holds no document, goes to the next group that has a share, unless it
    is left because near-duplicates are forbidden.
    """
    if block.groups is None:
        yield GroupSelection(block, select_block(settings, block))
        return
    names, numbers = np.unique(block.groups, return_inverse=True)
    shares = shares_of(settings, sizes_of(settings, block.groups, block.tokens)) if shares is None else shares
    places = np.split(np.argsort(numbers, kind="stable"), np.bincount(numbers).cumsum()[:-1])
    left = ROUNDING
    for name, index in zip(names.tolist(), places, strict=True):
        own = block.take(index, f"{block.name} {_column(settings)}={name}")
        costs = own.tokens if settings.budget_by == "tokens" else np.ones_like(own.tokens)
        size = int(costs.sum())
        left += shares[name].given * size
        budget = min(int(left), size) if shares[name].given else 0
        selection = None
        if budget >= costs.min():
            selection = select_block(settings.model_copy(update={"budget": budget}), own)
            left -= int(costs[selection.indices].sum())
        yield GroupSelection(own, selection, name, shares[name].asked * size)


def _column(settings: PipelineSelectionSettings) -> str:
    assert settings.groups is not None  # noqa: S101 - the caller looks
    return settings.groups.column
