"""Identify what a stage wrote: the key of its inputs, a small reference to its file, and digests."""

import hashlib
import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict


class StageKey(BaseModel):
    """Everything that a stage's output depends on; two equal keys mean equal files."""

    model_config = ConfigDict(frozen=True)

    stage: str
    version: int
    settings: str  # digest of the settings that this stage reads
    inputs: str  # digest of the fingerprints of what it reads

    @property
    def fingerprint(self) -> str:
        """A digest of the whole key: what the next stage depends on."""
        return digest(self.model_dump())

    @property
    def cache_key(self) -> str:
        """The name of this key's record in Prefect's result storage; "/" makes folders there."""
        return f"{self.stage}/{self.fingerprint}"


class StageFile(BaseModel):
    """A small reference to what a stage wrote: all that tasks hand to each other."""

    model_config = ConfigDict(frozen=True)

    stage: str
    name: str  # shard, selection group, or the stage's only product
    path: str  # relative to the workspace, which may be moved
    rows: int
    bytes: int
    fingerprint: str
    details: dict[str, Any] = {}  # counts that the reports need; also in the footer
    seconds: float = 0.0  # spent building it; 0 where it was found current
    cached: bool = False  # found current, not built


def digest(value: object) -> str:
    """Return the first 32 hexadecimal digits of the SHA-256 of a value's canonical JSON."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file's content, in hexadecimal."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
