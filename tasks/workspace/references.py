"""Identify what a stage wrote: the key of its inputs, small references to its files and to a shard's, and digests."""

import hashlib
import json
import re
from collections.abc import Mapping
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict

STAGE_FILE = re.compile(r"(.*)[.]([0-9a-f]{16})[.]parquet")


class Frozen(BaseModel):
    """A model whose fields do not change, so that what is computed of them is kept."""

    model_config = ConfigDict(frozen=True)

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Return a copy with other fields, of which everything is computed anew."""
        copied = super().model_copy(update=update, deep=deep)
        for computed in copied.__dict__.keys() - type(self).model_fields.keys():
            del copied.__dict__[computed]
        return copied


class StageKey(Frozen):
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
        return digest(self.model_dump())

    @property
    def tag(self) -> str:
        """First half of the fingerprint, 16 hexadecimal digits: the part of a file's name that tells its key."""
        return self.fingerprint[:16]


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

    @classmethod
    def current(
        cls, key: StageKey, name: str, path: str, rows: int, size: int, details: dict[str, Any], content: str = ""
    ) -> Self:
        """Return the reference to a file of this key that was found; `content` is its digest, if it has one."""
        return cls(
            stage=key.stage,
            name=name,
            path=path,
            rows=rows,
            bytes=size,
            fingerprint=content or key.fingerprint,
            details=details,
            cached=True,
        )


NO_FILE = StageFile(stage="", name="", path="", rows=0, bytes=0, fingerprint="")
"""Stands for a stage's file that a shard does not have; its `path` is empty."""

NEAR, SAME_URL, EXCLUDED = COUNTED = ("near_duplicate", "same_url", "excluded")
"""Why a near-duplicate, a page of a URL that is kept, or what `ingest.exclude` names is dropped, and their details."""


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


def content_key(content: str) -> StageKey:
    """Return the key of a file that is known by a digest of what is in it, and not by what it was made from."""
    return StageKey(stage="content", version=1, settings=digest(None), inputs=content)


def stage_file_name(shard: str, key: StageKey) -> str:
    """Return the path of a shard's file below its folder."""
    return f"{shard}.{key.tag}.parquet"


def shard_and_tag(name: str) -> tuple[str, str] | None:
    """Return the shard and the tag in a stage file's path below its folder; None if it has none.

    >>> shard_and_tag("en/000.e8a5ad5d69a0cd52.parquet")
    ('en/000', 'e8a5ad5d69a0cd52')
    """
    found = STAGE_FILE.fullmatch(name)
    return None if found is None else (found[1], found[2])


def digest(value: object) -> str:
    """Return the first 32 hexadecimal digits of the SHA-256 of a value's JSON, in which files are fingerprints."""
    default = attrgetter("fingerprint")
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, default=default)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file's content in hexadecimal."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
