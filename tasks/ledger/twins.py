"""Find which documents of a sample are equal or like one of ours, reading each of our shards once."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from fineweb_mask.models.analysis.vectors import nearest_cosines, unit_rows
from fineweb_mask.models.dedup.minhash import Sketch, band_keys, shingle_sets
from fineweb_mask.models.runtime.progress import track
from fineweb_mask.tasks.selection.inputs.shard_documents import read_columns, read_vectors
from fineweb_mask.tasks.source.texts import documents_of
from fineweb_mask.tasks.storage.parquet import read_table
from fineweb_mask.tasks.storage.remote.copies import local_copies
from fineweb_mask.tasks.workspace.references import ShardFiles, StageFile
from fineweb_mask.tasks.workspace.stage_parquet import open_parquet
from fineweb_mask.tasks.workspace.workspace import Workspace

MOST_PAIRS = 2_000
"""Documents of a shard that are compared word for word; more share a band only with boilerplate."""


def equal_to_ours(workspace: Workspace, shards: Sequence[ShardFiles], hashes: pa.Array) -> NDArray[np.bool_]:
    """Return which texts, by their hashes, are in one of our shards: (n,) bool."""
    found = [pa.array([], hashes.type)]
    for shard in track("shards", shards):
        with local_copies():
            theirs = read_table(workspace.resolve(shard.documents), columns=["content_hash"])["content_hash"]
        found.append(theirs.filter(pc.is_in(theirs, value_set=hashes)).combine_chunks().cast(hashes.type))
    return np.asarray(
        pc.is_in(hashes, value_set=pa.concat_arrays(found)).to_numpy(zero_copy_only=False), dtype=np.bool_
    )


def nearest_of_ours(
    workspace: Workspace, shards: Sequence[ShardFiles], vectors: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Return the largest cosine of each unit vector, (n, d), with one of our documents: (n,)."""
    closest = np.full(len(vectors), -1, dtype=np.float32)
    for shard in track("shards", shards):
        with local_copies():
            rows = read_columns(workspace, shard).candidate.nonzero()[0]
            for _, part in read_vectors(workspace, shard, rows):
                np.maximum(closest, nearest_cosines(vectors, unit_rows(part)), out=closest)
    return closest


def sharing_words(
    workspace: Workspace,
    shards: Sequence[ShardFiles],
    signatures: Sequence[StageFile],
    texts: pa.Array,
    sketch: Sketch,
    threshold: float,
) -> NDArray[np.bool_]:
    """Return which texts have a Jaccard similarity from a threshold on with one of ours, as ingest finds them: (n,)."""
    found, sets = np.zeros(len(texts), dtype=np.bool_), shingle_sets(texts, sketch.words)
    bands = band_keys(texts, sketch)
    keys, owners = bands.keys.ravel(), np.repeat(bands.rows, bands.keys.shape[1])
    order = np.argsort(keys, kind="stable")
    keys, owners = keys[order], owners[order]
    if not len(keys):  # no text has enough words
        return found
    for shard, file in track("shards", list(zip(shards, signatures, strict=True))):
        with local_copies():
            for row, text in _sharing(workspace, shard, file, keys):
                own = shingle_sets(pa.array([text], pa.string()), sketch.words)[0]
                same = slice(*np.searchsorted(keys, [row.min(), row.max() + np.uint64(1)]))
                among = np.unique(owners[same][np.isin(keys[same], row)])
                for place in among[~found[among]]:
                    common = len(np.intersect1d(own, sets[place], assume_unique=True))
                    found[place] = common >= threshold * (len(own) + len(sets[place]) - common)
    return found


def _sharing(
    workspace: Workspace, shard: ShardFiles, file: StageFile, keys: NDArray[np.uint64]
) -> list[tuple[NDArray[np.uint64], str]]:
    """Return the keys that a document of a shard shares, and its text, for each that shares one."""
    shared, rows = list[NDArray[np.uint64]](), list[NDArray[np.int64]]()
    with open_parquet(workspace.root / file.path) as opened:
        for group in range(opened.num_row_groups):
            table = opened.read_row_group(group, columns=["key", "row"])
            own = table["key"].to_numpy()
            hits = keys[np.searchsorted(keys, own).clip(max=len(keys) - 1)] == own
            shared.append(own[hits])
            rows.append(table["row"].to_numpy()[hits].astype(np.int64))
    key, row = np.concatenate([np.empty(0, np.uint64), *shared]), np.concatenate([np.empty(0, np.int64), *rows])
    wanted = np.unique(row)[:MOST_PAIRS]
    if not len(wanted):
        return []
    texts = documents_of(workspace, shard.documents, wanted, ["text"])["text"].to_pylist()
    return [(key[row == place], text) for place, text in zip(wanted, texts, strict=True)]
