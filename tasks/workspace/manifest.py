"""Write and read records in JSON, which are checked when they are read, and manifests, which are such records.

A manifest is the key, files and details of a product that is not Parquet files of shards: a fitted model, the dataset,
a report. Guarantees: a manifest is written after its files, so a manifest that exists means that they are complete.
"""

import json
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel

from fineweb_mask.models.names import TAGGED
from fineweb_mask.tasks.storage.atomic import atomic_write
from fineweb_mask.tasks.storage.parquet import DamagedFileError
from fineweb_mask.tasks.storage.remote.copies import ensure_local, read_text, remote_of, size_of
from fineweb_mask.tasks.workspace.references import StageFile, StageKey, digest, file_digest
from fineweb_mask.tasks.workspace.workspace import Workspace

PROVENANCE = "provenance.json"
"""The manifest of a dataset, or of its export."""

DIGESTS = 10_000
"""Files whose digest is remembered, so that a process reads a model once to compare it."""

Record = TypeVar("Record", bound=BaseModel)


def write_checked(path: Path, record: BaseModel) -> None:
    """Write a record as JSON, with a checksum of all but its `files`, which have their own."""
    content = json.loads(record.model_dump_json())
    text = json.dumps({**content, "checksum": _checksum(content)}, indent=2, ensure_ascii=False)
    with atomic_write(path) as partial:
        partial.write_text(text + "\n", encoding="utf-8")


def read_checked(path: Path, kind: type[Record]) -> Record:
    """Read a record.

    Raises
    ------
    DamagedFileError
        If it is not as it was written.
    ValidationError
        If it is of a version that had other fields.
    OSError
        If there is none, or it cannot be read.
    """
    try:
        text = read_text(path)
        content = json.loads(text)
        if content.pop("checksum") != _checksum(content):
            raise ValueError("it has another checksum than was written")  # noqa: TRY301 - as for what is no JSON
    except (ValueError, LookupError, AttributeError, TypeError) as error:
        raise DamagedFileError(str(path), f"{error}: run the recipe again") from error
    return kind.model_validate_json(text)


def _checksum(content: Mapping[str, Any]) -> str:
    return digest({name: value for name, value in content.items() if name != "files"})


class ManifestFile(BaseModel):
    """Size and hash of one file of a product."""

    bytes: int
    sha256: str


class Manifest(BaseModel):
    """The key, files and details of a product; corresponds to the footer of a stage's Parquet file."""

    key: StageKey
    files: dict[str, ManifestFile]  # by path relative to the manifest's folder
    details: dict[str, Any] = {}
    fitted_on: dict[str, str] = {}  # shard -> fingerprint of its documents

    @property
    def content(self) -> str:
        """Digest of the product's files and details; the tags in the files' names do not count."""
        return digest([{TAGGED.sub("", name): file.sha256 for name, file in self.files.items()}, self.details])


def write_manifest(
    path: Path,
    key: StageKey,
    files: Iterable[Path],
    details: Mapping[str, Any],
    fitted_on: Iterable[StageFile] = (),
    more: Mapping[str, ManifestFile] | None = None,
) -> None:
    """Write a manifest for complete files below its folder, and `more` whose size and hash are known by name.

    A model was `fitted_on` these documents.
    """
    found = {
        file.relative_to(path.parent).as_posix(): ManifestFile(bytes=file.stat().st_size, sha256=file_digest(file))
        for file in files
    } | dict(more or {})
    sources = {file.name: file.fingerprint for file in fitted_on}
    write_checked(path, Manifest(key=key, files=dict(sorted(found.items())), details=dict(details), fitted_on=sources))


def read_manifest(path: Path) -> Manifest | None:
    """Return a manifest, or None if it is missing or damaged; its files are not checked.

    Raises
    ------
    OSError
        If it cannot be read.
    """
    try:
        return read_checked(path, Manifest)
    except (FileNotFoundError, NotADirectoryError, DamagedFileError, ValueError):
        return None


def is_product(folder: Path, stage: str) -> bool:
    """Return whether a folder is a dataset or an export: what a stage wrote, with its manifest."""
    manifest = read_manifest(folder / PROVENANCE)
    return manifest is not None and manifest.key.stage == stage


def is_whole(path: Path, manifest: Manifest, *, by_size: bool = False) -> bool:
    """Return whether every file in the manifest at `path` is as it was written.

    Files are compared `by_size` alone, or as they are read, which downloads those at a URL.
    """
    remote = remote_of(path)
    sizes = {} if remote is None else remote.sizes(remote.name_of(path.parent))
    for name, file in manifest.files.items():
        target = path.parent / name
        if (size_of(target) if remote is None else sizes.get(remote.name_of(target))) != file.bytes:
            return False
        if not by_size:
            here = ensure_local(target)
            if _digest_once(here, file.bytes, here.stat().st_mtime_ns) != file.sha256:
                return False
    return True


@lru_cache(maxsize=DIGESTS)
def _digest_once(path: Path, size: int, mtime_ns: int) -> str:  # noqa: ARG001
    return file_digest(path)


def manifest_reference(workspace: Workspace, path: Path, name: str, manifest: Manifest) -> StageFile:
    """Return a reference to the product of a manifest; its fingerprint is the digest of its content."""
    return StageFile(
        stage=manifest.key.stage,
        name=name,
        path=workspace.relative(path),
        rows=int(manifest.details.get("rows", 0)),
        bytes=sum(file.bytes for file in manifest.files.values()),
        fingerprint=manifest.content,
        details=manifest.details,
        cached=True,
    )
