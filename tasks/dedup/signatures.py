"""Sketch the texts of one shard by MinHash, to compare the bands of their signatures with those of other shards."""

import numpy as np
import pyarrow as pa

from fineweb_mask.models.dedup.minhash import band_keys
from fineweb_mask.models.runtime.progress import track_by_size
from fineweb_mask.models.schemas import SIGNATURES
from fineweb_mask.models.settings.source import MinHashSettings
from fineweb_mask.tasks.source.texts import with_texts
from fineweb_mask.tasks.storage.parquet import VerifiedFile
from fineweb_mask.tasks.workspace.references import StageFile
from fineweb_mask.tasks.workspace.workspace import Workspace

BATCH_ROWS = 1_000
GROUP_KEYS = 131_072
"""Keys in a row group: a shard of 400,000 documents has 43 of them."""


def sketched(workspace: Workspace, documents: StageFile, settings: MinHashSettings) -> pa.Table:
    """Return the key of each band of every document and the document's row, in the order of the keys.

    A document with fewer words than a shingle has none, and so no near-duplicates.

    Raises
    ------
    SettingsError
        If the package that makes signatures is not installed.
    """
    keys, rows = [np.empty(0, dtype=np.uint64)], [np.empty(0, dtype=np.uint32)]
    with with_texts(workspace, documents) as path, VerifiedFile(path) as file:
        batches = file.iter_batches(BATCH_ROWS, columns=["row", "text"])
        for batch in track_by_size("documents", batches, documents.rows, lambda batch: batch.num_rows, part=(0, 1)):
            bands = band_keys(batch["text"], settings)
            keys.append(bands.keys.ravel())
            rows.append(np.repeat(batch["row"].to_numpy()[bands.rows], bands.keys.shape[1]))
    all_keys, all_rows = np.concatenate(keys), np.concatenate(rows)
    order = np.lexsort((all_rows, all_keys))
    return pa.table([all_keys[order], all_rows[order].astype(np.uint32)], schema=SIGNATURES)
