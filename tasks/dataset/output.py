"""Say where a dataset is written, check it, write the record, and publish it so that readers see one version.

The provenance record, provenance.json, holds the SHA-256 of every file of the dataset, the card among them. The card,
README.md, ends with the SHA-256 of the record, taken without the card's own entry. So no file can be changed alone.

Object stores cannot rename a folder. The data of each version is therefore in a separate folder, `data-<version>`,
named by the keys of what it is made of, so that its files can be uploaded as soon as they are written. Then
provenance.json and README.md are replaced, each atomically; the header of README.md names the folder of the data. Last,
the folders of older versions are deleted. If a publication is killed, README.md still describes a complete dataset, and
the next publication resumes.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, Self

from fineweb_mask.models.settings import MaterializeSettings
from fineweb_mask.models.urls import is_url
from fineweb_mask.tasks.outputs import OutputError, check_apart, check_output
from fineweb_mask.tasks.storage.remote.copies import upload_order
from fineweb_mask.tasks.storage.remote.object_store import Store
from fineweb_mask.tasks.workspace.manifest import (
    PROVENANCE,
    Manifest,
    ManifestFile,
    is_product,
    read_manifest,
    write_manifest,
)
from fineweb_mask.tasks.workspace.references import StageKey
from fineweb_mask.tasks.workspace.workspace import Workspace

VERSION_FOLDER, DATA_FILE = re.compile(r"data-[0-9a-f]{8}"), re.compile(r"data-[0-9a-f]{8}/")
CARD = "README.md"
MATERIALIZE = "materialize"
OF_A_DATASET = frozenset({CARD, PROVENANCE, "data", "plots", ".cache", ".gitattributes", ".DS_Store"})
"""What may be in the folder of a dataset; the hub's client and a file browser make the hidden ones."""
CHECKSUM = "\nSHA-256 of `provenance.json`, without the entry of this card: `{}`\n"
CHECKSUM_LINE = re.compile(re.escape(CHECKSUM).replace(r"\{\}", "([0-9a-f]{64})") + r"\Z")


def publish(folder: Path, url: str, data: str) -> None:
    """Replace the dataset at a URL.

    Parameters
    ----------
    folder
        The card README.md, its plots, and the record provenance.json, which names all files of the dataset.
    url
        The folder that readers use, in which the data is already. Other files in it are not touched.
    data
        The folder of the data in it, `data-` and eight hex digits.

    Raises
    ------
    RemoteError
        If the URL cannot be written; the old dataset is then still complete.
    """
    store = Store(url)
    last = _record_at(store)
    for path in upload_order(folder):
        store.upload(path, path.relative_to(folder).as_posix())
    record = Manifest.model_validate_json((folder / PROVENANCE).read_bytes())
    present = store.sizes().keys()
    old = {name for name in present if DATA_FILE.match(name) and not name.startswith(f"{data}/")}
    store.delete(sorted(old | ((last.files.keys() if last else set()) & present - record.files.keys())))


def _record_at(store: Store) -> Manifest | None:
    """Return the provenance record of the dataset at a URL, or None if there is none, or none that can be read."""
    record = store.read(PROVENANCE)
    with suppress(ValueError):
        return None if record is None else Manifest.model_validate_json(record)
    return None


def published(url: str) -> Manifest | None:
    """Return the provenance record of the dataset at a URL if all its files exist with the recorded size, else None.

    Raises
    ------
    RemoteError
        If the URL does not answer or denies access.
    """
    store = Store(url)
    present, manifest = store.sizes(), _record_at(store)
    if manifest is None:
        return None
    is_whole = all(present.get(name) == file.bytes for name, file in manifest.files.items())
    card, there = manifest.files.get(CARD), store.read(CARD)  # one of an older version may have the same size
    has_card = card is None or (there is not None and hashlib.sha256(there).hexdigest() == card.sha256)
    return manifest if is_whole and has_card else None


class Output(NamedTuple):
    """Where a dataset is written."""

    folder: Path  # local folder in which it is built
    url: str | None  # where it is then published; None if it is a local folder
    display_path: str  # as users know it
    is_own: bool  # it is the workspace's own folder

    @classmethod
    def of(cls, workspace: Workspace, settings: MaterializeSettings) -> Self:
        """Return where the settings put the dataset of a workspace."""
        if settings.output is None:
            address = workspace.display_path(workspace.dataset)
            return cls(workspace.dataset, None if workspace.url is None else address, address, is_own=True)
        if is_url(settings.output) and not settings.output.startswith("file://"):
            return cls(workspace.cache / "dataset", settings.output, settings.output.rstrip("/"), is_own=False)
        folder = Path(settings.output.removeprefix("file://")).absolute()
        return cls(folder, None, str(folder), is_own=False)

    def check(self, inputs: Iterable[str] = ()) -> None:
        """Check that a dataset can be written there, and replaces nothing that is read.

        Raises
        ------
        OutputError
            If the folder has other content, which would be lost, also beside a dataset.
        RemoteError
            If the URL cannot be written.
        """
        if self.url is not None and not self.is_own:
            check_apart({"materialize.output": self.url}, inputs)
            Store(self.url).check_writable()
            return
        if not self.is_own:
            is_dataset = is_product(self.folder, MATERIALIZE)
            check_output(self.folder, "materialize.output", inputs, replaces=is_dataset, folder=True)
        if not self.folder.exists() and not self.folder.is_symlink():
            return
        names = {path.name for path in self.folder.iterdir()} if self.folder.is_dir() else {self.folder.name}
        if strange := sorted(name for name in names - OF_A_DATASET if not VERSION_FOLDER.fullmatch(name)):
            raise OutputError(
                f"{self.folder} is replaced as a whole, and holds {', '.join(map(repr, strange[:3]))}, which no run "
                "wrote: move it elsewhere"
            )

    @property
    def is_there(self) -> bool:
        """Whether a dataset exists there."""
        if self.url is not None:
            return Store(self.url).size(PROVENANCE) is not None
        return read_manifest(self.folder / PROVENANCE) is not None


def write_record(
    folder: Path,
    key: StageKey,
    files: Iterable[Path],
    details: Mapping[str, Any],
    more: Mapping[str, ManifestFile] | None = None,
) -> None:
    """Write the record of a dataset, and its hash at the end of the card, instead of an earlier one.

    Parameters
    ----------
    folder
        The dataset's folder, with the card.
    key
        What the dataset was made with.
    files
        The files in it, with the card.
    details
        What else is recorded.
    more
        The size and hash of files that are elsewhere, by name.
    """
    card, others = folder / CARD, [file for file in files if file != folder / CARD]
    write_manifest(folder / PROVENANCE, key, others, details, more=more)
    text = CHECKSUM_LINE.sub("", card.read_text(encoding="utf-8"))
    checksum = CHECKSUM.format(record_digest((folder / PROVENANCE).read_bytes()))
    card.write_text(text + checksum, encoding="utf-8")
    write_manifest(folder / PROVENANCE, key, [*others, card], details, more=more)


def record_digest(record: bytes) -> str:
    """Return the SHA-256 of the content of a provenance.json, as sorted JSON, without the entry of the card."""
    content = json.loads(record)
    content["files"].pop(CARD, None)
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def digest_on_card(card: str) -> str | None:
    """Return the hash of the record that a card ends with, or None if it has none."""
    found = CHECKSUM_LINE.search(card)
    return None if found is None else found[1]
