"""Cut a corpus of more than one block into cells of documents that are alike, and select from one cell at a time.

The steps, in the order in which they depend on each other (models/selection/cells.py):

1. `draw_sample`: a random part of each shard's documents.
2. `fit_centres`: where the cells are. Kept in `fitted/` while the corpus grows, until a refit.
3. `route`: the cell of each document of a shard.
4. `plan_selection`: how much each cell gives, and what ties the cells together. Kept, too.
5. `divide_shard`: a shard's vectors by cell, so that a cell is read from the places that hold it.
6. `select_cell`: the selection from one cell of a group of shards.

`SelectJob` then writes the masks of the group. A group is some hundred shards, so that no file is read by more jobs
than there are cells; new shards change only the cells that they have documents in.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fineweb_mask.models.errors import DataError
from fineweb_mask.models.runtime.progress import track
from fineweb_mask.models.schemas import ROUTES
from fineweb_mask.models.settings import PipelineSelectionSettings
from fineweb_mask.tasks.inference.gpu import gpu_slot, torch_device
from fineweb_mask.tasks.selection.blocks import (
    Block,
    Chosen,
    PreparingJob,
    block_key,
    call_with,
    chosen_of,
    inputs_of,
)
from fineweb_mask.tasks.selection.inputs.shard_documents import PART_ROWS, random_keys, read_columns, read_vectors
from fineweb_mask.tasks.storage.parquet import read_table
from fineweb_mask.tasks.workspace.job import Dependencies, ProductJob, Stage, StageJob, stage_task
from fineweb_mask.tasks.workspace.listing import read_footer
from fineweb_mask.tasks.workspace.references import StageFile, digest
from fineweb_mask.tasks.workspace.stage_parquet import read_arrays, stage_file_writer, write_arrays
from fineweb_mask.tasks.workspace.workspace import Workspace

if TYPE_CHECKING:
    from fineweb_mask.models.selection.cells import Plan

SAMPLE, OF_EACH_CELL, LARGEST_SAMPLE = 32_768, 64, 131_072  # documents: at least, for each cell, at most
COLUMNS = ("rows", "vectors", "quality", "tokens")  # of the documents of a cell, as `Block` has them
CHOSEN = ("shard", "rows", "selected", "inclusion")  # of what is selected from a part of a cell
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


class DivideJob(PreparingJob):
    """Write a shard's documents by cell."""

    stage: ClassVar[Stage] = Stage("divide_shard", version=1, label="select", folders=("divided",), interim=True)
    route: StageFile

    def depends_on(self) -> Dependencies:
        """Return the cells, and the shard's scores, vectors and duplicates."""
        return Dependencies(settings=None, inputs=[self.route.fingerprint, *inputs_of(self.shard)])


@stage_task
def divide_shard(job: DivideJob) -> None:
    """Write the rows, vectors, quality and tokens of the documents of each cell."""
    columns = read_columns(job.workspace, job.shard)
    cells = read_table(job.workspace.resolve(job.route))["cell"].fill_null(-1).to_numpy()
    rows = columns.candidate.nonzero()[0]

    def arrays() -> Iterator[tuple[str, NDArray[Any]]]:
        parts = read_vectors(job.workspace, job.shard, rows, PART_ROWS)
        for number, (places, vectors) in enumerate(parts):
            own = rows[places]
            order = np.argsort(cells[own], kind="stable")
            edges = np.flatnonzero(np.diff(cells[own][order], prepend=-1, append=-1))
            for start, stop in pairwise(edges):
                at = order[start:stop]
                part: dict[str, NDArray[Any]] = {
                    "rows": own[at],
                    "vectors": vectors[at],
                    "quality": columns.quality[own[at]],
                    "tokens": columns.tokens[own[at]],
                }
                yield from ((f"{cells[own[at[0]]]}/{number}/{name}", array) for name, array in part.items())

    write_arrays(job.output, job.key, arrays(), {})


