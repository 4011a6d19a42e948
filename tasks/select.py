"""Select: a mask over the documents of each block, chosen for quality and diversity together.

A block is what is selected from at one time: several small shards, one shard, or an even slice of a large one.
A job covers whole shards, so that every shard's mask is written once, and gives each block its own seed, derived from
the block's name: the choice does not depend on the order of work.
"""

from fineweb_mask.models.runtime.progress import track
from fineweb_mask.models.settings import PipelineSelectionSettings
from fineweb_mask.tasks.selection.blocks import (
    GroupJob,
    SelectionShard,
    blocks_of,
    describe,
    group_key,
    group_name,
    grouped,
    read_group,
    select_block,
    slices_of,
    write_masks,
)
from fineweb_mask.tasks.workspace.job import build_once, stage_task
from fineweb_mask.tasks.workspace.workspace import StageFile, Workspace

VERSION = 2


class SelectJob(GroupJob):
    """Select from one group of shards."""

    @property
    def folder(self) -> str:
        """The folder of the masks."""
        return "masks"


def plan(workspace: Workspace, shards: list[SelectionShard], settings: PipelineSelectionSettings) -> list[SelectJob]:
    """Return one job per group of shards, in the order of the shards' names."""
    return [
        SelectJob(
            root=str(workspace.root),
            name=group_name(group),
            key=group_key("select", VERSION, group, settings, settings.model_dump(exclude={"device", "block_size"})),
            shards=group,
            slices=slices_of(group, settings),
            settings=settings,
        )
        for group in grouped(shards, settings)
    ]


def select(job: SelectJob) -> StageFile:
    """Write the masks of a group of shards: who is selected, each document's inclusion, its block."""
    return build_once(job, lambda: _build(job))


def _build(job: SelectJob) -> None:
    group = read_group(job)
    blocks = track("blocks", list(blocks_of(job, group)), part=(0, 1))
    selections = [(block, select_block(job, block, group)) for block in blocks]
    write_masks(job, group, selections, [describe(block, group, selection) for block, selection in selections])


select_task = stage_task(select)
