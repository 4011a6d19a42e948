"""Select documents for quality and diversity together, and write the masks of a group of shards.

A job covers whole shards, so that every shard's mask is written once, and gives each block its own seed, derived from
the block's name: the choice does not depend on the order of work.
"""

from typing import Any, ClassVar

import numpy as np

from fineweb_mask.models.runtime.threads import same_threads
from fineweb_mask.tasks.selection.blocks import BlocksJob, Group, Masks, block_key
from fineweb_mask.tasks.selection.groups import read_shares, select_groups
from fineweb_mask.tasks.workspace.job import Dependencies, Stage, stage_task
from fineweb_mask.tasks.workspace.listing import read_footer
from fineweb_mask.tasks.workspace.references import StageFile
from fineweb_mask.tasks.workspace.stage_parquet import read_arrays


class SelectJob(BlocksJob):
    """Select from one group of shards, or gather what was selected from its cells."""

    shares: StageFile | None = None  # of all groups of documents, where they are not those of the corpus
    cells: tuple[StageFile, ...] | None = None  # what `select_cell` wrote; None: blocks are cut by the documents' order

    stage: ClassVar[Stage] = Stage(
        "select",
        version=11,
        folders=("masks",),
        documents=lambda file: sum(block["documents"] for block in file.details["blocks"]),
        counts=("eligible", "selected"),
    )

    @property
    def uses_gpu(self) -> bool:
        """Whether a GPU makes the job faster."""
        return self.settings.device != "cpu" and self.cells is None

    def depends_on(self) -> Dependencies:
        """Return what a selection from blocks depends on, with the groups' shares, or the cells."""
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
    group = Group.read(job)
    masks, described = Masks(group), list[dict[str, Any]]()
    if job.cells is not None:
        described += _enter_cells(job, job.cells, masks)
    else:
        groups = job.settings.groups
        shares = None if job.shares is None else read_shares(job.workspace, job.shares)
        for block in group.blocks(groups.column if groups is not None else None):
            for found in select_groups(job.settings, block, shares):
                masks.enter(found.block, found.selection)
                described.append(found.described())
    masks.write(described)


def _enter_cells(job: SelectJob, cells: tuple[StageFile, ...], masks: Masks) -> list[dict[str, Any]]:
    """Enter what was selected from the cells of a group, and return what the reports need of its blocks."""
    described = []
    starts = dict(zip(job.shard_names, np.cumsum([0, *(shard.rows for shard in job.shards)]), strict=False))
    for file in cells:
        path = job.workspace.resolve(file)
        found, footer = read_arrays(path), read_footer(path)
        assert footer is not None  # noqa: S101 - the file was built by a stage
        of_shard = np.array([starts[name] for name in footer.details["shards"]])
        rows = of_shard[found["shard"]] + found["rows"]
        for number, block in enumerate(footer.details["blocks"]):
            own = found["part"] == number
            masks.enter_rows(rows[own], found["selected"][own], found["inclusion"][own], block["name"])
            described.append(block)
    return described
