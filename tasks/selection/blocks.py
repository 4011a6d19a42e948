"""Blocks: read the candidates of a group of shards, cut them into blocks, select from each, write masks.

A block is what is selected from at one time: several small shards, one shard, or an even slice of a large one.
"""

import math
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from fineweb_mask.models.schemas import MASKS
from fineweb_mask.models.settings import PipelineSelectionSettings
from fineweb_mask.tasks.inference.gpu import gpu_slot
from fineweb_mask.tasks.workspace.job import StageJob
from fineweb_mask.tasks.workspace.stage_parquet import current_parquet, stage_file_writer
from fineweb_mask.tasks.workspace.workspace import StageFile, StageKey, Workspace, digest

if TYPE_CHECKING:
    from fineweb_mask.models.selection import Selection
    from fineweb_mask.models.selection.ranges import Ranges


class SelectionShard(BaseModel):
    """The files of a shard that a selection reads."""

    model_config = ConfigDict(frozen=True)

    documents: StageFile
    scores: StageFile
    embeddings: StageFile
    duplicates: StageFile

    @property
    def name(self) -> str:
        """Name of the shard."""
        return self.documents.name

    @property
    def rows(self) -> int:
        """Documents in the shard."""
        return self.documents.rows


class GroupJob(StageJob):
    """Write a row-aligned file for each shard of a group: several as one block, or one in one or more slices."""

    shards: list[SelectionShard]
    slices: int
    settings: PipelineSelectionSettings

    @property
    @abstractmethod
    def folder(self) -> str:
        """The folder of the files, in the workspace."""

    @property
    def group(self) -> str:
        """The name of the group of shards."""
        return group_name(self.shards)

    def shard_files(self) -> list[StageFile] | None:
        """Return the files of the group's shards, or None if one is not current."""
        files = []
        for shard in self.shards:
            path = self.workspace.shard_path(self.folder, shard.name)
            if (file := current_parquet(self.workspace, path, shard.name, self.key)) is None:
                return None
            files.append(file)
        return files

    def current(self) -> StageFile | None:
        """Return a reference to the group's files if all are current, else None."""
        if (files := self.shard_files()) is None:
            return None
        return StageFile(
            stage=self.key.stage,
            name=self.name,
            path=self.folder,
            rows=sum(file.rows for file in files),
            bytes=sum(file.bytes for file in files),
            fingerprint=self.key.fingerprint,
            details=files[0].details,
            cached=True,
        )


def grouped(shards: list[SelectionShard], settings: PipelineSelectionSettings) -> list[list[SelectionShard]]:
    """Return the groups of shards that are selected from together, in the order of the shards' names."""
    groups: list[list[SelectionShard]] = []
    for shard in sorted(shards, key=lambda shard: shard.name):
        if not groups or sum(other.rows for other in groups[-1]) + shard.rows > settings.block_size:
            groups.append([])
        groups[-1].append(shard)
    return groups


def group_name(group: list[SelectionShard]) -> str:
    """Return the name of a group of shards."""
    first, last = group[0].name, group[-1].name
    return first if first == last else f"{first}..{last}"


def slices_of(group: list[SelectionShard], settings: PipelineSelectionSettings) -> int:
    """Return into how many blocks a group is cut."""
    return max(1, math.ceil(sum(shard.rows for shard in group) / settings.block_size))


def group_key(
    stage: str, version: int, group: list[SelectionShard], settings: PipelineSelectionSettings, reads: object
) -> StageKey:
    """Return the key of a job over a group of shards; `reads` is what of the settings it reads."""
    return StageKey(
        stage=stage,
        version=version,
        settings=digest([digest(reads), slices_of(group, settings)]),
        inputs=digest(
            [
                [
                    shard.name,
                    shard.scores.fingerprint,
                    shard.embeddings.fingerprint,
                    shard.duplicates.fingerprint,
                ]
                for shard in group
            ]
        ),
    )


class _Masks(NamedTuple):
    """The columns of the group's masks, all its shards one after the other."""

    selected: NDArray[np.bool_]  # (n,)
    inclusion: NDArray[np.float32]  # (n,), NaN where the document was in no block
    block: NDArray[np.object_]  # (n,), None where the document was in no block


def write_masks(
    job: GroupJob,
    group: "Candidates",
    selections: "list[tuple[Block, Selection]]",
    blocks: list[dict[str, Any]],
) -> None:
    """Write the masks of a group of shards, with what the reports need of each block."""
    n = len(group.candidate)
    masks = _Masks(
        selected=np.zeros(n, dtype=bool),
        inclusion=np.full(n, np.nan, dtype=np.float32),
        block=np.full(n, None, dtype=object),
    )
    for block, selection in selections:
        masks.selected[block.rows[selection.indices]] = True
        masks.inclusion[block.rows] = selection.inclusion
        masks.block[block.rows] = block.name
    start = 0
    for shard in job.shards:
        path = job.workspace.shard_path(job.folder, shard.name)
        with stage_file_writer(path, MASKS, job.key) as writer:
            writer.write(_as_batch(masks, start, start + shard.rows))
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


def read_group(job: GroupJob) -> Candidates:
    """Read what a selection reads of a group of shards."""
    return _joined([_read_shard(job.workspace, shard) for shard in job.shards])


def blocks_of(job: GroupJob, group: Candidates) -> Iterator[Block]:
    """Cut a group into its blocks; one without a candidate is left out."""
    edges = np.linspace(0, len(group.candidate), job.slices + 1).round().astype(int)
    for index, (start, stop) in enumerate(pairwise(edges)):
        rows = start + np.flatnonzero(group.candidate[start:stop])
        if len(rows):
            yield Block(job.group if job.slices == 1 else f"{job.group}#{index}", rows)


def block_settings(settings: PipelineSelectionSettings, block: Block) -> PipelineSelectionSettings:
    """Return the settings of a block, which has a seed of its own."""
    return settings.model_copy(update={"seed": int(digest([settings.seed, block.name])[:8], 16)})


def _read_shard(workspace: Workspace, shard: SelectionShard) -> Candidates:
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
    return Candidates(
        vectors=np.concatenate([shard.vectors for shard in shards]),
        quality=np.concatenate([shard.quality for shard in shards]),
        candidate=np.concatenate([shard.candidate for shard in shards]),
        tokens=np.concatenate([shard.tokens for shard in shards]),
        excluded=dict(sum((Counter(shard.excluded) for shard in shards), Counter())),
    )


def select_block(job: GroupJob, block: Block, group: Candidates, ranges: "Ranges | None" = None) -> "Selection":
    """Select from a block; the indices are places in the block's rows."""
    from fineweb_mask.models.forward.device import choose_device
    from fineweb_mask.models.selection import select as select_documents

    device = choose_device(job.settings.device)
    with gpu_slot(device):
        return select_documents(
            group.vectors[block.rows],
            group.quality[block.rows],
            block_settings(job.settings, block),
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
        "gap": selection.gap,
        "terms": selection.terms,
        "history": [[step, objective] for step, _seconds, objective in selection.history],
    }


def _as_batch(masks: _Masks, start: int, stop: int) -> pa.RecordBatch:
    inclusion = masks.inclusion[start:stop]
    return pa.record_batch(
        [
            pa.array(np.arange(stop - start, dtype=np.uint32)),
            pa.array(masks.selected[start:stop]),
            pa.array(inclusion, mask=np.isnan(inclusion)),
            pa.array(masks.block[start:stop], pa.string()),
        ],
        schema=MASKS,
    )
