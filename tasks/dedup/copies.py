"""Tell which of several copies of a document is to be kept, and which documents are compared at all."""

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from fineweb_mask.models.dedup.minhash import hash_of
from fineweb_mask.models.settings.source import CopiesSettings
from fineweb_mask.tasks.selection.inputs.shard_documents import read_groups
from fineweb_mask.tasks.storage.parquet import read_table
from fineweb_mask.tasks.workspace.references import ShardFiles, StageFile
from fineweb_mask.tasks.workspace.stage_parquet import duplicate_rows
from fineweb_mask.tasks.workspace.workspace import Workspace

LAST = np.uint64(2**32 - 1)
OWN = np.uint64(2**63)
"""Added to the rank of the documents of this corpus."""


class Shard(BaseModel):
    """The files of a shard by which its documents are preferred to others."""

    model_config = ConfigDict(frozen=True)

    documents: StageFile
    exact: StageFile | None  # documents whose text another has, which are dropped already; None: of another corpus
    scores: StageFile | None = None  # for `copies.keep: best_score`

    def fingerprints(self, settings: CopiesSettings) -> list[str]:
        """Return what the preferences depend on, besides the documents' texts."""
        is_read = settings.keep == "longest" or settings.prefer or settings.one_for_each
        if self.exact is None:
            return []
        files = [*([self.documents] if is_read else []), *([self.scores] if self.scores else []), self.exact]
        return [file.fingerprint for file in files]


class Preferences(NamedTuple):
    """Of each of a shard's n documents."""

    rank: NDArray[np.uint64]  # (n,) the least is kept
    group: NDArray[np.uint64]  # (n,) only documents of one group are compared
    is_compared: NDArray[np.bool_]  # (n,)


def preferences(root: str, shard: Shard, settings: CopiesSettings) -> Preferences:
    """Return the preferences of a shard's documents; one that lacks a column has no value there."""
    workspace, n = Workspace(root), shard.documents.rows
    files = ShardFiles(documents=shard.documents)
    rank, group = np.zeros(n, dtype=np.uint64), np.zeros(n, dtype=np.uint64)
    if shard.exact is None:  # preferred to all that are in this corpus
        return Preferences(rank, group, np.full(n, settings.one_for_each is None))
    if settings.keep == "longest":
        lengths = read_table(workspace.resolve(shard.documents), columns=["n_chars"])["n_chars"].to_numpy()
        rank = LAST - lengths.astype(np.uint64)
    elif settings.keep == "best_score" and shard.scores is not None:
        quality = read_table(workspace.resolve(shard.scores), columns=["quality"])["quality"].to_numpy()
        bits = np.nan_to_num(quality, nan=-np.inf).view(np.uint32)
        rank = LAST - np.where(bits >> 31, ~bits, bits | np.uint32(2**31))  # in the order of the scores
    for column, best in settings.prefer.items():
        values = pa.array(read_groups(workspace, files, column), pa.string())
        places = pc.fill_null(pc.index_in(values, value_set=pa.array(best, pa.string())), len(best))
        rank = rank | (places.to_numpy().astype(np.uint64) << np.uint64(32))
    if settings.one_for_each is not None:
        found, codes = np.unique(read_groups(workspace, files, settings.one_for_each), return_inverse=True)
        group = np.fromiter(map(hash_of, found), np.uint64, len(found))[codes]
    is_compared = np.ones(n, dtype=bool)
    is_compared[duplicate_rows(workspace, shard.exact)] = False
    return Preferences(rank | OWN, group, is_compared)
