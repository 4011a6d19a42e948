"""Publish a dataset to a URL, so that readers see either the old version or the new one.

Object stores cannot rename a folder. The data of each version is therefore in a separate folder, `data-<version>`,
named by the keys of what it is made of, so that its files can be uploaded as soon as they are written. Then
provenance.json and README.md are replaced, each atomically; the header of README.md names the folder of the data. Last,
the folders of older versions are deleted. If a publication is killed, README.md still describes a complete dataset, and
the next publication resumes.
"""

import hashlib
import re
from contextlib import AbstractContextManager
from pathlib import Path

from fineweb_mask.models.errors import WorkspaceError
from fineweb_mask.tasks.storage.remote.copies import upload_order
from fineweb_mask.tasks.storage.remote.lease import HeldError, lease
from fineweb_mask.tasks.storage.remote.object_store import Store
from fineweb_mask.tasks.workspace.manifest import Manifest, read_manifest

VERSION_FOLDER = re.compile(r"data-[0-9a-f]{8}")
PROVENANCE, CARD = "provenance.json", "README.md"


def publish(folder: Path, url: str, data: str) -> None:
    """Replace the dataset at a URL.

    Parameters
    ----------
    folder
        The card README.md, the record provenance.json, which names all files of the dataset, and those of them that are
        not at the URL yet.
    url
        The folder that readers use. Other files in it are not touched.
    data
        The folder of the data in it, `data-` and eight hex digits.

    Raises
    ------
    WorkspaceError
        If the card, the record, or a file that the record names is missing, or another run is publishing there.
    RemoteError
        If the URL cannot be written; the old dataset is then still complete.
    """
    record = read_manifest(folder / PROVENANCE)
    if record is None or not (folder / CARD).is_file():
        raise WorkspaceError(f"{folder} cannot be published: it must hold {CARD} and {PROVENANCE}")
    store = Store(url)
    try:
        with publishing_to(store, folder):
            _send(store, folder, record, data)
    except HeldError as error:
        raise WorkspaceError(str(error)) from error


def publishing_to(store: Store, folder: Path) -> AbstractContextManager[None]:
    """Lock the dataset at a URL, to which `folder` is published."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    return lease(store, folder.parent / f".{hashlib.sha256(store.url.encode()).hexdigest()[:12]}.lease")


def _send(store: Store, folder: Path, record: Manifest, data: str) -> None:
    present = store.list_files()
    for name, file in record.files.items():
        if not (folder / name).is_file() and (name not in present or present[name].bytes != file.bytes):
            raise WorkspaceError(f"{folder} cannot be published: {store.url_of(name)} is missing: run again")
    for path in upload_order(folder):
        name = path.relative_to(folder).as_posix()
        is_data = name.startswith(f"{data}/")  # same name, same content
        if not is_data or name not in present or present[name].bytes != path.stat().st_size:
            present[name] = store.upload(path, name)
    store.delete([name for name in present if _is_data(name) and not name.startswith(f"{data}/")])


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
    record = store.read_tagged(PROVENANCE)
    if record is None:
        return None
    try:
        manifest = Manifest.model_validate_json(record.content)
    except ValueError:
        return None
    is_whole = all(name in present and present[name].bytes == file.bytes for name, file in manifest.files.items())
    card, there = manifest.files.get(CARD), store.read_tagged(CARD)  # one of an older version may have the same size
    has_card = card is None or (there is not None and hashlib.sha256(there.content).hexdigest() == card.sha256)
    return manifest if is_whole and has_card else None
