"""Keep the finished parts of a dataset until all are there, and put them in place together.

A part is the files of one partition and a manifest, which is written last and holds the key that they were made with. A
killed run leaves the parts that it finished, and the next one finds them by their keys. Parts are kept where putting
them in place costs nothing:

- a dataset in a local folder: in a folder beside it, from which the files are linked into the new version;
- a dataset at a URL, or in a workspace at one: where they are to stay, in the folder `data-<version>`, which no reader
  knows of before the card names it. Its name is made from the keys of what the dataset is made of. Equal keys mean
  equal files, so a file that is there with the same name and size is not uploaded again. The manifests are in the
  workspace.

Putting a dataset in place removes the parts that it was made from. Those of other settings or inputs may be another
run's; where that was killed, `fineweb-mask gc` removes them.
"""

import errno
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple, Self

from fineweb_mask.models.errors import WorkspaceError
from fineweb_mask.models.settings import MaterializeSettings
from fineweb_mask.tasks.dataset.output import Output, publish
from fineweb_mask.tasks.storage.atomic import atomic_folder, atomic_write, remove_file, tree_files
from fineweb_mask.tasks.storage.remote.copies import size_of
from fineweb_mask.tasks.storage.remote.object_store import Store
from fineweb_mask.tasks.workspace.manifest import Manifest, ManifestFile, read_manifest
from fineweb_mask.tasks.workspace.references import StageFile, StageKey
from fineweb_mask.tasks.workspace.workspace import Workspace

MANIFEST = "manifest.json"
DATA = "data"  # folder of a part's files, named as in a dataset
FOLDER = "dataset-parts"
NO_LINKS = frozenset({errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS})
"""Errors of file systems that have no hard links, or no more of them."""


class Parts(NamedTuple):
    """The parts of the dataset that a workspace's settings describe."""

    workspace: Workspace
    output: Output
    version: str  # of the dataset's files

    @classmethod
    def of(cls, workspace: Workspace, settings: MaterializeSettings, version: str) -> Self:
        """Return the parts of a version of the dataset."""
        return cls(workspace, Output.of(workspace, settings), version)

    @property
    def data(self) -> str:
        """The name of the folder of the data files in the dataset."""
        return DATA if self.output.url is None else f"data-{self.version[:8]}"

    @property
    def folder(self) -> Path:
        """The folder of the parts' manifests, and of their files if the dataset is a local folder."""
        if self.output.url is None and not self.output.is_own:  # links need the same file system
            return self.output.folder.parent / f".{self.output.folder.name}.parts" / self.version[:16]
        return self.workspace.root / FOLDER / self.version[:16]

    def manifest_path(self, key: StageKey) -> Path:
        """Return the manifest of the part that is made with a key."""
        return self.folder / key.fingerprint[:16] / MANIFEST

    @contextmanager
    def written(self, key: StageKey) -> Iterator[Path]:
        """Yield a folder for a part's manifest and, in `data`, its files; keep them if the block succeeds."""
        target = self.manifest_path(key)
        if self.output.url is None:
            with atomic_folder(target.parent) as folder:
                yield folder
            return
        folder = self.workspace.cache / "materialize" / key.fingerprint[:16]
        shutil.rmtree(folder, ignore_errors=True)  # of a run that was killed
        folder.mkdir(parents=True)
        try:
            yield folder
            store = Store(self.output.url)
            for file in tree_files(folder / DATA):
                name = self._placed(file.relative_to(folder).as_posix())
                if store.size(name) != file.stat().st_size:
                    store.upload(file, name)
            with atomic_write(target) as partial:
                (folder / MANIFEST).replace(partial)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def found(self, key: StageKey) -> Manifest | None:
        """Return the manifest of the part that was made with a key, if all its files are there, else None."""
        manifest = read_manifest(self.manifest_path(key))
        if manifest is None or manifest.key != key:
            return None
        sizes = (self._size(key, name) == file.bytes for name, file in manifest.files.items())
        return manifest if all(sizes) else None

    def _size(self, key: StageKey, name: str) -> int | None:
        if self.output.url is None:
            return size_of(self.manifest_path(key).parent / name)
        return Store(self.output.url).size(self._placed(name))

    def _placed(self, name: str) -> str:
        """Return the name in the dataset of a part's file."""
        return self.data + name.removeprefix(DATA)

    def files(self, parts: list[Manifest]) -> dict[str, ManifestFile]:
        """Return the size and hash of every data file of the dataset, by its name in it: a part's has its number."""
        return {self._placed(name): file for part in parts for name, file in part.files.items()}

    def read(self, references: Iterable[StageFile]) -> list[Manifest]:
        """Return the manifests of parts.

        Raises
        ------
        WorkspaceError
            If one is missing or damaged.
        """
        manifests = []
        for reference in references:
            manifest = read_manifest(self.workspace.root / reference.path)
            if manifest is None or self.found(manifest.key) is None:
                raise WorkspaceError(f"part {reference.name} of the dataset is missing or damaged: run again")
            manifests.append(manifest)
        return manifests

    @contextmanager
    def put_in_place(self, parts: Sequence[Manifest]) -> Iterator[Path]:
        """Yield a folder for the card and the provenance record; if the block succeeds, this is the dataset.

        The record, which the block writes, names the files of the dataset. The last dataset is replaced, and the parts
        are removed.
        """
        if self.output.url is None:
            with atomic_folder(self.output.folder) as folder:
                for part in parts:
                    self._link(part, folder)
                yield folder
        else:
            folder = self.workspace.cache / "dataset"
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            yield folder
            publish(folder, self.output.url, self.data)
            shutil.rmtree(folder)
        self._remove()

    def remove_left(self) -> None:
        """Delete the parts that a run left which was killed after it had put the dataset in place."""
        if self.workspace.exists(self.folder):
            with self.workspace.alone():
                self._remove()

    def _remove(self) -> None:
        """Delete the parts, or what is left of them."""
        if self.folder.is_relative_to(self.workspace.root):
            for name in self.workspace.sizes(self.workspace.relative(self.folder), suffix=""):
                remove_file(self.workspace.root / name)
        shutil.rmtree(self.folder, ignore_errors=True)
        with suppress(OSError):  # those of another version are left
            self.folder.parent.rmdir()

    def _link(self, part: Manifest, folder: Path) -> None:
        source = self.manifest_path(part.key).parent
        for name in part.files:
            link_or_copy(source / name, folder / self._placed(name))


def link_or_copy(source: Path, target: Path) -> None:
    """Give a file another name, in a folder that is made, or copy it where the file system has no hard links."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        shutil.copy2(source, target)
