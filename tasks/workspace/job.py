"""Define a job, which is one unit of a stage's work, and let a stage's function build only what is not current."""

import time
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache, update_wrapper
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import pyarrow as pa
from pydantic import BaseModel, ConfigDict

from fineweb_mask.models.errors import DataError, WorkspaceError
from fineweb_mask.models.urls import is_url
from fineweb_mask.tasks.storage.atomic import disk_errors_explained
from fineweb_mask.tasks.storage.remote.copies import remote_of
from fineweb_mask.tasks.storage.remote.errors import is_transient
from fineweb_mask.tasks.workspace.listing import Listing, find_file
from fineweb_mask.tasks.workspace.manifest import Manifest, is_whole, manifest_reference, read_manifest, write_manifest
from fineweb_mask.tasks.workspace.references import StageFile, StageKey, digest, path_of
from fineweb_mask.tasks.workspace.workspace import Workspace


class BadShardError(DataError):
    """A source file cannot be read; trying again would not help."""


DATA_ERRORS = (
    DataError,
    pa.ArrowException,
    UnicodeError,
    EOFError,
    zlib.error,
    MemoryError,
    OverflowError,
    RecursionError,
)
"""Errors that the content of one shard causes; any other, such as a TypeError, is a bug or the machine's."""


@dataclass(frozen=True)
class Stage:
    """What all jobs of a stage have in common; every table of stages is read from these fields."""

    name: str  # in keys and file footers, unless its jobs are of several kinds
    version: int  # part of the key: raise it when equal inputs and settings would give another output than before
    label: str = ""  # the name that its jobs are counted and shown under; by default its own
    folders: tuple[str, ...] = ()  # of its files in the workspace
    interim: bool = False  # its files are needed only until those of a later stage are there
    per_shard: bool = False  # a bad shard can be quarantined while the others go on
    documents: Callable[[StageFile], int] | None = None  # that entered it with a file; None if its rows are none
    gathers: bool = False  # its job is the last of those shown under its name; the time of all is recorded as its own
    counts: tuple[str, str] | None = None  # a document's states before and after it, as `Counts.amounts` names them

    @property
    def shown_as(self) -> str:
        """The name that its jobs are counted and shown under."""
        return self.label or self.name


class Dependencies(NamedTuple):
    """Everything that a job's output depends on, as JSON values and files; what is left out may change."""

    settings: Any
    inputs: Any


class StageJob(BaseModel, ABC):
    """One unit of work of a stage: what it reads, what its output depends on, and where the output goes.

    The output is the Parquet file of a shard, or one for each of several shards, unless a subclass has another.
    """

    model_config = ConfigDict(frozen=True)

    stage: ClassVar[Stage]
    task: ClassVar["StageTask"]  # builds the output; set by `stage_task`
    root: str  # the workspace's folder, or its URL
    force: bool = False  # build the output even if it is current

    @property
    @abstractmethod
    def name(self) -> str:
        """The shard, the group of shards, or the stage's only product."""

    @property
    def kind(self) -> str:
        """The first part of the key: the stage's name, unless one stage makes outputs of several kinds."""
        return self.stage.name

    @abstractmethod
    def depends_on(self) -> Dependencies:
        """Return what it depends on: the settings that the stage reads, and its inputs (of files, the fingerprints)."""

    @cached_property
    def key(self) -> StageKey:
        """What the output is known by; two equal keys mean equal files."""
        settings, inputs = self.depends_on()
        return StageKey(self.kind, self.stage.version, digest(settings), digest(inputs))

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Return a copy with other fields, which has its own key."""
        copied = super().model_copy(update=update, deep=deep)
        copied.__dict__.pop("key", None)
        return copied

    @property
    def uses_gpu(self) -> bool:
        """Whether a GPU makes the job faster."""
        return False

    @property
    def workspace(self) -> Workspace:
        """The workspace that the job reads and writes."""
        return Workspace(self.root) if is_url(self.root) else _local_workspace(self.root)

    @property
    def folder_name(self) -> str:
        """The folder of the files in the workspace; of a product, without the tag of the key."""
        return self.stage.folders[0]

    @property
    def file_names(self) -> list[str]:
        """The names of the files: by default one, that of the job."""
        return [self.name]

    @property
    def shard_names(self) -> list[str]:
        """The shards that the output is of: by default, those that the files are named after."""
        return self.file_names

    @property
    def output(self) -> Path:
        """The path of the only file."""
        return self.workspace.shard_path(self.folder_name, self.name, self.key)

    def paths(self) -> list[Path]:
        """Return the files and folders that the output consists of, those with fixed names aside."""
        return [self.workspace.shard_path(self.folder_name, name, self.key) for name in self.file_names]

    def reference(self, rows: int = 0) -> StageFile:
        """Return the reference to the output of so many rows, which may not be built yet: its size is not known."""
        return StageFile(
            stage=self.kind,
            name=self.name,
            path=path_of(self.folder_name, self.name, self.key),
            rows=rows,
            bytes=0,
            fingerprint=self.key.fingerprint,
        )

    def shard_files(self, listing: Listing | None = None) -> list[StageFile] | None:
        """Return the files, in the order of their names, or None if one is not current."""
        files = []
        for name in self.file_names:
            if (file := find_file(self.workspace, self.folder_name, name, self.key, listing)) is None:
                return None
            files.append(file)
        return files

    def current(self, listing: Listing | None = None) -> StageFile | None:
        """Return the file, or one reference to all, if they are whole and agree with the job's key, else None.

        Where a `listing` is given, stage files are looked for in it and not opened.
        """
        if (files := self.shard_files(listing)) is None:
            return None
        if [file.name for file in files] == [self.name]:
            return files[0]
        rows, size = sum(file.rows for file in files), sum(file.bytes for file in files)
        details = files[0].details if files else {}
        found = {"path": self.folder_name, "bytes": size, "details": details, "cached": True}
        return self.reference(rows).model_copy(update=found)


class ProductJob(StageJob):
    """A job whose output is files with a manifest: in their own folder, or a model, of a stage without folders.

    A model is in `fitted/`, under a name that tells what it was made from; its manifest's tells the key.
    """

    @property
    def folder(self) -> Path:
        """The folder of the files."""
        return self.workspace.root / f"{self.folder_name}.{self.key.tag}"

    @property
    def manifest_path(self) -> Path:
        """The manifest of the files."""
        is_model = not self.stage.folders
        return self.workspace.fitted / f"{self.name}.{self.key.tag}.json" if is_model else self.folder / "manifest.json"

    def paths(self) -> list[Path]:
        """Return the folder, or a model's manifest and its file or folder."""
        if self.stage.folders:
            return [self.folder]
        return [self.manifest_path, *self._models(read_manifest(self.manifest_path))]

    def whole_manifest(self) -> Manifest | None:
        """Return the manifest if it agrees with the job's key and its files are whole, else None."""
        manifest = read_manifest(self.manifest_path)
        if manifest is None or manifest.key != self.key:
            return None
        by_size = bool(self.stage.folders) and remote_of(self.manifest_path) is not None  # else it is downloaded
        return manifest if is_whole(self.manifest_path, manifest, by_size=by_size) else None

    def current(self, listing: Listing | None = None) -> StageFile | None:  # noqa: ARG002 - manifests are small
        """Return a reference to the files or the model, if they are whole and agree with the job's key, else None."""
        if (manifest := self.whole_manifest()) is None:
            return None
        models = self._models(manifest)  # statistics have none
        return manifest_reference(self.workspace, [*models, self.manifest_path][0], self.name, manifest)

    def _models(self, manifest: Manifest | None) -> list[Path]:
        if manifest is None or self.stage.folders:
            return []
        return [self.workspace.fitted / name for name in sorted({name.split("/")[0] for name in manifest.files})]

    def publish(self, files: list[Path], details: dict[str, Any], fitted_on: Sequence[StageFile] = ()) -> None:
        """Write the manifest of a model, unless another run has written it meanwhile: then its model is used."""
        with self.workspace.alone():
            if self.force or self.current() is None:
                write_manifest(self.manifest_path, self.key, files, details, fitted_on=fitted_on)


