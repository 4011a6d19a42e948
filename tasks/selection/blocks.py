"""Group shards, cut a group into blocks, read one block at a time, select from it, and write masks.

A group is what shards are selected from together: neighbours in the order of the names, no larger than a block, or one
larger shard. A block is what is selected from at one time. A group of one block is that block; a larger one, which is
one shard, is cut into even slices of documents one after the other. Blocks of documents that are alike are cut from
larger groups (cells.py).
"""

import math
import threading
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fineweb_mask.models.runtime.progress import track
from fineweb_mask.models.runtime.threads import THREADS
from fineweb_mask.models.schemas import MASKS
from fineweb_mask.models.settings import PipelineSelectionSettings
from fineweb_mask.models.settings.selectors.registry import SELECTORS
from fineweb_mask.tasks.inference.gpu import gpu_slot, torch_device
from fineweb_mask.tasks.processes.workers import cores
from fineweb_mask.tasks.selection.inputs.selector_inputs import read_inputs
from fineweb_mask.tasks.selection.inputs.shard_documents import (
    read_columns,
    read_groups,
    read_vectors,
)
from fineweb_mask.tasks.workspace.job import Dependencies, StageJob
from fineweb_mask.tasks.workspace.references import ShardFiles, StageFile, digest
from fineweb_mask.tasks.workspace.stage_parquet import stage_file_writer

if TYPE_CHECKING:
    from fineweb_mask.models.selection.block import Selection
    from fineweb_mask.models.selection.inputs import SelectorInputs
    from fineweb_mask.models.selection.objective import Ranges

Groups = list[list[ShardFiles]]
Solved = TypeVar("Solved")

