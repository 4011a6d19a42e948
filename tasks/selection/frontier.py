"""Frontier: many selections of every block, one for each weight of quality, found together.

A file holds the masks of all values, one column each, for they depend on each other: every solve starts from the last.
"""

from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fineweb_mask.models.runtime.progress import track
from fineweb_mask.models.schemas import ROW
from fineweb_mask.tasks.inference.gpu import gpu_slot
from fineweb_mask.tasks.selection.blocks import (
    Block,
    BlocksJob,
    Candidates,
    block_settings,
    blocks_of,
    describe,
    read_group,
)
from fineweb_mask.tasks.selection.contenders import measures_of, note_seconds, ranges_of, with_ranges
from fineweb_mask.tasks.workspace.job import Dependencies, Stage, stage_task
from fineweb_mask.tasks.workspace.references import StageFile
from fineweb_mask.tasks.workspace.stage_parquet import stage_file_writer


class FrontierJob(BlocksJob):
    """Select from one group of shards for every weight of quality, and measure what was selected."""

    stage: ClassVar[Stage] = Stage("frontier", version=1, folders=("sweep/masks",))
    lambs: tuple[float, ...]
    ranges: StageFile | None  # of the group; None with a budget of tokens

    @property
    def seconds_path(self) -> Path:
        """The record of how long each value took."""
        return self.workspace.root / self.folder / f"{self.group}.seconds.json"

    def settings_read(self) -> object:
        """Return the settings that a sweep reads, and the weights of quality."""
        return [self.settings.model_dump(exclude={"device", "block_size", "solver", "lamb"}), self.lambs]

    def depends_on(self) -> Dependencies:
        """Return what every selection depends on, and the ranges."""
        return with_ranges(super().depends_on(), self.ranges)


@stage_task
def sweep_lambs(job: FrontierJob) -> None:
    """Write which documents are selected at every value, with every block's measures."""
    group = read_group(job)
    chosen = np.zeros((len(job.lambs), len(group.candidate)), dtype=bool)
    names = np.full(len(group.candidate), None, dtype=object)
    described: list[dict[str, Any]] = []
    seconds = dict.fromkeys(job.lambs, 0.0)
    for block in track("blocks", list(blocks_of(job, group)), part=(0, 1)):
        names[block.rows] = block.name
        described += _sweep_block(job, block, group, chosen, seconds)
    note_seconds(job.seconds_path, job.key, {str(lamb): spent for lamb, spent in seconds.items()})
    schema = pa.schema(
        [ROW, pa.field("block", pa.string())]
        + [pa.field(f"lamb={lamb}", pa.bool_(), nullable=False) for lamb in job.lambs]
    )
    edges = accumulate((shard.rows for shard in job.shards), initial=0)
    for shard, (start, stop) in zip(job.shards, pairwise(edges), strict=True):
        columns = [pa.array(np.arange(stop - start, dtype=np.uint32)), pa.array(names[start:stop], pa.string())]
        columns += [pa.array(mask[start:stop]) for mask in chosen]
        with stage_file_writer(job.workspace.shard_path(job.folder, shard.name), schema, job.key) as writer:
            writer.write(pa.record_batch(columns, schema=schema))
            writer.details = {"blocks": described, "excluded": group.excluded}


def _sweep_block(
    job: FrontierJob,
    block: Block,
    group: Candidates,
    chosen: NDArray[np.bool_],  # (values, n), of the whole group
    seconds: dict[float, float],
) -> list[dict[str, Any]]:
    """Sweep a block, enter the outcome into `chosen` and `seconds`, and return what the page needs."""
    from fineweb_mask.models.forward.device import choose_device
    from fineweb_mask.models.selection.sweep import sweep

    device = choose_device(job.settings.device)
    with gpu_slot(device):
        swept = sweep(
            group.vectors[block.rows],
            group.quality[block.rows],
            block_settings(job.settings, block),
            job.lambs,
            device=device,
            tokens=group.tokens[block.rows],
            ranges=ranges_of(job.ranges, block),
        )
    measures = measures_of(job, block, group)
    described = []
    for place, (lamb, selection, spent) in enumerate(swept):
        chosen[place, block.rows[selection.indices]] = True
        seconds[lamb] += spent
        about = describe(block, group, selection)
        described.append({**about, "lamb": lamb, "measures": measures.of(selection.indices)})
    return described