@lru_cache(maxsize=8)
def _local_workspace(root: str) -> Workspace:
    return Workspace(root)


class StageTask:
    """A stage's function, made by the decorator `stage_task` from the function that builds a job's output.

    That function's first parameter is `job`, annotated with the stage's job class. A call builds the output of a job
    unless it is current, checks it, and returns the reference to it.
    """

    def __init__(self, build: Callable[..., None]) -> None:
        update_wrapper(self, build)
        self._build = build
        self.job_type: type[Any] = build.__annotations__["job"]
        self.stage: Stage = self.job_type.stage
        self.job_type.task = self

    def __call__(self, job: StageJob, *arguments: Any) -> StageFile:  # noqa: ANN401 - what the stage's function takes
        """Return the reference to a job's output, built now unless it is current.

        Raises
        ------
        BadShardError
            Instead of an error that the data of a shard causes, of a stage that can quarantine it.
        WorkspaceError
            If the output is not current after building it, or the disk is full or read-only.
        """
        if not job.force and (found := job.current()) is not None:
            return found
        started = time.perf_counter()
        with disk_errors_explained(job.workspace.root, f"{job.kind} {job.name}"):
            try:
                self._build(job, *arguments)
            except DATA_ERRORS as error:
                if isinstance(error, BadShardError) or not job.stage.per_shard or is_transient(error):
                    raise
                raise BadShardError(f"{job.name}: {type(error).__name__}: {error}") from error
        built = job.current()
        if built is None:
            raise WorkspaceError(
                f"{job.kind} {job.name}: the output was built but is not current: run again, one run at a time"
            )
        return built.model_copy(update={"seconds": round(time.perf_counter() - started, 3), "cached": False})


stage_task = StageTask


def record_seconds(job: StageJob, seconds: float) -> None:
    """Record how long a job took; its output holds no time, so that equal inputs give equal bytes."""
    path = job.workspace.seconds
    path.parent.mkdir(exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(f"{job.key.fingerprint} {seconds}\n")


def recorded_seconds(workspace: Workspace) -> dict[str, float]:
    """Return how long jobs took on this machine, as far as that is recorded, by the fingerprints of their keys."""
    found = {}
    with suppress(OSError, ValueError), workspace.seconds.open(encoding="utf-8") as lines:
        for line in lines:
            fingerprint, _, seconds = line.partition(" ")
            found[fingerprint] = float(seconds)
    return found