class CellJob(StageJob):
    """Select from a cell of a group of shards, in parts no larger than a block."""

    stage: ClassVar[Stage] = Stage("select_cell", version=6, label="select", folders=("chosen",), interim=True)
    shard_names: ClassVar[list[str]] = []  # a later job selects from them
    settings: PipelineSelectionSettings
    cell: int
    group: int  # the number of the group, which is in the names of its blocks
    divided: list[StageFile]  # of the shards that have documents in the cell, in their order
    plan: StageFile
    budget: int

    @property
    def name(self) -> str:
        """The name of the block that the cell is."""
        return f"cell-{self.cell}" + (f" of group {self.group}" if self.group else "")

    @property
    def uses_gpu(self) -> bool:
        """Whether a GPU makes the job faster."""
        return self.settings.device != "cpu"

    def depends_on(self) -> Dependencies:
        """Return the settings, the cell's budget and plan, and the shards."""
        settings = [block_key(self.settings, "select_ratio"), self.name, self.budget, self.settings.block_size]
        return Dependencies(settings=settings, inputs=[file.fingerprint for file in (self.plan, *self.divided)])


@stage_task
def select_cell(job: CellJob) -> None:
    """Write what was selected from each part of a cell."""
    from fineweb_mask.models.selection.cells import select_from_cell

    plan, found = read_plan(job.workspace, job.plan), {name: list[NDArray[Any]]() for name in ("shard", *COLUMNS)}
    for number, file in enumerate(track("shards", job.divided)):
        for name, array in read_arrays(job.workspace.resolve(file), str(job.cell)).items():
            found[column := name.rpartition("/")[2]].append(array)
            if column == "rows":
                found["shard"].append(np.full(len(array), number))
    shard, rows, vectors, quality, tokens = (np.concatenate(found.pop(name)) for name in ("shard", *COLUMNS))
    slices = math.ceil(len(rows) / job.settings.block_size)
    edges = np.linspace(0, len(rows), slices + 1).round().astype(int)
    costs = tokens if job.settings.budget_by == "tokens" else np.ones_like(tokens)
    spent = np.concatenate([[0], costs.cumsum()])[edges]
    budgets = np.diff((job.budget * (spent / spent[-1])).round().astype(int)).tolist()
    arrays, blocks = dict[str, NDArray[Any]](), []
    for number, (start, stop) in enumerate(pairwise(edges)):
        own, name = slice(start, stop), f"{job.name}#{number}" if slices > 1 else job.name
        block, selection = Block(name, rows[own], vectors[own], quality[own], tokens[own]), None
        if budgets[number] >= costs[own].min():
            settings = job.settings.model_copy(update={"budget": budgets[number]})
            selection = call_with(block, select_from_cell, settings, plan, job.cell)
        chosen = chosen_of(block, selection)
        blocks.append(chosen.told)
        part = {"shard": shard[own], "rows": chosen.rows, "selected": chosen.selected, "inclusion": chosen.inclusion}
        arrays |= {f"{number}/{name}": array for name, array in part.items()}
    write_arrays(job.output, job.key, arrays, {"blocks": blocks, "shards": [file.name for file in job.divided]})


def read_cell(workspace: Workspace, file: StageFile, starts: Mapping[str, int]) -> Iterator[Chosen]:
    """Read what `select_cell` wrote, by the rows of the group, in which each shard starts at a row."""
    path = workspace.resolve(file)
    footer = read_footer(path)
    assert footer is not None  # noqa: S101 - the file was built by a stage
    first = np.array([starts[name] for name in footer.details["shards"]])
    for number, told in enumerate(footer.details["blocks"]):
        part = read_arrays(path, str(number))
        shard, rows, selected, inclusion = (part[f"{number}/{name}"] for name in CHOSEN)
        yield Chosen(told, first[shard] + rows, selected, inclusion)


def cell_jobs(
    root: str, settings: PipelineSelectionSettings, number: int, divided: Sequence[DivideJob], plan: StageFile
) -> list[CellJob]:
    """Return the jobs of the cells of a group of shards; a cell of no budget has one, too."""
    rates = plan.details["rates"]
    sizes = sizes_of_cells(settings, [job.route for job in divided], len(rates))
    held: dict[int, list[StageFile]] = {}
    for job in divided:
        for cell in job.route.details["documents"]:
            held.setdefault(int(cell), []).append(job.reference())
    common: dict[str, Any] = {"root": root, "settings": settings, "group": number, "plan": plan}
    budgets = {cell: round(rates[cell] * int(sizes[cell])) for cell in held}
    return [CellJob(cell=cell, divided=held[cell], budget=budgets[cell], **common) for cell in sorted(held)]
