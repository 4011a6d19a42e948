"""Tell which of several copies of a document is to be kept, and which documents are compared at all."""

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

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

    def fingerprints(self, settings: CopiesSettings) -> list[str]:
        """Return what the preferences depend on, besides the documents' texts."""
        if self.exact is None:
            return []
        is_read = settings.keep == "longest" or settings.prefer or settings.exempt
        return [file.fingerprint for file in [*([self.documents] if is_read else []), self.exact]]


class Preferences(NamedTuple):
    """Of each of a shard's n documents."""

    rank: NDArray[np.uint64]  # (n,) the least is kept
    is_compared: NDArray[np.bool_]  # (n,)


def preferences(root: str, shard: Shard, settings: CopiesSettings) -> Preferences:
    """Return the preferences of a shard's documents; one that lacks a column has no value there."""
    workspace, n = Workspace(root), shard.documents.rows
    rank, is_compared = np.zeros(n, dtype=np.uint64), np.ones(n, dtype=bool)
    if shard.exact is None:  # preferred to all that are in this corpus
        return Preferences(rank, is_compared)
    if settings.keep == "longest":
        lengths = read_table(workspace.resolve(shard.documents), columns=["n_chars"])["n_chars"].to_numpy()
        rank = LAST - lengths.astype(np.uint64)

    def values_of(column: str) -> pa.Array:
        return pa.array(read_groups(workspace, ShardFiles(documents=shard.documents), column), pa.string())

    for column, best in settings.prefer.items():
        values = values_of(column)
        places = pc.fill_null(pc.index_in(values, value_set=pa.array(best, pa.string())), len(best))
        rank = rank | (places.to_numpy().astype(np.uint64) << np.uint64(32))
    for column, exempt in settings.exempt.items():
        is_compared &= ~pc.is_in(values_of(column), pa.array(exempt, pa.string())).to_numpy(zero_copy_only=False)
    is_compared[duplicate_rows(workspace, shard.exact)] = False
    return Preferences(rank | OWN, is_compared)
