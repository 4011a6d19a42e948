"""Read what some selectors also need: separate scores, groups, targets, importance weights."""

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fineweb_mask.models.runtime.progress import track_by_size
from fineweb_mask.models.settings import PipelineSelectionSettings
from fineweb_mask.models.settings.selectors.registry import SELECTORS
from fineweb_mask.tasks.selection.inputs.shard_documents import read_groups
from fineweb_mask.tasks.storage.parquet import VerifiedFile, read_schema
from fineweb_mask.tasks.workspace.references import ShardFiles, StageFile
from fineweb_mask.tasks.workspace.stage_parquet import read_arrays, read_scores
from fineweb_mask.tasks.workspace.workspace import Workspace

if TYPE_CHECKING:
    from fineweb_mask.models.selection.inputs import SelectorInputs

BATCH_ROWS = 1_000
"""Texts that are read at a time."""
NOT_SCORERS = {"row", "quality"}
"""Columns of files of scores that are not a scorer's."""
LEAST_TOKENS = 100
"""Words and punctuation below which `dsir` selects a document last: the threshold of its published code."""


def read_inputs(
    workspace: Workspace,
    shards: list[ShardFiles],
    settings: PipelineSelectionSettings,
    targets: StageFile | None,
) -> "SelectorInputs":
    """Read what the solver of the settings reads of the documents of a group of shards, one after the other.

    `targets` is what `fit_targets` wrote.
    """
    from fineweb_mask.models.selection.inputs import SelectorInputs, Targets

    reads = SELECTORS[settings.solver].reads
    fitted = {} if targets is None else read_arrays(workspace.resolve(targets))
    found: dict[str, Any] = {}
    if "scores" in reads:
        names = [name for name in read_schema(workspace.resolve(shards[0].scores)).names if name not in NOT_SCORERS]
        parts = [read_scores(workspace, shard, names) for shard in shards]
        found["scores"] = {name: np.concatenate([part[name] for part in parts]) for name in names}
    if "groups" in reads and settings.group_column is not None:
        found["groups"] = np.concatenate([read_groups(workspace, shard, settings.group_column) for shard in shards])
    if "text" in reads and fitted:
        weights = [_weigh_texts(workspace, shard, fitted["log_ratios"]) for shard in shards]
        found["log_weights"] = np.concatenate(weights)
    if "targets" in reads and fitted:
        found["targets"] = Targets(fitted["vectors"], fitted["tasks"])
    return SelectorInputs(**found)


def _weigh_texts(workspace: Workspace, shard: ShardFiles, ratios: NDArray[np.float64]) -> NDArray[np.float32]:
    from fineweb_mask.models.quality.importance import NgramBuckets

    buckets, found = NgramBuckets(), [np.empty(0, dtype=np.float32)]
    with VerifiedFile(workspace.resolve(shard.documents)) as file:
        batches = file.iter_batches(BATCH_ROWS, columns=["text"])
        for batch in track_by_size("texts", batches, shard.rows, lambda batch: batch.num_rows):
            texts = [text or "" for text in batch["text"].to_pylist()]
            found.append(buckets.log_weights(texts, ratios, LEAST_TOKENS))
    return np.concatenate(found)
