"""Cut a corpus of more than one block into cells of documents that are alike, and select from one cell at a time.

The steps, in the order in which they depend on each other (models/selection/cells.py):

1. `draw_sample`: a random part of each shard's documents.
2. `fit_centres`: where the cells are. Kept in `fitted/` while the corpus grows, until a refit.
3. `route`: the cell of each document of a shard.
4. `plan_selection`: how much each cell gives, and what ties the cells together. Kept, too.
5. `select_cells`: the selections from the cells of a group of shards, in a `SelectJob`.

A group is some hundred shards, so that new shards leave the masks of others alone.
"""

import math
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fineweb_mask.models.errors import DataError
from fineweb_mask.models.runtime.progress import track, track_by_size
from fineweb_mask.models.runtime.stopping import raise_if_stopped
from fineweb_mask.models.schemas import ROUTES
from fineweb_mask.models.settings import PipelineSelectionSettings
from fineweb_mask.tasks.inference.gpu import gpu_slot, torch_device
from fineweb_mask.tasks.selection.blocks import (
    Block,
    Group,
    PreparingJob,
    block_key,
    call_with,
    inputs_of,
)
from fineweb_mask.tasks.selection.inputs.shard_documents import PART_ROWS, random_keys, read_columns, read_vectors
from fineweb_mask.tasks.storage.parquet import read_table
from fineweb_mask.tasks.storage.remote.copies import default_scratch
from fineweb_mask.tasks.workspace.job import Dependencies, ProductJob, Stage, stage_task
from fineweb_mask.tasks.workspace.references import StageFile, digest
from fineweb_mask.tasks.workspace.stage_parquet import read_arrays, stage_file_writer, write_arrays
from fineweb_mask.tasks.workspace.workspace import Workspace

if TYPE_CHECKING:
    from fineweb_mask.models.selection.block import Selection
    from fineweb_mask.models.selection.cells import Plan

SAMPLE, OF_EACH_CELL, LARGEST_SAMPLE = 32_768, 64, 131_072  # documents: at least, for each cell, at most
ARRAYS = ("rates", "vectors", "costs", "cells", "standard")  # of a plan


def sample_size(documents: int, block_size: int) -> int:
    """Return how many documents of a corpus are sampled.

    >>> sample_size(200_000, 100_000), sample_size(1_000_000_000, 100_000)
    (32768, 131072)
    """
    cells = math.ceil(2 * documents / block_size)
    return min(documents, max(SAMPLE, min(OF_EACH_CELL * cells, LARGEST_SAMPLE)))


class SampleJob(PreparingJob):
    """Draw a shard's part of the sample."""

    stage: ClassVar[Stage] = Stage("sample", version=5, label="select", folders=("samples",), interim=True)
    rate: float  # share of the documents in the sample

    def depends_on(self) -> Dependencies:
        """Return the rate and the seed, and the shard's scores, vectors and duplicates."""
        return Dependencies(settings=[self.rate, self.settings.seed], inputs=inputs_of(self.shard))


@stage_task
def draw_sample(job: SampleJob) -> None:
    """Write the vectors, quality and tokens of a shard's documents in the sample: those of low random keys."""
    columns = read_columns(job.workspace, job.shard)
    keys = random_keys(job.settings.seed, job.shard.name, job.shard.rows)
    rows = (columns.candidate & (keys < job.rate)).nonzero()[0]
    drawn: dict[str, NDArray[Any]] = {}
    if parts := [vectors for _, vectors in read_vectors(job.workspace, job.shard, rows)]:
        drawn = {
            "vectors": np.concatenate(parts),
            "quality": columns.quality[rows],
            "tokens": columns.tokens[rows],
        }
    write_arrays(job.output, job.key, drawn, {})


def read_sample(workspace: Workspace, samples: Sequence[StageFile]) -> dict[str, NDArray[Any]]:
    """Return the vectors (s, d), quality and tokens (s,) of a corpus's sample.

    Raises
    ------
    DataError
        If it has no document.
    """
    found = [
        arrays
        for file in track("parts of the sample", list(samples))
        if (arrays := read_arrays(workspace.resolve(file)))
    ]
    if not found:
        raise DataError(
            "no document of the corpus's sample may be selected, all are duplicates or have no vector: check "
            "what ingest and embed kept, as `fineweb-mask status` shows it"
        )
    return {name: np.concatenate([arrays[name] for arrays in found]) for name in ("vectors", "quality", "tokens")}


