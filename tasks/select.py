"""Select documents of each block for quality and diversity together, and write the masks.

A block is what is selected from at one time: several small shards, one shard, or an even slice of a large one.
A job covers whole shards, so that every shard's mask is written once, and gives each block its own seed, derived from
the block's name: the choice does not depend on the order of work.
"""

from typing import ClassVar

from fineweb_mask.models.runtime.progress import track
from fineweb_mask.tasks.selection.blocks import BlocksJob, blocks_of, describe, read_group, select_block, write_masks
from fineweb_mask.tasks.workspace.job import Stage, stage_task


class SelectJob(BlocksJob):
    """Select from one group of shards."""

    stage: ClassVar[Stage] = Stage(
        "select",
        version=2,
        folders=("masks",),
        run_with=("select",),
        documents=lambda file: (
            sum(block["documents"] for block in file.details["blocks"]),
            sum(block["selected"] for block in file.details["blocks"]),
        ),
        counts=("eligible", "selected"),
    )

    def settings_read(self) -> object:
        """Return all settings but the device and the size of blocks."""
        return self.settings.model_dump(exclude={"device", "block_size"})


@stage_task
def select(job: SelectJob) -> None:
    """Write the masks of a group of shards: who is selected, each document's inclusion, its block."""
    group = read_group(job)
    blocks = track("blocks", list(blocks_of(job, group)), part=(0, 1))
    selections = [(block, select_block(job.settings, block, group)) for block in blocks]
    write_masks(job, group, selections, [describe(block, group, selection) for block, selection in selections])
