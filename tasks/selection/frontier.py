"""Select from every block once for each weight of quality.

A file holds the masks of all values, one column each, because every solve starts from the result of the last.
"""

from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fineweb_mask.models.schemas import ROW
from fineweb_mask.models.settings import PipelineSelectionSettings
from fineweb_mask.tasks.inference.gpu import gpu_slot
from fineweb_mask.tasks.selection.blocks import (
    Block,
    Group,
    block_key,
    block_settings,
    describe,
    write_shards,
)
from fineweb_mask.tasks.selection.contenders import TimedJob, measures_of, note_seconds, ranges_of
from fineweb_mask.tasks.workspace.job import Stage, stage_task


class FrontierJob(TimedJob):
    """Select from one group of shards for every weight of quality, and measure what was selected."""

    stage: ClassVar[Stage] = Stage("frontier", version=2, folders=("sweep/masks",))
    lambs: tuple[float, ...]

    @property
    def solved(self) -> PipelineSelectionSettings:
        """The settings with the solver that a sweep selects by."""
        return self.settings.model_copy(update={"solver": "mean_field"})

    def settings_read(self) -> object:
        """Return the settings that a sweep reads, and the weights of quality."""
        return [block_key(self.solved, "solver", "lamb"), self.lambs]


@stage_task
def sweep_lambs(job: FrontierJob) -> None:
    """Write which documents are selected at every value, with every block's measures."""
    group = Group.read(job)
    chosen = np.zeros((len(job.lambs), len(group.candidate)), dtype=bool)
    names = np.full(len(group.candidate), None, dtype=object)
    described: list[dict[str, Any]] = []
    seconds = dict.fromkeys(job.lambs, 0.0)
    for block in group.blocks():
        names[block.rows] = block.name
        described += _sweep_block(job, block, chosen, seconds)
    note_seconds(job.seconds_path, job.key, {str(lamb): spent for lamb, spent in seconds.items()})
    schema = pa.schema(
        [ROW, pa.field("block", pa.string())]
        + [pa.field(f"lamb={lamb}", pa.bool_(), nullable=False) for lamb in job.lambs]
    )

    def columns(rows: slice) -> list[pa.Array]:
        return [pa.array(names[rows], pa.string()), *(pa.array(mask[rows]) for mask in chosen)]

    write_shards(group, schema, columns, described)


def _sweep_block(
    job: FrontierJob,
    block: Block,
    chosen: NDArray[np.bool_],  # (values, n), of the whole group
    seconds: dict[float, float],
) -> list[dict[str, Any]]:
    """Sweep a block, enter the outcome into `chosen` and `seconds`, and return what the page needs."""
    from fineweb_mask.models.comparison.sweep import sweep
    from fineweb_mask.models.forward.device import choose_device

    device = choose_device(job.settings.device)
    with gpu_slot(device):
        swept = sweep(
            block.vectors,
            block.quality,
            block_settings(job.settings, block),
            job.lambs,
            device=device,
            tokens=block.tokens,
            ranges=ranges_of(job.ranges, block),
        )
    measures = measures_of(job, block)
    described = []
    for place, (lamb, selection, spent) in enumerate(swept):
        chosen[place, block.rows[selection.indices]] = True
        seconds[lamb] += spent
        about = describe(block, selection)
        described.append({**about, "lamb": lamb, "measures": measures.of(selection.indices)})
    return described