class FitCentresJob(ProductJob):
    """Find the centres of a corpus's cells; `force` replaces those of an earlier run."""

    stage: ClassVar[Stage] = Stage("fit_centres", version=1, label="select")
    name: ClassVar[str] = "cell-centres"
    shard_names: ClassVar[list[str]] = []  # later jobs select from them
    settings: PipelineSelectionSettings
    models: list[str]  # what identifies the models that vectors are made with
    samples: tuple[StageFile, ...] = ()  # needed to build the output, as is the next: not to find it
    documents: int = 0  # of the corpus

    def depends_on(self) -> Dependencies:
        """Return the size of a block, the seed and the models."""
        return Dependencies(settings=[self.settings.block_size, self.settings.seed], inputs=self.models)


@stage_task
def fit_centres(job: FitCentresJob) -> None:
    """Write the centres, under a name that tells what they were found in."""
    from fineweb_mask.models.selection.cells import fit_cells

    device, settings = torch_device(job.settings.device), job.settings
    vectors = read_sample(job.workspace, job.samples)["vectors"]
    with gpu_slot(device):
        centres = fit_cells(vectors, job.documents, settings.block_size, settings.seed, device)
    _publish(job, {"centres": centres}, [file.fingerprint for file in job.samples], {"cells": len(centres)})


def _publish(job: ProductJob, arrays: dict[str, NDArray[Any]], read: object, details: dict[str, Any]) -> None:
    key = replace(job.key, inputs=digest(read))
    path = job.workspace.fitted / f"{job.name}.{key.tag}.parquet"
    write_arrays(path, key, arrays, details)
    job.publish([path], details)


class RouteJob(PreparingJob):
    """Find the cell of each document of a shard."""

    stage: ClassVar[Stage] = Stage("route", version=1, label="select", folders=("cells",))
    centres: StageFile

    def depends_on(self) -> Dependencies:
        """Return the centres, and the shard's scores, vectors and duplicates."""
        return Dependencies(settings=None, inputs=[self.centres.fingerprint, *inputs_of(self.shard)])


@stage_task
def route(job: RouteJob) -> None:
    """Write each document's cell, none for those that are not selected from; details: what is in each cell."""
    from fineweb_mask.models.selection.cells import cells_of

    device, columns = torch_device(job.settings.device), read_columns(job.workspace, job.shard)
    centres = read_arrays(job.workspace.resolve(job.centres))["centres"]
    cells, rows = np.full(job.shard.rows, -1, dtype=np.int32), columns.candidate.nonzero()[0]
    for places, vectors in read_vectors(job.workspace, job.shard, rows, PART_ROWS):
        with gpu_slot(device):
            cells[rows[places]] = cells_of(vectors, centres, device)
    batch = [pa.array(np.arange(len(cells), dtype=np.uint32)), pa.array(cells, mask=cells < 0)]
    with stage_file_writer(job.output, ROUTES, job.key) as writer:
        writer.write(pa.record_batch(batch, schema=ROUTES))
        held = np.bincount(cells[rows], minlength=len(centres))
        tokens = np.bincount(cells[rows], columns.tokens[rows], len(centres)).astype(np.int64)
        writer.details = {
            "documents": {str(cell): int(held[cell]) for cell in held.nonzero()[0]},
            "tokens": {str(cell): int(tokens[cell]) for cell in held.nonzero()[0]},
        }


def sizes_of_cells(settings: PipelineSelectionSettings, routes: Sequence[StageFile], cells: int) -> NDArray[np.int64]:
    """Return how many documents, or tokens, each cell of some shards has, (cells,)."""
    sizes = np.zeros(cells, dtype=np.int64)
    for file in routes:
        for cell, size in file.details[settings.budget_by].items():
            sizes[int(cell)] += size
    return sizes


class PlanJob(ProductJob):
    """Find what each cell gives of the budget, and what is selected beside it."""

    stage: ClassVar[Stage] = Stage("plan_selection", version=6, label="select")
    name: ClassVar[str] = "selection-plan"
    shard_names: ClassVar[list[str]] = []  # later jobs select from them
    settings: PipelineSelectionSettings
    models: list[str]  # what identifies the models and statistics that scores and vectors are made with
    centres: StageFile
    routes: tuple[StageFile, ...]  # of all shards
    samples: tuple[StageFile, ...] = ()  # needed to build the output, not to find it

    def depends_on(self) -> Dependencies:
        """Return the settings, the models and the centres; with a budget of a number, also what there is."""
        held = [file.fingerprint for file in self.routes] if self.settings.budget is not None else []
        return Dependencies(settings=block_key(self.settings), inputs=[*self.models, self.centres.fingerprint, *held])


