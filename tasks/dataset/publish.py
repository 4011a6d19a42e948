"""A finished dataset folder at a URL, replaced so that a reader sees the old dataset or the new one.

Object stores cannot rename a folder. So the data of every version lies in a folder of its own, named after what it
holds; provenance.json and README.md, whose header names that folder, follow, each in one step; then the folders of
older versions are removed. A publication that is killed at any moment leaves a dataset that is whole from README.md on,
and the next one goes on where it was.
"""

import hashlib
import json
import re
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
    """Return the name that the folder of a dataset's data has, after its content: `data-` and eight hex digits."""
    content = [[file.relative_to(data).as_posix(), file_digest(file)] for file in tree_files(data)]
    return f"data-{hashlib.sha256(json.dumps(content).encode()).hexdigest()[:8]}"


def publish(folder: Path, url: str) -> None:
    """Put a dataset in the place of the one at a URL.

    Parameters
    ----------
    folder
        The dataset, verified: README.md, provenance.json and one folder named by `version_folder`, besides others.
    url
        The folder that readers know; what lies there besides is left alone.

    Raises
    ------
    LakeError
        If the dataset is not laid out so, or another run is publishing there.
    RemoteError
        If the URL cannot be written to; the dataset that was there stands.
    """
    version = _version(folder)
    store = Store(url)
    try:
        with lease(store, folder.parent / f".{hashlib.sha256(store.url.encode()).hexdigest()[:12]}.lease"):
            _send(store, folder, version)
    except HeldError as error:
        raise WorkspaceError(str(error)) from error


def _version(folder: Path) -> str:
    versions = [path.name for path in folder.iterdir() if path.is_dir() and VERSION_FOLDER.fullmatch(path.name)]
    if len(versions) != 1 or not all((folder / name).is_file() for name in (PROVENANCE, CARD)):
        raise WorkspaceError(
            f"{folder} cannot be published: it must hold one data-<version> folder, {CARD} and {PROVENANCE}"
        )
    return versions[0]


def _send(store: Store, folder: Path, version: str) -> None:
    store.abort_unfinished_uploads()
    there = store.list_files()
    for file in upload_order(folder):
        name = file.relative_to(folder).as_posix()
        is_data = name.startswith(f"{version}/")  # of which equal names have equal content
        if not is_data or name not in there or there[name].bytes != file.stat().st_size:
            there[name] = store.upload(file, name)
    store.delete([name for name in there if _is_data(name) and not name.startswith(f"{version}/")])


def _is_data(name: str) -> bool:
    first, slash, _ = name.partition("/")
    return bool(slash) and VERSION_FOLDER.fullmatch(first) is not None


def published(url: str) -> Manifest | None:
    """Return the provenance record of the dataset at a URL if all its files are there in their full size, else None.

    Raises
    ------
    RemoteError
        If the URL does not answer, or refuses access.
    """
    store = Store(url)
    there = store.list_files()
    if PROVENANCE not in there:
        return None
    try:
        manifest = Manifest.model_validate_json(store.read(PROVENANCE))
    except ValueError:
        return None
    is_whole = all(name in there and there[name].bytes == file.bytes for name, file in manifest.files.items())
    card = manifest.files.get(CARD)  # it may be of the version before, in as many bytes
    if not is_whole or (card is not None and hashlib.sha256(store.read(CARD)).hexdigest() != card.sha256):
        return None
    return manifest
