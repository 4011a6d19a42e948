"""Define a job, which is one unit of a stage's work, and let a stage's function build only what is not current."""

import time
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property, update_wrapper
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import pyarrow as pa

from fineweb_mask.models.errors import DataError, WorkspaceError
from fineweb_mask.tasks.storage.atomic import disk_errors_explained, make_folder
from fineweb_mask.tasks.storage.remote.errors import is_transient
from fineweb_mask.tasks.workspace.listing import Listing
from fineweb_mask.tasks.workspace.manifest import Manifest, is_whole, manifest_reference, read_manifest, write_manifest
from fineweb_mask.tasks.workspace.references import Frozen, StageFile, StageKey, digest, stage_file_name
from fineweb_mask.tasks.workspace.stage_parquet import current_parquet
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


@contextmanager
def bad_data_explained(job: "StageJob") -> Iterator[None]:
    """Turn what the data of a job's one shard causes into the error for which the shard alone is left out.

    Raises
    ------
    BadShardError
        Instead of such an error, if a bad shard of the stage can be quarantined.
    """
    try:
        yield
    except BadShardError:
        raise
    except DATA_ERRORS as error:
        if not job.stage.per_shard or is_transient(error):
            raise
        raise BadShardError(f"{job.name}: {type(error).__name__}: {error}") from error


def rows_through(file: StageFile) -> tuple[int, int]:
    """Return the number of documents that entered and left a stage that drops none."""
    return file.rows, file.rows


@dataclass(frozen=True)
class Stage:
    """What all jobs of a stage have in common; every table of stages is read from these fields."""

    name: str  # in keys and file footers, unless its jobs are of several kinds
    version: int  # part of the key: raise it when equal inputs and settings would give another output than before
    label: str = ""  # the name that its jobs are counted and shown under; by default its own
    folders: tuple[str, ...] = ()  # of its files in the workspace
    interim: bool = False  # its files are needed only until those of a later stage are there
    per_shard: bool = False  # a bad shard can be quarantined while the others go on
    documents: Callable[[StageFile], tuple[int, int]] | None = None  # entered and left; None if its rows are none
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


class StageJob(Frozen, ABC):
    """One unit of work of a stage: what it reads, what its output depends on, and where the output goes."""

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

    @abstractmethod
    def current(self, listing: Listing | None = None) -> StageFile | None:
        """Return the output if it is whole and agrees with the job's key, else None.

        Where a `listing` is given, stage files are looked for in it and not opened.
        """

    def paths(self) -> list[Path]:
        """Return the files and folders that the output consists of, those with fixed names aside."""
        return []

    @cached_property
    def key(self) -> StageKey:
        """What the output is known by; two equal keys mean equal files."""
        settings, inputs = self.depends_on()
        return StageKey(stage=self.kind, version=self.stage.version, settings=digest(settings), inputs=digest(inputs))

    @property
    def shard_names(self) -> list[str]:
        """The shards that the output is of: by default, the one that the job is named after."""
        return [self.name]

    @property
    def uses_gpu(self) -> bool:
        """Whether a GPU makes the job faster."""
        return False

    @property
    def workspace(self) -> Workspace:
        """The workspace that the job reads and writes."""
        return Workspace(self.root)


class ProductJob(StageJob):
    """A job whose output is the files of a manifest."""

    @property
    @abstractmethod
    def manifest_path(self) -> Path:
        """The manifest of the files."""

    def whole_manifest(self, *, download: bool = False) -> Manifest | None:
        """Return the manifest if it agrees with the job's key and its files are whole, else None; see `is_whole`."""
        manifest = read_manifest(self.manifest_path)
        if manifest is None or manifest.key != self.key:
            return None
        return manifest if is_whole(self.manifest_path, manifest, download=download) else None

    def current(self, listing: Listing | None = None) -> StageFile | None:  # noqa: ARG002 - manifests are small
        """Return a reference to the files if they are whole and agree with the job's key, else None."""
        if (manifest := self.whole_manifest()) is None:
            return None
        return manifest_reference(self.workspace, self.manifest_path, self.name, manifest)