@stage_task
def plan_selection(job: PlanJob) -> None:
    """Write the plan; details: the rate of every cell."""
    from fineweb_mask.models.selection.cells import cells_of, plan_cells

    device, sample = torch_device(job.settings.device), read_sample(job.workspace, job.samples)
    centres = read_arrays(job.workspace.resolve(job.centres))["centres"]
    sizes = sizes_of_cells(job.settings, job.routes, len(centres))
    with gpu_slot(device):
        cells = cells_of(sample["vectors"], centres, device)
        plan = plan_cells(cells=cells, settings=job.settings, sizes=sizes, device=device, **sample)
    arrays = {name: getattr(plan, name) for name in ARRAYS}
    details = {"rate": plan.rate, "total": plan.total, "ranges": dict(plan.ranges)}
    read = [[file.fingerprint for file in files] for files in (job.samples, job.routes)]
    _publish(job, arrays, read, details | {"rates": plan.rates.tolist()})


def read_plan(workspace: Workspace, file: StageFile) -> "Plan":
    """Read what `plan_selection` wrote."""
    from fineweb_mask.models.selection.cells import Plan
    from fineweb_mask.models.selection.objective import Term

    arrays, details = read_arrays(workspace.resolve(file)), file.details
    ranges = {name: Term(*term) for name, term in details["ranges"].items()}
    return Plan(details["rate"], details["total"], ranges, **arrays)


def select_cells(
    group: Group, planned: StageFile, routes: Sequence[StageFile], *, number: int, workers: int
) -> "Iterator[tuple[Block, Selection | None]]":
    """Yield the cells of a group of shards, in parts no larger than a block, and what is selected from each.

    The vectors lie by cell in a temporary file; those of the blocks that are yielded are left out.

    Parameters
    ----------
    group
        What is selected from.
    planned, routes
        What `plan_selection` and, of the group's shards, `route` wrote.
    number
        The group's, which is in the names of its cells.
    workers
        Cells that are selected from at once.
    """
    from fineweb_mask.models.selection.cells import select_from_cell

    job, settings = group.job, group.job.settings
    plan = read_plan(job.workspace, planned)
    found = [read_table(job.workspace.resolve(file))["cell"].fill_null(-1).to_numpy() for file in routes]
    cells = np.concatenate(found)
    order = np.argsort(cells, kind="stable")[np.count_nonzero(cells < 0) :]
    costs = group.tokens if settings.budget_by == "tokens" else np.ones_like(group.tokens)
    parts = list[tuple[str, int, slice, int]]()  # the name of a block, its cell, where it is in the order, its budget
    for start, stop in pairwise(np.flatnonzero(np.diff(cells[order], prepend=-1, append=-1))):
        cell, slices = int(cells[order[start]]), math.ceil((stop - start) / settings.block_size)
        name = f"cell-{cell}" + (f" of group {number}" if number else "")
        edges = np.linspace(0, stop - start, slices + 1).round().astype(int)
        spent = np.concatenate([[0], costs[order[start:stop]].cumsum()])[edges]
        budgets = np.diff((round(plan.rates[cell] * int(spent[-1])) * (spent / spent[-1])).round().astype(int))
        for part, (first, last) in enumerate(pairwise((start + edges).tolist())):
            own = f"{name}#{part}" if slices > 1 else name
            parts.append((own, cell, slice(first, last), int(budgets[part])))

    with _by_cell(group, order) as vectors, ThreadPoolExecutor(workers) as threads:

        def solved(part: tuple[str, int, slice, int]) -> "tuple[Block, Selection | None]":
            raise_if_stopped()
            name, cell, places, budget = part
            rows, selection = order[places], None
            block = Block(name, rows, np.array(vectors[places]), group.quality[rows], group.tokens[rows])
            if budget >= costs[rows].min():
                own = settings.model_copy(update={"budget": budget})
                selection = call_with(block, select_from_cell, own, plan, cell)
            return block._replace(vectors=vectors[:0]), selection

        yield from track_by_size("cells", threads.map(solved, parts), len(parts), lambda _: 1, part=(0, 1))


@contextmanager
def _by_cell(group: Group, order: NDArray[np.int64]) -> Iterator[NDArray[np.float16]]:
    """Yield the vectors of some rows of a group in another order, (n, d), which need not fit into memory."""
    places = np.empty(len(group.candidate), dtype=np.int64)
    places[order] = np.arange(len(order))
    rows, dimensions = np.sort(order), 0
    default_scratch().mkdir(parents=True, exist_ok=True)
    with TemporaryFile(prefix="vectors-", dir=default_scratch()) as file:
        for part, vectors in group.vectors(rows, PART_ROWS):
            at, dimensions = places[rows[part]], vectors.shape[1]
            ordered = np.argsort(at)
            for run in np.split(ordered, np.flatnonzero(np.diff(at[ordered]) > 1) + 1):
                file.seek(int(at[run[0]]) * dimensions * vectors.itemsize)
                file.write(vectors[run].tobytes())
        file.flush()
        shape = (len(order), dimensions)
        yield np.memmap(file, np.float16, "r", shape=shape) if len(order) else np.empty(shape, np.float16)
