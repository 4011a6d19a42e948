"""Write and read manifests: the key, files and details of a product that is not one Parquet file.

Such products are fitted models, the dataset and the reports. Guarantees: a manifest is written after its files, so a
manifest that exists means that they are complete.
"""

import json
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from fineweb_mask.models.names import TAGGED
from fineweb_mask.tasks.storage.atomic import atomic_write
from fineweb_mask.tasks.storage.remote.copies import ensure_local, read_text, remote_of, size_of
from fineweb_mask.tasks.storage.remote.errors import RemoteError
from fineweb_mask.tasks.workspace.references import StageFile, StageKey, digest, file_digest
from fineweb_mask.tasks.workspace.workspace import Workspace

PROVENANCE = "provenance.json"
"""The manifest of a dataset, or of its export."""

DIGESTS = 10_000
"""Files whose digest is remembered, so that a process reads a model once to compare it."""


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
    checksum: str = ""  # of all but the files, which have their own

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
    }
    found.update(more or {})
    manifest = Manifest(
        key=key,
        files={name: found[name] for name in sorted(found)},
        details=dict(details),
        fitted_on={file.name: file.fingerprint for file in fitted_on},
    )
    whole = manifest.model_copy(update={"checksum": _checksum(manifest.model_dump_json())})
    with atomic_write(path) as partial:
        partial.write_text(whole.model_dump_json(indent=2) + "\n")


def _checksum(text: str) -> str:
    content = json.loads(text)
    return digest([content.get(name) for name in ("key", "details", "fitted_on")])


def read_manifest(path: Path) -> Manifest | None:
    """Return a manifest, or None if it is missing, unreadable or damaged; its files are not checked.

    Raises
    ------
    RemoteError
        If it is at a URL that cannot be read.
    """
    try:
        text = read_text(path)
        manifest = Manifest.model_validate_json(text)
    except RemoteError:
        raise
    except (OSError, ValueError):
        return None
    return manifest if manifest.checksum == _checksum(text) else None


def is_product(folder: Path, stage: str) -> bool:
    """Return whether a folder is a dataset or an export: what a stage wrote, with its manifest."""
    manifest = read_manifest(folder / PROVENANCE)
    return manifest is not None and manifest.key.stage == stage


def is_whole(path: Path, manifest: Manifest, *, download: bool = False, by_size: bool = False) -> bool:
    """Return whether every file in the manifest at `path` is as it was written.

    Parameters
    ----------
    path, manifest
        Where the manifest is, and what is in it.
    download
        Whether files at a URL are downloaded; otherwise they are compared by size alone.
    by_size
        Whether local files are compared by size alone.
    """
    remote = remote_of(path)
    sizes = {} if remote is None else remote.sizes(remote.name_of(path.parent))
    for name, file in manifest.files.items():
        target = path.parent / name
        if (size_of(target) if remote is None else sizes.get(remote.name_of(target))) != file.bytes:
            return False
        if not by_size if remote is None else download:
            here = ensure_local(target)
            if _digest_once(here, file.bytes, here.stat().st_mtime_ns) != file.sha256:
                return False
    return True


@lru_cache(maxsize=DIGESTS)
def _digest_once(path: Path, size: int, mtime_ns: int) -> str:  # noqa: ARG001
    return file_digest(path)


def manifest_reference(workspace: Workspace, path: Path, name: str, manifest: Manifest) -> StageFile:
    """Return a reference to the product of a manifest; its fingerprint is the digest of its content."""
    rows, size = int(manifest.details.get("rows", 0)), sum(file.bytes for file in manifest.files.values())
    place = workspace.relative(path)
    return StageFile.current(manifest.key, name, place, rows, size, manifest.details, content=manifest.content)
