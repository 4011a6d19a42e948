"""Frontier: many selections of every block, one for each weight of quality, found together.

A file holds the masks of all values, one column each, for they depend on each other: every solve starts from the last.
"""

from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from fineweb_mask.models.runtime.progress import track
from fineweb_mask.models.schemas import ROW
from fineweb_mask.models.settings import PipelineSelectionSettings
from fineweb_mask.tasks.inference.gpu import gpu_slot
from fineweb_mask.tasks.selection.blocks import (
    Block,
    Candidates,
    GroupJob,
    SelectionShard,
    block_settings,
    blocks_of,
    describe,
    group_key,
    group_name,
    read_group,
    slices_of,
)
from fineweb_mask.tasks.selection.contenders import measures_of, note_seconds, ranges_of
from fineweb_mask.tasks.workspace.job import build_once, stage_task
from fineweb_mask.tasks.workspace.stage_parquet import stage_file_writer
from fineweb_mask.tasks.workspace.workspace import StageFile, Workspace, digest

VERSION = 1


class FrontierJob(GroupJob):
    """Select from one group of shards for every weight of quality, and measure what was selected."""

    lambs: tuple[float, ...]
    scale: StageFile | None

    @property
    def folder(self) -> str:
        """The folder of the masks."""
        return "sweep/masks"

    @property
    def seconds_path(self) -> Path:
        """Where it is noted how long each value took."""
        return self.workspace.root / self.folder / f"{self.group}.seconds.json"


def plan(
    workspace: Workspace,
    group: list[SelectionShard],
    settings: PipelineSelectionSettings,
    lambs: tuple[float, ...],
    scale: StageFile | None,
) -> FrontierJob:
    """Return the job that sweeps one group of shards; `scale` holds the group's ranges."""
    reads = settings.model_dump(exclude={"device", "block_size", "solver", "lamb"})
    key = group_key("frontier", VERSION, group, settings, [reads, lambs])
    return FrontierJob(
        root=str(workspace.root),
        name=group_name(group),
        key=key.model_copy(update={"inputs": digest([key.inputs, None if scale is None else scale.fingerprint])}),
        shards=group,
        slices=slices_of(group, settings),
        settings=settings,
        lambs=lambs,
        scale=scale,
    )


def frontier(job: FrontierJob) -> StageFile:
    """Write who is selected at every value, with every block's measures."""
    return build_once(job, lambda: _build(job))


def _build(job: FrontierJob) -> None:
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
    chosen: np.ndarray,  # (values, n) bool, of the whole group
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
            ranges=ranges_of(job.scale, block),
        )
    measures = measures_of(job, block, group)
    described = []
    for place, (lamb, selection, spent) in enumerate(swept):
        chosen[place, block.rows[selection.indices]] = True
        seconds[lamb] += spent
        about = describe(block, group, selection)
        described.append({**about, "lamb": lamb, "measures": measures.of(selection.indices)})
    return described


frontier_task = stage_task(frontier)
