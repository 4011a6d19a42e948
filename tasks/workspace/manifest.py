"""Write and read manifests: the key, files and details of a product that is not one Parquet file.

Such products are fitted models, the dataset and the reports. Guarantees: a manifest is written after its files, so a
manifest that exists means that they are complete.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from fineweb_mask.tasks.storage.atomic import atomic_write
from fineweb_mask.tasks.storage.mirror import ensure_local, mirror_of, size_of
from fineweb_mask.tasks.storage.scratch import pinned
from fineweb_mask.tasks.workspace.references import TAGGED, StageFile, StageKey, digest, file_digest
from fineweb_mask.tasks.workspace.workspace import Workspace

SMALL_BYTES = 2**18  # files of a mirror up to this size are also compared by content


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
    }
    found.update(more or {})
    manifest = Manifest(
        key=key,
        files={name: found[name] for name in sorted(found)},
        details=dict(details),
        fitted_on={file.name: file.fingerprint for file in fitted_on},
    )
    save_manifest(path, manifest)


def save_manifest(path: Path, manifest: Manifest) -> None:
    """Write a manifest as it is."""
    with atomic_write(path) as partial:
        partial.write_text(manifest.model_dump_json(indent=2) + "\n")


def read_manifest(path: Path) -> Manifest | None:
    """Return a manifest, or None if it is missing or unreadable; its files are not checked.

    Raises
    ------
    RemoteError
        If it is at a URL that cannot be read.
    """
    with pinned():
        ensure_local(path)
        try:
            return Manifest.model_validate_json(path.read_text())
        except (OSError, ValueError):
            return None


def is_whole(path: Path, manifest: Manifest, *, download: bool = False) -> bool:
    """Return whether every file in the manifest at `path` exists with the recorded size; `download` fetches them first.

    In a mirror, small and newly downloaded files are also compared by content: files are uploaded one by one, so a
    killed run may leave a mix of old and new ones.
    """
    is_mirrored = mirror_of(path) is not None
    for name, file in manifest.files.items():
        target = path.parent / name
        if size_of(target) != file.bytes:
            return False
        is_compared = is_mirrored and (file.bytes <= SMALL_BYTES or (download and not target.is_file()))
        with pinned():
            if is_compared and file_digest(ensure_local(target)) != file.sha256:
                return False
    return True


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
