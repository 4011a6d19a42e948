"""Read the candidates of a group of shards, cut them into blocks, select from each, and write masks.

A block is what is selected from at one time: several small shards, one shard, or an even slice of a large one.
"""

import math
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from fineweb_mask.models.schemas import MASKS
from fineweb_mask.models.settings import PipelineSelectionSettings
from fineweb_mask.tasks.inference.gpu import gpu_slot
from fineweb_mask.tasks.workspace.job import Dependencies, GroupJob
from fineweb_mask.tasks.workspace.references import digest
from fineweb_mask.tasks.workspace.shard_files import ShardFiles
from fineweb_mask.tasks.workspace.stage_parquet import stage_file_writer
from fineweb_mask.tasks.workspace.workspace import Workspace

if TYPE_CHECKING:
    from fineweb_mask.models.selection import Selection
    from fineweb_mask.models.selection.ranges import Ranges


class BlocksJob(GroupJob):
    """Select from a group of shards: several as one block, or one shard in one or more slices."""

    shards: list[ShardFiles]
    settings: PipelineSelectionSettings

    @property
    def name(self) -> str:
        """The name of the group of shards."""
        return self.group

    @property
    def group(self) -> str:
        """The name of the group of shards."""
        return group_name(self.shards)

    @property
    def slices(self) -> int:
        """The number of blocks that the group is cut into."""
        return max(1, math.ceil(sum(shard.rows for shard in self.shards) / self.settings.block_size))

    @property
    def shard_names(self) -> list[str]:
        """The names of the shards."""
        return [shard.name for shard in self.shards]

    @abstractmethod
    def settings_read(self) -> object:
        """Return the settings that the output depends on."""

    def depends_on(self) -> Dependencies:
        """Return the settings that are read, the number of slices, and the shards' scores, vectors and duplicates."""
        files = [
            [shard.name, shard.scores.fingerprint, shard.embeddings.fingerprint, shard.duplicates.fingerprint]
            for shard in self.shards
        ]
        return Dependencies(settings=[digest(self.settings_read()), self.slices], inputs=files)


def grouped(shards: list[ShardFiles], settings: PipelineSelectionSettings) -> list[list[ShardFiles]]:
    """Return the groups of shards that are selected from together, in the order of the shards' names."""
    groups: list[list[ShardFiles]] = []
    for shard in sorted(shards, key=lambda shard: shard.name):
        if not groups or sum(other.rows for other in groups[-1]) + shard.rows > settings.block_size:
            groups.append([])
        groups[-1].append(shard)
    return groups


def group_name(group: list[ShardFiles]) -> str:
    """Return the name of a group of shards."""
    first, last = group[0].name, group[-1].name
    return first if first == last else f"{first}..{last}"


def write_masks(
    job: BlocksJob, group: "Candidates", selections: "list[tuple[Block, Selection]]", blocks: list[dict[str, Any]]
) -> None:
    """Write the masks of a group of shards, with what the reports need of each block."""
    n = len(group.candidate)
    selected = np.zeros(n, dtype=bool)
    inclusion = np.full(n, np.nan, dtype=np.float32)  # NaN and no name where the document was in no block
    names = np.full(n, None, dtype=object)
    for block, selection in selections:
        selected[block.rows[selection.indices]] = True
        inclusion[block.rows] = selection.inclusion
        names[block.rows] = block.name

    def columns(rows: slice) -> list[pa.Array]:
        included = pa.array(inclusion[rows], mask=np.isnan(inclusion[rows]))
        return [pa.array(selected[rows]), included, pa.array(names[rows], pa.string())]

    write_shards(job, group, MASKS, columns, blocks)


def write_shards(
    job: BlocksJob,
    group: "Candidates",
    schema: pa.Schema,
    columns: Callable[[slice], list[pa.Array]],  # after `row`, for a shard's rows in the group
    blocks: list[dict[str, Any]],
) -> None:
    """Write one file for each shard of a group, with what the reports need of each block."""
    start = 0
    for shard in job.shards:
        batch = [pa.array(np.arange(shard.rows, dtype=np.uint32)), *columns(slice(start, start + shard.rows))]
        with stage_file_writer(job.workspace.shard_path(job.folder, shard.name), schema, job.key) as writer:
            writer.write(pa.record_batch(batch, schema=schema))
            writer.details = {"blocks": blocks, "excluded": group.excluded}
        start += shard.rows


