"""Identify what a stage wrote: the key of its inputs, small references to its files and to a shard's, and digests."""

import hashlib
import json
import re
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), default=attrgetter("fingerprint"))
STAGE_FILE = re.compile(r".*[.][0-9a-f]{16}[.]parquet")
"""Path of a file whose name tells its key."""


@dataclass(frozen=True)
class StageKey:
    """Everything that a stage's output depends on; equal keys mean equal files.

    Examples
    --------
    >>> StageKey(stage="score", version=1, settings=digest({"weight": 1.0}), inputs=digest(["a", "b"])).tag
    'e2420cf1dada345e'
    """

    stage: str
    version: int
    settings: str  # digest of the settings that this stage reads
    inputs: str  # digest of the fingerprints of its input files

    @cached_property
    def fingerprint(self) -> str:
        """Digest of the whole key; the next stage's key depends on it."""
        parts = {"stage": self.stage, "version": self.version, "settings": self.settings, "inputs": self.inputs}
        return digest(parts)

    @property
    def tag(self) -> str:
        """First half of the fingerprint, 16 hexadecimal digits: the part of a file's name that tells its key."""
        return self.fingerprint[:16]


class StageFile(BaseModel):
    """A small reference to what a stage wrote, a file or the product of a manifest; tasks pass these to each other."""

    model_config = ConfigDict(frozen=True)

    stage: str
    name: str  # of the shard or selection group, or of the stage's only product
    path: str  # relative to the workspace, so that a workspace can be moved
    rows: int
    bytes: int
    fingerprint: str  # of the key, or of the content of a product
    details: dict[str, Any] = {}  # counts for the reports; also in the footer
    seconds: float = 0.0  # time to build it; 0 if it was current
    cached: bool = False  # it was current and not built


NO_FILE = StageFile(stage="", name="", path="", rows=0, bytes=0, fingerprint="")
"""Stands for a stage's file that a shard does not have; its `path` is empty."""

REPEATED, NEAR, SAME_URL, EXCLUDED = NOT_KEPT = ("duplicate", "near_duplicate", "same_url", "excluded")
"""Why documents are in the list of a shard: copies of a text or nearly, of a URL, and what `ingest.exclude` names."""


_NO_FILE = Field(default_factory=lambda: NO_FILE)  # pydantic copies a default that is a model, 25,000 times


class ShardFiles(BaseModel):
    """The files of a shard, as far as the stages have come; a stage without one has `NO_FILE`."""

    model_config = ConfigDict(frozen=True)

    documents: StageFile
    scores: StageFile = _NO_FILE
    embeddings: StageFile = _NO_FILE
    duplicates: StageFile = _NO_FILE
    masks: StageFile = _NO_FILE

    @property
    def name(self) -> str:
        """Name of the shard."""
        return self.documents.name

    @property
    def rows(self) -> int:
        """Number of documents."""
        return self.documents.rows


def path_of(stage_folder: str, shard: str, key: StageKey) -> str:
    """Return the path in the workspace of a shard's file of this key."""
    return f"{stage_folder}/{shard}.{key.tag}.parquet"


def digest(value: object) -> str:
    """Return the first 32 hexadecimal digits of the SHA-256 of a value's JSON, in which files are fingerprints."""
    return hashlib.sha256(ENCODER.encode(value).encode()).hexdigest()[:32]


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file's content in hexadecimal."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