CPU_SLOTS = threading.Semaphore(max(1, 2 * cores() // THREADS))
"""For blocks that the CPU selects from: two on two cores took 1.2 times as long as one after the other."""
PROOF = ("objective", "random_objective", "upper_bound", "gap")
"""Of a selection, what is told of its block."""
NOT_READ = {"device", "block_size", "blocks", "groups"}
"""Settings on which the selection from a block does not depend."""


def block_key(settings: PipelineSelectionSettings, *left_out: str) -> dict[str, Any]:
    """Return the settings that the selection from a block depends on, `left_out` and others' options aside."""
    return settings.model_dump(exclude=NOT_READ | settings.not_used | set(left_out))


def grouped(shards: Sequence[ShardFiles], documents: int, most: int | None = None) -> Groups:
    """Return the groups of shards that are selected from together, in the order of their names.

    A group has at most so many documents, and `most` shards, or is one shard.
    """
    groups: Groups = []
    for shard in sorted(shards, key=lambda shard: shard.name):
        last = groups[-1] if groups else []
        if last and len(last) != most and sum(one.rows for one in last) + shard.rows <= documents:
            last.append(shard)
        else:
            groups.append([shard])
    return groups


def inputs_of(shard: ShardFiles) -> list[str]:
    """Return what identifies all that a selection reads of a shard."""
    return [shard.name, shard.scores.fingerprint, shard.embeddings.fingerprint, shard.duplicates.fingerprint]


class PreparingJob(StageJob):
    """A job that reads a shard before its group is selected from."""

    settings: PipelineSelectionSettings
    shard: ShardFiles
    shard_names: ClassVar[list[str]] = []  # a later job selects from them

    @property
    def name(self) -> str:
        """The shard's name."""
        return self.shard.name


class BlocksJob(StageJob):
    """Select from a group of shards: several as one block, or one shard in one or more slices."""

    shards: list[ShardFiles]
    settings: PipelineSelectionSettings
    targets: StageFile | None = None  # for solvers that read target examples, or texts

    @property
    def solved(self) -> PipelineSelectionSettings:
        """The settings with the solver that selects."""
        return self.settings

    @property
    def name(self) -> str:
        """The name of the group of shards."""
        return self.group

    @property
    def group(self) -> str:
        """The name of the group of shards, by its first and its last one."""
        first, last = self.shards[0].name, self.shards[-1].name
        return first if first == last else f"{first}..{last}"

    @property
    def slices(self) -> int:
        """The number of blocks that the group is cut into."""
        return max(1, math.ceil(sum(shard.rows for shard in self.shards) / self.settings.block_size))

    @property
    def file_names(self) -> list[str]:
        """The names of the shards."""
        return [shard.name for shard in self.shards]

    @abstractmethod
    def settings_read(self) -> object:
        """Return the settings that the output depends on."""

    def depends_on(self) -> Dependencies:
        """Return the settings that are read, the number of slices, and the shards' scores, vectors and duplicates."""
        files = [inputs_of(shard) for shard in self.shards]
        read = SELECTORS[self.solved.solver].reads
        targets = [self.targets.fingerprint] if self.targets is not None and read & {"targets", "text"} else []
        return Dependencies(settings=[digest(self.settings_read()), self.slices], inputs=[*files, *targets])


class Block(NamedTuple):
    """What is selected from at one time."""

    name: str
    rows: NDArray[np.int64]  # of the group, ascending
    vectors: NDArray[np.float16]  # of these rows, as are the next two
    quality: NDArray[np.float32]
    tokens: NDArray[np.int64]
    groups: NDArray[np.object_] | None = None  # (rows,), with budgets by group
    also: "SelectorInputs | None" = None

    def take(self, index: NDArray[np.int64], name: str) -> Self:
        """Return some of the documents, by position (b,), as a block of another name."""
        columns = ("rows", "vectors", "quality", "tokens")
        own = {column: getattr(self, column)[index] for column in columns}
        also = None if self.also is None else self.also.take(index)
        return self._replace(name=name, groups=None, also=also, **own)


class Chosen(NamedTuple):
    """What was selected from a block."""

    told: dict[str, Any]  # what the reports need of it
    rows: NDArray[np.int64]
    selected: NDArray[np.bool_]  # (rows,), as is the next
    inclusion: NDArray[np.float32]


def chosen_of(block: Block, selection: "Selection | None", **more: object) -> Chosen:
    """Return what was selected from a block, None for nothing, with `more` that the reports need of it."""
    selected, inclusion = np.zeros(len(block.rows), dtype=bool), np.zeros(len(block.rows), dtype=np.float32)
    if selection is not None:
        selected[selection.indices], inclusion = True, selection.inclusion
    told = {
        "name": block.name,
        "documents": len(block.rows),
        "selected": int(selected.sum()),
        "tokens": int(block.tokens.sum()),
        "tokens_selected": int(block.tokens[selected].sum()),
        **{name: getattr(selection, name, None) for name in PROOF},
        "terms": {} if selection is None else selection.terms,
    }
    return Chosen(told | more, block.rows, selected, inclusion)


class Group:
    """A group of shards, one after the other: what a selection reads of them, the vectors aside, and their masks.

    Attributes
    ----------
    quality, candidate, tokens
        As `ShardColumns` has them, of all shards.
    """

    def __init__(self, job: BlocksJob) -> None:
        """Read a job's group."""
        shards = [read_columns(job.workspace, shard) for shard in job.shards]
        self.job = job
        self.quality, self.candidate, self.tokens = (
            np.concatenate([getattr(shard, name) for shard in shards]) for name in ("quality", "candidate", "tokens")
        )
        self._excluded = dict(sum((Counter(shard.excluded) for shard in shards), Counter()))
        self._inputs = read_inputs(job.workspace, job.shards, job.solved, job.targets)
        self._selected = np.zeros_like(self.candidate)
        self._inclusion = np.full(len(self.candidate), np.nan, dtype=np.float32)  # where the document was in no block,
        self._names = np.full(len(self.candidate), None, dtype=object)  # and has no name
        self._blocks = list[dict[str, Any]]()

    def blocks(self, by: str | None = None) -> Iterator[Block]:
        """Yield the group's blocks, reading one at a time; one without a candidate is left out.

        `by` is the column of the documents' groups, where budgets are by group.
        """
        job, groups = self.job, None
        if by is not None:
            groups = np.concatenate([read_groups(job.workspace, shard, by) for shard in job.shards])
        edges = np.linspace(0, len(self.candidate), job.slices + 1).round().astype(int)
        for index, (start, stop) in enumerate(track("blocks", list(pairwise(edges)), part=(0, 1))):
            rows = start + self.candidate[start:stop].nonzero()[0]
            if len(rows):
                name = job.group if job.slices == 1 else f"{job.group}#{index}"
                vectors: NDArray[np.float16] = np.empty((0, 0), dtype=np.float16)
                for places, part in self.vectors(rows):
                    if not len(vectors):
                        vectors = np.empty((len(rows), part.shape[1]), dtype=part.dtype)
                    vectors[places] = part
                own = None if groups is None else groups[rows]
                yield Block(name, rows, vectors, self.quality[rows], self.tokens[rows], own, self._inputs.take(rows))

    def vectors(
        self, rows: NDArray[np.int64], at_once: int | None = None
    ) -> Iterator[tuple[slice, NDArray[np.float16]]]:
        """Yield the vectors of some rows of the group, ascending, with their places in `rows`: (b, d) each."""
        start = 0
        for shard in self.job.shards:
            first, last = np.searchsorted(rows, [start, start + shard.rows])
            for places, part in read_vectors(self.job.workspace, shard, rows[first:last] - start, at_once):
                yield slice(first + places.start, first + places.stop), part
            start += shard.rows

    def enter(self, chosen: Chosen) -> None:
        """Enter what was selected from a block, by the rows of the group."""
        self._selected[chosen.rows] = chosen.selected
        self._inclusion[chosen.rows] = chosen.inclusion
        self._names[chosen.rows] = chosen.told["name"]
        self._blocks.append(chosen.told)

    def write(self) -> None:
        """Write the masks, one file for each shard, with what the reports need of each block.

        Those that a killed run finished are written again: all files of a group are of one selection, and another
        machine need not repeat it to the last bit.
        """
        job, key, start = self.job, self.job.key, 0
        for shard in job.shards:
            own = slice(start, start + shard.rows)
            inclusion = pa.array(self._inclusion[own], mask=np.isnan(self._inclusion[own]))
            names = pa.array(self._names[own], pa.string())
            rows = pa.array(np.arange(shard.rows, dtype=np.uint32))
            batch = pa.record_batch([rows, pa.array(self._selected[own]), inclusion, names], schema=MASKS)
            path = job.workspace.shard_path(job.folder_name, shard.name, key)
            with stage_file_writer(path, MASKS, key) as writer:
                writer.write(batch)
                writer.details = {"blocks": self._blocks, "excluded": self._excluded}
            start += shard.rows


def call_with(
    block: Block,
    solve: Callable[..., Solved],
    settings: PipelineSelectionSettings,
    *given: object,
    **options: object,
) -> Solved:
    """Return what a function of documents, such as `select`, returns for those of a block; its device is waited for.

    A block has its own seed.
    """
    device = torch_device(settings.device)
    own = settings.model_copy(update={"seed": int(digest([settings.seed, block.name])[:8], 16)})
    with gpu_slot(device), CPU_SLOTS if device.type == "cpu" else nullcontext():
        return solve(block.vectors, block.quality, own, *given, device=device, tokens=block.tokens, **options)


def select_block(settings: PipelineSelectionSettings, block: Block, ranges: "Ranges | None" = None) -> "Selection":
    """Select from a block, with its own ranges or those of several; the indices are positions in the block's rows."""
    from fineweb_mask.models.selection.selector import select as select_documents

    return call_with(block, select_documents, settings, also=block.also, ranges=ranges)
