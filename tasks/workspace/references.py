"""Identify what a stage wrote: the key of its inputs, a small reference to its file, and digests."""

import hashlib
import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict


class StageKey(BaseModel):
    """Everything that a stage's output depends on; equal keys mean equal files.

    Examples
    --------
    >>> key = StageKey(stage="score", version=1, settings=digest({"weight": 1.0}), inputs=digest(["a", "b"]))
    >>> key.cache_key.startswith("score/")
    True
    """

    model_config = ConfigDict(frozen=True)

    stage: str
    version: int
    settings: str  # digest of the settings that this stage reads
    inputs: str  # digest of the fingerprints of its input files

    @property
    def fingerprint(self) -> str:
        """Digest of the whole key; the next stage's key depends on it."""
        return digest(self.model_dump())

    @property
    def cache_key(self) -> str:
        """Path of the record of how long the job took, below `Workspace.cache`."""
        return f"{self.stage}/{self.fingerprint}"


class StageFile(BaseModel):
    """A small reference to a file that a stage wrote; tasks pass these to each other."""

    model_config = ConfigDict(frozen=True)

    stage: str
    name: str  # of the shard or selection group, or of the stage's only product
    path: str  # relative to the workspace, so that a workspace can be moved
    rows: int
    bytes: int
    fingerprint: str
    details: dict[str, Any] = {}  # counts for the reports; also in the footer
    seconds: float = 0.0  # time to build it; 0 if it was current
    cached: bool = False  # it was current and not built


def digest(value: object) -> str:
    """Return the first 32 hexadecimal digits of the SHA-256 of a value's canonical JSON."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file's content in hexadecimal."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
