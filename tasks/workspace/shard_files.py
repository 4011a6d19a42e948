"""Refer to the files of one shard: its documents, and what each stage made of them."""

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from fineweb_mask.tasks.storage.parquet import read_table
from fineweb_mask.tasks.workspace.references import StageFile
from fineweb_mask.tasks.workspace.workspace import Workspace

NO_FILE = StageFile(stage="", name="", path="", rows=0, bytes=0, fingerprint="")
"""Stands for a stage's file that a shard does not have; its `path` is empty."""


NEAR, SAME_URL = COUNTED = ("near_duplicate", "same_url")
"""Why a near-duplicate is dropped, or a page of a URL that is kept, and the details of a list that count them."""


class ShardFiles(BaseModel):
    """The files of a shard, as far as the stages have come; a stage without one has `NO_FILE`."""

    model_config = ConfigDict(frozen=True)

    documents: StageFile
    scores: StageFile = NO_FILE
    embeddings: StageFile = NO_FILE
    duplicates: StageFile = NO_FILE
    masks: StageFile = NO_FILE
    worth: StageFile = NO_FILE  # by the rule that selects, if a pass measured it

    @property
    def name(self) -> str:
        """Name of the shard."""
        return self.documents.name

    @property
    def rows(self) -> int:
        """Number of documents."""
        return self.documents.rows


def duplicate_rows(workspace: Workspace, duplicates: StageFile) -> NDArray[np.uint32]:
    """Return the rows of a shard that are duplicates, ascending: (n,) uint32.

    A shard without any has no file.

    Raises
    ------
    FileNotFoundError
        If it was not looked for them.
    """
    if duplicates.fingerprint and not duplicates.rows:
        return np.empty(0, dtype=np.uint32)
    return np.asarray(read_table(workspace.resolve(duplicates))["row"], dtype=np.uint32)
