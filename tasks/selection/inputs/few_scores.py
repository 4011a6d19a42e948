"""Score a few documents of a group of shards by a model, when a selector asks for them."""

import mmap
import tempfile
from bisect import bisect_right
from itertools import accumulate

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fineweb_mask.models.runtime.progress import track_by_size
from fineweb_mask.tasks.inference.gpu import gpu_slot
from fineweb_mask.tasks.inference.scorers import QualityModel, load_models
from fineweb_mask.tasks.source.texts import with_texts
from fineweb_mask.tasks.storage.parquet import VerifiedFile
from fineweb_mask.tasks.workspace.shard_files import ShardFiles
from fineweb_mask.tasks.workspace.workspace import Workspace

BATCH_ROWS = 1_000
"""Texts that are read at a time."""
TEXTS = pa.schema([pa.field("text", pa.string())])


class FewScores:
    """Scores any documents of a group of shards from their texts.

    The texts are first copied, uncompressed, to a file that no folder lists and that is gone with this object: no more
    of them are in memory than are being scored.

    Parameters
    ----------
    workspace, shards
        The documents.
    model
        Scores them.
    holds_gpu
        Whether the caller already has its share of the GPU.
    """

    def __init__(
        self, workspace: Workspace, shards: list[ShardFiles], model: QualityModel, *, holds_gpu: bool = False
    ) -> None:
        [self._scorer] = load_models(workspace, [model]).values()
        self._device = "cpu" if holds_gpu else str(getattr(self._scorer, "device", "cpu"))  # to wait for
        self._texts = _copied(workspace, shards)
        self._starts = [0, *accumulate(len(part) for part in self._texts)]

    def of(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the scores of some rows of the group, (k,): (k,)."""
        texts = []
        for row in rows.tolist():
            part = bisect_right(self._starts, row) - 1
            texts.append(self._texts[part][row - self._starts[part]].as_py() or "")
        with gpu_slot(self._device):
            return self._scorer.score(texts)


def _copied(workspace: Workspace, shards: list[ShardFiles]) -> list[pa.StringArray]:
    """Return the texts of shards in parts, memory-mapped from a file without a name."""
    workspace.cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=workspace.cache) as file:
        with pa.ipc.new_stream(file, TEXTS) as stream:
            for shard in shards:
                with with_texts(workspace, shard.documents) as path, VerifiedFile(path) as documents:
                    batches = documents.iter_batches(BATCH_ROWS, columns=["text"])
                    for batch in track_by_size("texts", batches, shard.rows, lambda batch: batch.num_rows):
                        stream.write_batch(batch.select(["text"]).cast(TEXTS))
        file.flush()
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    parts: list[pa.StringArray] = pa.ipc.open_stream(pa.py_buffer(mapped)).read_all()["text"].chunks
    return parts
