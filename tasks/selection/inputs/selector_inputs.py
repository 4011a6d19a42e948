"""Read what some selectors also need: separate scores, groups, targets, importance weights."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fineweb_mask.models.runtime.progress import track_by_size
from fineweb_mask.models.settings import PipelineSelectionSettings
from fineweb_mask.models.settings.selectors.registry import SELECTORS
from fineweb_mask.tasks.inference.scorers import QualityModel
from fineweb_mask.tasks.selection.inputs.few_scores import FewScores
from fineweb_mask.tasks.selection.inputs.given import EarlierSelection
from fineweb_mask.tasks.selection.inputs.shard_documents import read_groups
from fineweb_mask.tasks.source.texts import with_texts
from fineweb_mask.tasks.storage.parquet import VerifiedFile, read_schema, read_table
from fineweb_mask.tasks.workspace.references import StageFile
from fineweb_mask.tasks.workspace.shard_files import ShardFiles
from fineweb_mask.tasks.workspace.stage_parquet import read_arrays
from fineweb_mask.tasks.workspace.workspace import Workspace

if TYPE_CHECKING:
    from fineweb_mask.models.selection import SelectorInputs

BATCH_ROWS = 1_000
"""Texts that are read at a time."""
LEAST_TOKENS = 100
"""Words and punctuation below which `dsir` selects a document last: the threshold of its published code."""


class InputColumns(NamedTuple):
    """What a selector reads of the documents of a group of shards, one after the other; only what it reads is there."""

    scores: Mapping[str, NDArray[np.float32]] = {}  # (rows,) each, by the scorer's name
    groups: NDArray[np.object_] | None = None  # (rows,)
    log_weights: NDArray[np.float32] | None = None  # (rows,), or (rows, tasks)
    task_examples: NDArray[np.int64] | None = None  # (tasks,)
    targets: Mapping[str, NDArray[Any]] = {}  # vectors and tasks
    given: tuple[NDArray[np.floating[Any]], NDArray[np.float32]] | None = None  # vectors and quality
    few_scores: FewScores | None = None

    @classmethod
    def read(
        cls,
        workspace: Workspace,
        shards: list[ShardFiles],
        settings: PipelineSelectionSettings,
        targets: StageFile | None,
        given: EarlierSelection | None = None,
        scorer: QualityModel | None = None,
    ) -> Self:
        """Read what the solver of the settings reads.

        `targets` is what `fit_targets` wrote, and `scorer` a model for the solver that scores few documents.
        """
        reads = SELECTORS[settings.solver].reads
        found = {} if targets is None else read_arrays(workspace.resolve(targets))
        scores: dict[str, NDArray[np.float32]] = {}
        if "scores" in reads:
            parts = [_read_scores(workspace, shard) for shard in shards]
            scores = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        groups = log_weights = examples = None
        if "groups" in reads and settings.group_column is not None:
            groups = np.concatenate([read_groups(workspace, shard, settings.group_column) for shard in shards])
        if "text" in reads and found:
            ratios = found["log_ratios"]
            if settings.dsir.by_task:
                ratios, examples = found["task_log_ratios"], found["task_examples"]
            log_weights = np.concatenate([_weigh_texts(workspace, shard, ratios) for shard in shards])
        vectors = {name: found[name] for name in ("vectors", "tasks")} if "targets" in reads and found else {}
        few_scores = None
        if "scorer" in reads and scorer is not None:
            from fineweb_mask.models.forward.device import choose_device

            few_scores = FewScores(workspace, shards, scorer, holds_gpu=choose_device(settings.device) != "cpu")
        held = None if given is None else given.read()
        return cls(scores, groups, log_weights, examples, vectors, held, few_scores)

    def of(self, rows: NDArray[np.int64]) -> "SelectorInputs":
        """Return those of some rows of the group."""
        from fineweb_mask.models.selection import Given, SelectorInputs, Targets

        few = self.few_scores
        return SelectorInputs(
            scores={name: column[rows] for name, column in self.scores.items()},
            groups=None if self.groups is None else self.groups[rows],
            targets=Targets(self.targets["vectors"], self.targets["tasks"]) if self.targets else None,
            log_weights=None if self.log_weights is None else self.log_weights[rows],
            task_examples=self.task_examples,
            given=None if self.given is None else Given(*self.given),
            score=None if few is None else lambda documents: few.of(rows[documents]),
        )


def _read_scores(workspace: Workspace, shard: ShardFiles) -> dict[str, NDArray[np.float32]]:
    path = workspace.resolve(shard.scores)
    names = [field.name for field in read_schema(path) if pa.types.is_floating(field.type) and field.name != "quality"]
    table = read_table(path, columns=names)
    return {name: table[name].to_numpy() for name in names}


def _weigh_texts(workspace: Workspace, shard: ShardFiles, ratios: NDArray[np.float64]) -> NDArray[np.float32]:
    from fineweb_mask.models.quality.importance import ImportanceWeights

    weights = ImportanceWeights(ratios, LEAST_TOKENS)
    with with_texts(workspace, shard.documents) as path, VerifiedFile(path) as file:
        batches = file.iter_batches(BATCH_ROWS, columns=["text"])
        found = [
            weights.of([text or "" for text in batch["text"].to_pylist()])
            for batch in track_by_size("texts", batches, shard.rows, lambda batch: batch.num_rows)
        ]
    return np.concatenate([np.empty((0, *ratios.shape[:-1]), dtype=np.float32), *found])
