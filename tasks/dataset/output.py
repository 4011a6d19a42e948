"""Resolve and check where a dataset is written, a folder or a URL, before any work starts."""

from pathlib import Path
from typing import NamedTuple, Self

from fineweb_mask.models.errors import SettingsError
from fineweb_mask.models.settings import MaterializeSettings
from fineweb_mask.models.urls import is_url
from fineweb_mask.tasks.dataset.publish import CARD, PROVENANCE, VERSION_FOLDER, publishing_to
from fineweb_mask.tasks.storage.remote.object_store import Store
from fineweb_mask.tasks.workspace.manifest import read_manifest
from fineweb_mask.tasks.workspace.workspace import Workspace

MATERIALIZE = "materialize"
OF_A_DATASET = frozenset({CARD, PROVENANCE, "data", "plots", ".cache", ".gitattributes", ".DS_Store"})
"""What may be in the folder of a dataset; the hub's client and a file browser make the hidden ones."""


class OutputError(SettingsError):
    """The dataset cannot be written to the place in the settings."""


class Output(NamedTuple):
    """Where a dataset is written."""

    folder: Path  # local folder in which it is built
    url: str | None  # where it is then published; None if it is part of a workspace at a URL
    display_path: str  # as users know it
    is_own: bool  # it is the workspace's own folder

    @classmethod
    def of(cls, workspace: Workspace, settings: MaterializeSettings) -> Self:
        """Return where the settings put the dataset of a workspace."""
        if settings.output is None:
            return cls(workspace.dataset, None, workspace.display_path(workspace.dataset), is_own=True)
        if is_url(settings.output) and not settings.output.startswith("file://"):
            return cls(workspace.cache / "dataset", settings.output, settings.output.rstrip("/"), is_own=False)
        folder = Path(settings.output.removeprefix("file://")).absolute()
        return cls(folder, None, str(folder), is_own=False)

    def check(self) -> None:
        """Check that a dataset can be written there.

        Raises
        ------
        OutputError
            If the folder has other content, which would be lost, also beside a dataset.
        RemoteError
            If the URL cannot be reached, or its store ignores the conditions of a write.
        WorkspaceError
            If another run is publishing to the URL.
        """
        if self.url is not None:
            with publishing_to(Store(self.url), self.folder):  # as it will be in the end
                return
        if not self.folder.exists() and not self.folder.is_symlink():
            return
        names = {path.name for path in self.folder.iterdir()} if self.folder.is_dir() else {self.folder.name}
        manifest = read_manifest(self.folder / PROVENANCE) if names and not self.is_own else None
        if names and not self.is_own and (manifest is None or manifest.key.stage != MATERIALIZE):
            raise OutputError(
                f"materialize.output: {self.folder} holds something else than a dataset of this pipeline, and would be "
                "replaced: give a new or empty folder"
            )
        if strange := sorted(name for name in names - OF_A_DATASET if not VERSION_FOLDER.fullmatch(name)):
            raise OutputError(
                f"{self.folder} is replaced as a whole, and holds {', '.join(map(repr, strange[:3]))}, which no run "
                "wrote: move it elsewhere"
            )

    @property
    def is_there(self) -> bool:
        """Whether a dataset exists there."""
        if self.url is not None:
            return Store(self.url).info(PROVENANCE) is not None
        return read_manifest(self.folder / PROVENANCE) is not None
