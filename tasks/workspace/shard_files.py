"""Refer to the files of one shard: its documents, and what each stage made of them."""

from pydantic import BaseModel, ConfigDict

from fineweb_mask.tasks.workspace.references import StageFile

NO_FILE = StageFile(stage="", name="", path="", rows=0, bytes=0, fingerprint="")
"""In place of a stage's file that a shard does not have; its `path` is empty."""


class ShardFiles(BaseModel):
    """The files of a shard, as far as the stages have come; a stage without one has `NO_FILE`."""

    model_config = ConfigDict(frozen=True)

    documents: StageFile
    scores: StageFile = NO_FILE
    embeddings: StageFile = NO_FILE
    duplicates: StageFile = NO_FILE
    masks: StageFile = NO_FILE

    @property
    def name(self) -> str:
        """Name of the shard."""
        return self.documents.name

    @property
    def rows(self) -> int:
        """Number of documents."""
        return self.documents.rows
