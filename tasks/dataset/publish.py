"""Publish a dataset to a URL, so that readers see either the old version or the new one.

Object stores cannot rename a folder. The data of each version is therefore in a separate folder, named by a hash of its
content. Then provenance.json and README.md are replaced, each atomically; the header of README.md names the folder of
the data. Last, the folders of older versions are deleted. If a publication is killed, README.md still describes a
complete dataset, and the next publication resumes.
"""

import hashlib
import json
import re
from contextlib import AbstractContextManager
from pathlib import Path

from fineweb_mask.models.errors import WorkspaceError
from fineweb_mask.tasks.storage.atomic import tree_files
from fineweb_mask.tasks.storage.lease import HeldError, lease
from fineweb_mask.tasks.storage.mirror import upload_order
from fineweb_mask.tasks.storage.object_store import Store
from fineweb_mask.tasks.workspace.manifest import Manifest
from fineweb_mask.tasks.workspace.references import file_digest

VERSION_FOLDER = re.compile(r"data-[0-9a-f]{8}")
PROVENANCE, CARD = "provenance.json", "README.md"


def version_folder(data: Path) -> str:
    """Return the name of the folder for a dataset's data: `data-` and eight hex digits of a hash of its content."""
    content = [[file.relative_to(data).as_posix(), file_digest(file)] for file in tree_files(data)]
    return f"data-{hashlib.sha256(json.dumps(content).encode()).hexdigest()[:8]}"


def publish(folder: Path, url: str) -> None:
    """Replace the dataset at a URL.

    Parameters
    ----------
    folder
        A verified dataset: README.md, provenance.json, one folder named by `version_folder`, and possibly others.
    url
        The folder that readers use. Other files in it are not touched.

    Raises
    ------
    WorkspaceError
        If the folder has another layout, or another run is publishing to the URL.
    RemoteError
        If the URL cannot be written; the old dataset is then still complete.
    """
    version = _version(folder)
    store = Store(url)
    try:
        with publishing_to(store, folder):
            _send(store, folder, version)
    except HeldError as error:
        raise WorkspaceError(str(error)) from error


def publishing_to(store: Store, folder: Path) -> AbstractContextManager[None]:
    """Lock the dataset at a URL, to which `folder` is published."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    return lease(store, folder.parent / f".{hashlib.sha256(store.url.encode()).hexdigest()[:12]}.lease")


def _version(folder: Path) -> str:
    versions = [path.name for path in folder.iterdir() if path.is_dir() and VERSION_FOLDER.fullmatch(path.name)]
    if len(versions) != 1 or not all((folder / name).is_file() for name in (PROVENANCE, CARD)):
        raise WorkspaceError(
            f"{folder} cannot be published: it must hold one data-<version> folder, {CARD} and {PROVENANCE}"
        )
    return versions[0]


def _send(store: Store, folder: Path, version: str) -> None:
    present = store.list_files()
    for file in upload_order(folder):
        name = file.relative_to(folder).as_posix()
        is_data = name.startswith(f"{version}/")  # same name, same content
        if not is_data or name not in present or present[name].bytes != file.stat().st_size:
            present[name] = store.upload(file, name)
    store.delete([name for name in present if _is_data(name) and not name.startswith(f"{version}/")])


def _is_data(name: str) -> bool:
    first, slash, _ = name.partition("/")
    return bool(slash) and VERSION_FOLDER.fullmatch(first) is not None


def published(url: str) -> Manifest | None:
    """Return the provenance record of the dataset at a URL if all its files exist with the recorded size, else None.

    Raises
    ------
    RemoteError
        If the URL does not answer or denies access.
    """
    store = Store(url)
    present = store.list_files()
    if PROVENANCE not in present:
        return None
    try:
        manifest = Manifest.model_validate_json(store.read(PROVENANCE))
    except ValueError:
        return None
    is_whole = all(name in present and present[name].bytes == file.bytes for name, file in manifest.files.items())
    card = manifest.files.get(CARD)  # one of an older version may have the same size
    if not is_whole or (card is not None and hashlib.sha256(store.read(CARD)).hexdigest() != card.sha256):
        return None
    return manifest