class Candidates(NamedTuple):
    """What a selection reads of a shard, or of a group of shards one after the other."""

    vectors: NDArray[np.floating[Any]]  # (rows, dimensions)
    quality: NDArray[np.float32]  # (rows,)
    candidate: NDArray[np.bool_]  # (rows,): neither a duplicate nor without a vector
    tokens: NDArray[np.int64]  # (rows,)
    excluded: dict[str, int]  # rows that are no candidates, by reason


class Block(NamedTuple):
    """What is selected from at one time."""

    name: str
    rows: NDArray[np.int64]  # of the group


def read_group(job: BlocksJob) -> Candidates:
    """Read what a selection reads of a group of shards."""
    return _joined([_read_shard(job.workspace, shard) for shard in job.shards])


def blocks_of(job: BlocksJob, group: Candidates) -> Iterator[Block]:
    """Cut a group into its blocks; one without a candidate is left out."""
    edges = np.linspace(0, len(group.candidate), job.slices + 1).round().astype(int)
    for index, (start, stop) in enumerate(pairwise(edges)):
        rows = start + np.flatnonzero(group.candidate[start:stop])
        if len(rows):
            yield Block(job.group if job.slices == 1 else f"{job.group}#{index}", rows)


def block_settings(settings: PipelineSelectionSettings, block: Block) -> PipelineSelectionSettings:
    """Return the settings of a block, which has a seed of its own."""
    return settings.model_copy(update={"seed": int(digest([settings.seed, block.name])[:8], 16)})


def _read_shard(workspace: Workspace, shard: ShardFiles) -> Candidates:
    from fineweb_mask.models.documents import token_counts
    from fineweb_mask.models.embedding.arrow import vectors_of

    vectors, has_vector = vectors_of(pq.read_table(workspace.resolve(shard.embeddings)))
    candidate = np.ones(shard.rows, dtype=bool)
    candidate[pq.read_table(workspace.resolve(shard.duplicates))["row"].to_numpy()] = False
    excluded = {"duplicate": int((~candidate).sum()), "bad_vector": int((candidate & ~has_vector).sum())}
    counts = pq.read_table(workspace.resolve(shard.documents), columns=["token_count", "n_chars"])
    return Candidates(
        vectors=vectors,
        quality=pq.read_table(workspace.resolve(shard.scores), columns=["quality"])["quality"].to_numpy(),
        candidate=candidate & has_vector,
        tokens=token_counts(counts["token_count"], counts["n_chars"]),
        excluded=excluded,
    )


def _joined(shards: list[Candidates]) -> Candidates:
    if len(shards) == 1:
        return shards[0]
    arrays = zip(*(shard[:-1] for shard in shards), strict=True)
    vectors, quality, candidate, tokens = (np.concatenate(parts) for parts in arrays)
    excluded = dict(sum((Counter(shard.excluded) for shard in shards), Counter()))
    return Candidates(vectors, quality, candidate, tokens, excluded)


def select_block(
    settings: PipelineSelectionSettings, block: Block, group: Candidates, ranges: "Ranges | None" = None
) -> "Selection":
    """Select from a block; the indices are positions in the block's rows."""
    from fineweb_mask.models.forward.device import choose_device
    from fineweb_mask.models.selection import select as select_documents

    device = choose_device(settings.device)
    with gpu_slot(device):
        return select_documents(
            group.vectors[block.rows],
            group.quality[block.rows],
            block_settings(settings, block),
            device=device,
            tokens=group.tokens[block.rows],
            ranges=ranges,
        )


def describe(block: Block, group: Candidates, selection: "Selection") -> dict[str, Any]:
    """Return what the reports need of the selection from a block."""
    return {
        "name": block.name,
        "documents": len(block.rows),
        "selected": len(selection.indices),
        "tokens": int(group.tokens[block.rows].sum()),
        "tokens_selected": int(group.tokens[block.rows[selection.indices]].sum()),
        "objective": selection.objective,
        "random_objective": selection.random_objective,
        "upper_bound": selection.upper_bound,
        "bound_assumes": selection.bound_assumes,
        "gap": selection.gap,
        "terms": selection.terms,
        "history": [[step, objective] for step, _seconds, objective in selection.history],
    }
