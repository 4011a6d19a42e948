"""Select documents for quality and diversity together, and write the masks of a group of shards.

A job covers whole shards, so that every shard's mask is written once, and gives each block its own seed, derived from
the block's name: the choice does not depend on the order of work.
"""

from typing import ClassVar

import numpy as np

from fineweb_mask.models.runtime.threads import same_threads
from fineweb_mask.tasks.selection.blocks import BlocksJob, Group, block_key, chosen_of
from fineweb_mask.tasks.selection.cells import read_cell
from fineweb_mask.tasks.selection.groups import read_shares, select_groups
from fineweb_mask.tasks.workspace.job import Dependencies, Stage, stage_task
from fineweb_mask.tasks.workspace.references import StageFile


class SelectJob(BlocksJob):
    """Select from one group of shards: from blocks by order, or from cells of documents that are alike."""

    shares: StageFile | None = None  # of all groups of documents, where they are not those of the corpus
    cells: tuple[StageFile, ...] | None = None  # selections from the cells; None: blocks follow the documents' order

    stage: ClassVar[Stage] = Stage(
        "select",
        version=13,
        folders=("masks",),
        documents=lambda file: sum(block["documents"] for block in file.details["blocks"]),
        counts=("eligible", "selected"),
    )

    @property
    def uses_gpu(self) -> bool:
        """Whether a GPU makes the job faster."""
        return self.settings.device != "cpu" and self.cells is None

    def depends_on(self) -> Dependencies:
        """Return what a selection from blocks depends on, with the groups' shares, or the selections from cells."""
        found = super().depends_on()
        if self.cells is not None:
            return Dependencies(settings=None, inputs=[found.inputs, [file.fingerprint for file in self.cells]])
        return found if self.shares is None else found._replace(inputs=[found.inputs, self.shares.fingerprint])

    def settings_read(self) -> object:
        """Return all settings but the device and how blocks are cut, and those of groups where there are any."""
        groups = self.settings.groups
        return [block_key(self.settings), *([] if groups is None else [groups.model_dump()])]


@stage_task
@same_threads()
def select(job: SelectJob) -> None:
    """Write the masks of a group of shards: who is selected, each document's inclusion, its block."""
    group, groups = Group(job), job.settings.groups
    if job.cells is not None:
        starts = np.cumsum([0, *(shard.rows for shard in job.shards)]).tolist()
        for file in job.cells:
            for chosen in read_cell(job.workspace, file, dict(zip(job.file_names, starts, strict=False))):
                group.enter(chosen)
    else:
        shares = None if job.shares is None else read_shares(job.workspace, job.shares)
        for block in group.blocks(None if groups is None else groups.column):
            for found in select_groups(job.settings, block, shares):
                own = {} if found.group is None else {"group": found.group, "budget": found.budget}
                group.enter(chosen_of(found.block, found.selection, **own))
    group.write()
