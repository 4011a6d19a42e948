"""Select documents of each block for quality and diversity together, and write the masks.

A job covers whole shards, so that every shard's mask is written once, and gives each block its own seed, derived from
the block's name: the choice does not depend on the order of work.
"""

from typing import ClassVar

from fineweb_mask.tasks.selection.blocks import NOT_READ, BlocksJob, Group, Masks, describe, select_block
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

    @property
    def uses_gpu(self) -> bool:
        """Whether a GPU makes the job faster."""
        return self.settings.device != "cpu"

    def settings_read(self) -> object:
        """Return all settings but the device and how blocks are cut."""
        return self.settings.model_dump(exclude=NOT_READ)


@stage_task
def select(job: SelectJob) -> None:
    """Write the masks of a group of shards: who is selected, each document's inclusion, its block."""
    group = Group.read(job)
    masks, described = Masks(group), []
    for block in group.blocks():
        selection = select_block(job.settings, block)
        masks.enter(block, selection)
        described.append(describe(block, selection))
    masks.write(described)