class FittedJob(ProductJob):
    """A job whose output is a model in `fitted/`, under a name that tells what it was made from, and its manifest."""

    @property
    def manifest_path(self) -> Path:
        """The manifest of the model."""
        return self.workspace.fitted / f"{self.name}.{self.key.tag}.json"

    def paths(self) -> list[Path]:
        """Return the manifest, and the model's file or folder."""
        manifest = read_manifest(self.manifest_path)
        return [self.manifest_path, *(self.workspace.fitted / name for name in _models_of(manifest))]

    def current(self, listing: Listing | None = None) -> StageFile | None:  # noqa: ARG002 - manifests are small
        """Return the model's file or folder if it is whole and agrees with the job's key, else None."""
        if (manifest := self.whole_manifest(download=True)) is None:
            return None
        file = manifest_reference(self.workspace, self.manifest_path, self.name, manifest)
        models = _models_of(manifest)  # statistics have none
        return file.model_copy(update={"path": f"fitted/{models[0]}"}) if models else file

    def publish(self, files: list[Path], details: dict[str, Any], fitted_on: Sequence[StageFile] = ()) -> None:
        """Write the manifest, unless another run has written it meanwhile: then its model is used."""
        with self.workspace.alone():
            if self.force or self.current() is None:
                write_manifest(self.manifest_path, self.key, files, details, fitted_on=fitted_on)


def _models_of(manifest: Manifest | None) -> list[str]:
    return [] if manifest is None else sorted({name.split("/")[0] for name in manifest.files})


class FolderJob(ProductJob):
    """A job whose output is the files of one folder, with their manifest in it."""

    @property
    def folder_name(self) -> str:
        """The folder of the files in the workspace, without the tag of the key."""
        return self.stage.folders[0]

    @property
    def folder(self) -> Path:
        """The folder of the files."""
        return self.workspace.root / f"{self.folder_name}.{self.key.tag}"

    @property
    def manifest_path(self) -> Path:
        """The manifest of the files."""
        return self.folder / "manifest.json"

    def paths(self) -> list[Path]:
        """Return the folder."""
        return [self.folder]


class ShardJob(StageJob):
    """A job whose output is the Parquet file of a shard, or one for each of several shards."""

    @property
    def folder(self) -> str:
        """The folder of the files, in the workspace."""
        return self.stage.folders[0]

    @property
    def file_names(self) -> list[str]:
        """The names of the files: by default one, that of the shard."""
        return [self.name]

    @property
    def shard_names(self) -> list[str]:
        """The shards that the files are of."""
        return self.file_names

    @property
    def output(self) -> Path:
        """The path of the only file."""
        return self.workspace.shard_path(self.folder, self.name, self.key)

    def paths(self) -> list[Path]:
        """Return the shards' files."""
        workspace, key = self.workspace, self.key
        return [workspace.shard_path(self.folder, name, key) for name in self.file_names]

    def reference(self, rows: int = 0) -> StageFile:
        """Return the reference to the output of so many rows, which may not be built yet: its size is not known."""
        return StageFile(
            stage=self.kind,
            name=self.name,
            path=f"{self.folder}/{stage_file_name(self.name, self.key)}",
            rows=rows,
            bytes=0,
            fingerprint=self.key.fingerprint,
        )

    def shard_files(self, listing: Listing | None = None) -> list[StageFile] | None:
        """Return the files, in the order of their names, or None if one is not current."""
        files = []
        for name in self.file_names:
            if (file := find_file(self, self.folder, name, listing)) is None:
                return None
            files.append(file)
        return files

    def current(self, listing: Listing | None = None) -> StageFile | None:
        """Return the file, or one reference to all, if they are current, else None."""
        if (files := self.shard_files(listing)) is None:
            return None
        if [file.name for file in files] == [self.name]:
            return files[0]
        rows, size = sum(file.rows for file in files), sum(file.bytes for file in files)
        return StageFile.current(self.key, self.name, self.folder, rows, size, files[0].details if files else {})


def find_file(job: StageJob, stage_folder: str, shard: str, listing: Listing | None) -> StageFile | None:
    """Return a reference to a shard's file of a job's key, from the listing or else from its footer, or None."""
    if listing is not None:
        return listing.find(stage_folder, shard, job.key)
    workspace = job.workspace
    return current_parquet(workspace, workspace.shard_path(stage_folder, shard, job.key), shard, job.key)


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
        WorkspaceError
            If the output is not current after building it, or the disk is full or read-only.
        """
        if not job.force and (found := job.current()) is not None:
            return found
        started = time.perf_counter()
        explained = disk_errors_explained(job.workspace.root, f"{job.kind} {job.name}")
        with explained, bad_data_explained(job):
            self._build(job, *arguments)
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
    make_folder(path.parent)
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
