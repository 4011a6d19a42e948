"""Say where a dataset is written, keep its files until all are there, and publish them so that readers see one version.

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
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, Self

from fineweb_mask.models.settings import MaterializeSettings
from fineweb_mask.models.urls import is_url
from fineweb_mask.tasks.outputs import OutputError, check_apart, check_output
from fineweb_mask.tasks.storage.atomic import atomic_folder, remove_file
from fineweb_mask.tasks.storage.remote.copies import Store, size_of, upload_order
from fineweb_mask.tasks.workspace.manifest import (
    PROVENANCE,
    Manifest,
    ManifestFile,
    is_product,
    is_whole,
    read_manifest,
    write_manifest,
)
from fineweb_mask.tasks.workspace.references import StageKey, file_digest
from fineweb_mask.tasks.workspace.workspace import Workspace

VERSION_FOLDER, DATA_FILE = re.compile(r"data-[0-9a-f]{8}"), re.compile(r"data-[0-9a-f]{8}/")
CARD = "README.md"
MATERIALIZE = "materialize"
UNFINISHED = "dataset-parts"
"""Folder of a workspace for datasets that are being made."""
OF_A_DATASET = frozenset({CARD, PROVENANCE, "data", "plots", ".cache", ".gitattributes", ".DS_Store"})
"""What may be in the folder of a dataset; the hub's client and a file browser make the hidden ones."""
CHECKSUM = "\nSHA-256 of `provenance.json`, without the entry of this card: `{}`\n"
CHECKSUM_LINE = re.compile(re.escape(CHECKSUM).replace(r"\{\}", "([0-9a-f]{64})") + r"\Z")


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
        if self.url is not None:
            if not self.is_own:
                check_apart({"materialize.output": self.url}, inputs)
                Store(self.url).check_writable()
            return
        if not self.is_own:
            is_dataset = is_product(self.folder, MATERIALIZE)
            check_output(self.folder, "materialize.output", inputs, replaces=is_dataset, folder=True)
        names = {path.name for path in self.folder.iterdir()} if self.folder.is_dir() else set()
        if strange := sorted(name for name in names - OF_A_DATASET if not VERSION_FOLDER.fullmatch(name)):
            raise OutputError(
                f"{self.folder} is replaced as a whole, and holds {', '.join(map(repr, strange[:3]))}, which no run "
                "wrote: move it elsewhere"
            )

    def whole(self) -> Manifest | None:
        """Return the provenance record of the dataset there if all its files have the recorded size, else None.

        Raises
        ------
        RemoteError
            If the URL does not answer or denies access.
        """
        if self.url is None:
            path = self.folder / PROVENANCE
            manifest = read_manifest(path)
            return manifest if manifest is not None and is_whole(path, manifest, by_size=True) else None
        store = Store(self.url)
        record, card, present = store.read(PROVENANCE), store.read(CARD), store.sizes()
        with suppress(ValueError, LookupError):
            # A card of an older version may have the same size.
            if record and card and digest_on_card(card.decode(errors="replace")) == record_digest(record):
                manifest = Manifest.model_validate_json(record)
                if all(present.get(name) == file.bytes for name, file in manifest.files.items()):
                    return manifest
        return None

    def publish(self, folder: Path, data: str) -> None:
        """Replace the dataset at the URL, in which the data is already, in the folder `data`.

        `folder` has the card, its plots, and the record, which names all files. Other files at the URL are not touched.

        Raises
        ------
        RemoteError
            If the URL cannot be written; the old dataset is then still complete.
        """
        store = Store(self.display_path)
        last = store.read(PROVENANCE)
        for path in upload_order(folder):
            store.upload(path, path.relative_to(folder).as_posix())
        new = Manifest.model_validate_json((folder / PROVENANCE).read_bytes()).files
        present = store.sizes().keys()
        stale = {name for name in present if DATA_FILE.match(name) and not name.startswith(f"{data}/")}
        with suppress(ValueError):
            stale |= present & (Manifest.model_validate_json(last).files.keys() - new.keys()) if last else set()
        store.delete(sorted(stale))


class Unfinished(NamedTuple):
    """The files of a dataset while it is made, and a record of each partition that is finished.

    They wait where putting them in place costs nothing. The files of a dataset in a folder of this machine are in a
    folder beside it, with the records; all are moved together. Those of a dataset at a URL are where they are to stay,
    in a folder that no reader knows of before the card names it; the records are in the workspace.

    The folder is named by a digest of all that the files depend on. Those of other settings or inputs may be another
    run's; where that was killed, `fineweb-mask gc` removes them.
    """

    workspace: Workspace
    output: Output
    version: str  # of the dataset's files

    @property
    def data(self) -> str:
        """The name of the folder of the data files in the dataset."""
        return "data" if self.output.url is None else f"data-{self.version[:8]}"

    @property
    def folder(self) -> Path:
        """The folder of the records, and of the files if the dataset is a local folder."""
        if self.output.url is None and not self.output.is_own:  # a folder is moved within a file system
            return self.output.folder.parent / f".{self.output.folder.name}.parts" / self.version[:16]
        return self.workspace.root / UNFINISHED / self.version[:16]

    def record_path(self, partition: str) -> Path:
        """Return the path of the record of a partition."""
        return self.folder / f"{partition}.json"

    def record(self, partition: str) -> Manifest | None:
        """Return the record of a partition, with the files by their names in the dataset, if all are there."""
        record = read_manifest(self.record_path(partition))
        if record is None:
            return None
        size = (lambda name: size_of(self.folder / name)) if self.output.url is None else Store(self.output.url).size
        return record if all(size(name) == file.bytes for name, file in record.files.items()) else None

    @contextmanager
    def written(self) -> Iterator[Path]:
        """Yield a folder of this machine for the files of a partition; it is removed at the end."""
        around = self.folder if self.output.url is None else self.workspace.cache
        around.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=".partition-", suffix=".partial", dir=around) as folder:
            yield Path(folder)

    def keep(
        self, partition: str, key: StageKey, folder: Path, files: Iterable[Path], details: Mapping[str, Any]
    ) -> None:
        """Keep the files that a partition has written to a folder, and then its record."""
        found = {}
        for file in files:
            name = file.relative_to(folder).as_posix()
            found[name] = ManifestFile(bytes=file.stat().st_size, sha256=file_digest(file))
            if self.output.url is not None:
                Store(self.output.url).upload(file, name)
            else:
                (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
                file.replace(self.folder / name)
        write_manifest(self.record_path(partition), key, [], details, more=found)

    @contextmanager
    def put_in_place(self) -> Iterator[Path]:
        """Yield a folder for the card and the provenance record; if the block succeeds, this is the dataset.

        The record, which the block writes, names the files of the dataset. The last dataset is replaced.
        """
        if self.output.url is None:
            with atomic_folder(self.output.folder) as folder:
                yield folder
                if (self.folder / self.data).exists():
                    (self.folder / self.data).rename(folder / self.data)
                self._remove()
            return
        self.workspace.cache.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=".dataset-", suffix=".partial", dir=self.workspace.cache) as built:
            yield Path(built)
            self.output.publish(Path(built), self.data)
        self._remove()

    def _remove(self) -> None:
        """Delete the records."""
        for path in self.workspace.files(f"{UNFINISHED}/*/*.json"):
            if path.parent == self.folder:
                remove_file(path)
        shutil.rmtree(self.folder, ignore_errors=True)
        with suppress(OSError):  # those of another version are left
            self.folder.parent.rmdir()


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
