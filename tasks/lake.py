"""The workspace: where every stage's files lie, how they are written, and how one is known to be current.

Promises: a reader sees a whole file or none; a file says in its footer which stage, settings and inputs it came
from; a file is current only if that agrees with what would be built now. Nothing in a file depends on the clock,
the run, the machine or the workspace's own path, so equal inputs give equal bytes.
"""

import errno
import fcntl
import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel, ConfigDict

from models.stopping import stop_if_requested
from models.urls import is_url
from tasks.exchange import exchange
from tasks.lease import HeldError, lease
from tasks.mirror import LOCAL_ONLY, brought, mirror_at, mirror_in, mirror_of

FOOTER_KEY = b"fineweb_mask"
ROW_GROUP_BYTES = 64 * 2**20
ROW_GROUP_ROWS = 65_536
SMALL_BYTES = 2**18


class LakeError(RuntimeError):
    """The workspace cannot be used as asked."""


DISK_REMEDIES = {
    errno.ENOSPC: "free some space there, or choose another workspace",
    errno.EDQUOT: "free some space there, or choose another workspace",
    errno.EROFS: "choose a workspace that can be written",
}


@contextmanager
def disk_errors_explained(place: Path) -> Iterator[None]:
    """Say of a full or read-only disk which file or folder it is about, and what to do; nothing there has changed.

    Raises
    ------
    LakeError
        In place of such an error.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in DISK_REMEDIES:
            raise
        where, why = error.filename or place, os.strerror(error.errno)
        raise LakeError(
            f"{where}: {why}: {DISK_REMEDIES[error.errno]}; what was finished before is unchanged"
        ) from error


class StageKey(BaseModel):
    """Everything that a stage's output depends on; two equal keys mean equal files."""

    model_config = ConfigDict(frozen=True)

    stage: str
    version: int
    settings: str  # digest of the settings that this stage reads
    inputs: str  # digest of the fingerprints of what it reads

    @property
    def fingerprint(self) -> str:
        """A digest of the whole key: what the next stage depends on."""
        return digest(self.model_dump())

    @property
    def cache_key(self) -> str:
        """The name of this key's record in Prefect's result storage; "/" makes folders there."""
        return f"{self.stage}/{self.fingerprint}"


class StageFile(BaseModel):
    """A small reference to what a stage wrote: all that tasks hand to each other."""

    model_config = ConfigDict(frozen=True)

    stage: str
    name: str  # shard, selection group, or the stage's only product
    path: str  # relative to the workspace, which may be moved
    rows: int
    bytes: int
    fingerprint: str
    details: dict[str, Any] = {}  # counts that the reports need; also in the footer
    seconds: float = 0.0  # spent building it; 0 where it was found current
    reused: bool = False  # found current, not built


def digest(value: object) -> str:
    """Return the first 32 hexadecimal digits of the SHA-256 of a value's canonical JSON."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file's content, in hexadecimal."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


class Workspace:
    """The folder of one corpus, with the layout that every stage relies on.

    Parameters
    ----------
    root
        The folder, or a URL: then `root` of the workspace is the local folder that mirrors it (see `tasks.mirror`).
    scratch
        The folder in which the mirror lies; None is the user's cache folder.
    """

    def __init__(self, root: str | Path, scratch: str | Path | None = None) -> None:
        text = str(root).removeprefix("file://")
        mirror = mirror_at(text, scratch) if is_url(text) else mirror_in(Path(text).absolute())
        self.root = Path(text).absolute() if mirror is None else mirror.root
        self._mirror = mirror

    @property
    def url(self) -> str | None:
        """Where the workspace is, unless it is a folder of this machine."""
        return None if self._mirror is None else self._mirror.url

    def shown(self, path: Path) -> str:
        """Return where a path of the workspace is, as a user knows it: at the URL, or here."""
        return str(path) if self._mirror is None else self._mirror.url_of(path)

    def shard_path(self, stage_folder: str, shard: str) -> Path:
        """Return the file of a shard in `documents`, `duplicates`, `scores`, `embeddings` or `masks`."""
        return self.root / stage_folder / f"{shard}.parquet"

    @property
    def fitted(self) -> Path:
        """What was fitted on this corpus."""
        return self.root / "fitted"

    @property
    def dataset(self) -> Path:
        """The product."""
        return self.root / "dataset"

    @property
    def reports(self) -> Path:
        """Reports and metrics."""
        return self.root / "reports"

    @property
    def cache(self) -> Path:
        """The results that Prefect persists."""
        return self.root / LOCAL_ONLY

    def relative(self, path: Path) -> str:
        """Return a path as it stands in a `StageFile`: relative to the workspace, unless it is elsewhere."""
        return path.relative_to(self.root).as_posix() if path.is_relative_to(self.root) else str(path)

    def resolve(self, file: StageFile) -> Path:
        """Return where a referenced file lies now, on this machine."""
        return brought(self.root / file.path)

    def files(self, pattern: str) -> list[Path]:
        """Return the paths that match a pattern such as `fitted/*.json`, here or at the URL."""
        found = set(self.root.glob(pattern))
        if self._mirror is not None:
            found.update(self._mirror.names(pattern))
        return sorted(found)

    def holds(self, path: Path) -> bool:
        """Return whether there is such a file, or a folder with any in it."""
        here = any(path.iterdir()) if path.is_dir() else path.exists()
        if here or self._mirror is None:
            return here
        return self._mirror.held(path) is not None or self._mirror.holds_below(path)

    @contextmanager
    def exclusive(self) -> Iterator[Self]:
        """Hold the workspace for one run, and clear away what a killed run left half written.

        Raises
        ------
        LakeError
            If another run holds it.
        """
        with self._locked(), self._leased():
            for leftover in self.root.rglob(".*.partial"):
                shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
            if self._mirror is not None:
                self._mirror.store.abort_unfinished()
                self._mirror.synchronise()
            yield self

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Keep other processes of this machine out."""
        with disk_errors_explained(self.root):
            self.root.mkdir(parents=True, exist_ok=True)
        with disk_errors_explained(self.root), (self.root / ".lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise LakeError(
                    f"another run is using the workspace {self.url or self.root}: wait for it, "
                    "or choose another with --workspace"
                ) from error
            yield

    @contextmanager
    def _leased(self) -> Iterator[None]:
        """Keep other machines out, where the workspace is at a URL."""
        with ExitStack() as held:
            if self._mirror is not None:
                try:
                    held.enter_context(lease(self._mirror.store, self.root / ".lease"))
                except HeldError as error:
                    raise LakeError(str(error)) from error
            yield

    def check(self) -> None:
        """Raise `RemoteError` if the workspace is at a URL that is out of reach."""
        if self._mirror is not None:
            self._mirror.store.check()

    def look(self) -> None:
        """Take note of what others have written since, where the workspace is at a URL."""
        if self._mirror is None:
            return
        try:
            with self._locked():
                self._mirror.synchronise()
        except LakeError:  # a run of this machine works there
            self._mirror.look()


def _partial(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.parent / f".{path.name}.{uuid.uuid4().hex}.partial"


def _sync(path: Path) -> None:
    """Have a file or folder reach the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def written_file(path: Path) -> Iterator[Path]:
    """Give a temporary path beside `path`; rename it to `path` once the block ends without an error.

    In the mirror of a URL, it is sent there before.
    """
    partial = _partial(path)
    try:
        yield partial
        _sync(partial)
        mirror = mirror_of(path)
        if mirror is not None:
            mirror.send(partial, path)
        partial.replace(path)
        _sync(path.parent)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def written_folder(path: Path) -> Iterator[Path]:
    """Give a temporary folder beside `path`; put it in `path`'s place once the block ends without an error.

    A reader finds the old folder or the new one; only where the file system cannot exchange two folders (some network
    shares) is there an instant without either. In the mirror of a URL, its files are sent there before.
    """
    partial = _partial(path)
    partial.mkdir()
    mirror = mirror_of(path)
    try:
        yield partial
        for file in tree_files(partial):
            _sync(file)
        if mirror is not None:
            mirror.send_folder(partial, path)
        if not path.exists():
            partial.rename(path)
        elif not exchange(partial, path):
            retired = _partial(path)
            path.rename(retired)
            partial.rename(path)
            shutil.rmtree(retired)
        _sync(path.parent)
    finally:
        shutil.rmtree(partial, ignore_errors=True)  # after an exchange, the old one
    if mirror is not None:
        mirror.prune(path)


def removed(path: Path) -> None:
    """Remove a file, here and, in the mirror of a URL, there; it is no error if there is none."""
    path.unlink(missing_ok=True)
    mirror = mirror_of(path)
    if mirror is not None:
        mirror.remove(path)


class ParquetStageWriter:
    """Streams record batches into one row group after the other; made by `written_parquet`."""

    def __init__(self, writer: pq.ParquetWriter, schema: pa.Schema) -> None:
        self.rows = 0
        self.details: dict[str, Any] = {}
        self._writer = writer
        self._schema = schema
        self._pending: list[pa.RecordBatch] = []

    def write(self, batch: pa.RecordBatch) -> None:
        """Add a batch; it reaches the disk when a row group is full."""
        stop_if_requested()
        self._pending.append(batch)
        self.rows += batch.num_rows
        if (
            sum(pending.nbytes for pending in self._pending) >= ROW_GROUP_BYTES
            or sum(pending.num_rows for pending in self._pending) >= ROW_GROUP_ROWS
        ):
            self.flush()

    def flush(self) -> None:
        """Write what is pending as a row group."""
        if self._pending:
            table = pa.Table.from_batches(self._pending, schema=self._schema)
            self._writer.write_table(table, row_group_size=max(table.num_rows, 1))
            self._pending.clear()


@contextmanager
def written_parquet(
    path: Path,
    schema: pa.Schema,
    key: StageKey,
    **options: Any,  # noqa: ANN401
) -> Iterator[ParquetStageWriter]:
    """Write one stage file: temporary name, footer, check of rows and schema, rename.

    Parameters
    ----------
    path
        Where the file is to lie.
    schema
        Its Arrow schema.
    key
        What it depends on; written to the footer together with the writer's `details`.
    options
        Further options of `pyarrow.parquet.ParquetWriter`.

    Raises
    ------
    LakeError
        If what was written does not read back with the same rows and columns.
    """
    with written_file(path) as partial:
        with pq.ParquetWriter(
            partial, schema, compression="zstd", write_page_checksum=True, store_schema=True, **options
        ) as writer:
            stage_writer = ParquetStageWriter(writer, schema)
            yield stage_writer
            stage_writer.flush()
            footer = {**key.model_dump(), "details": stage_writer.details}
            writer.add_key_value_metadata({FOOTER_KEY: json.dumps(footer, sort_keys=True).encode()})
        written = pq.ParquetFile(partial)
        if written.metadata.num_rows != stage_writer.rows or not written.schema_arrow.equals(schema):
            raise LakeError(
                f"{path.name} did not read back as written: {written.metadata.num_rows} rows, {stage_writer.rows} sent"
            )


def read_footer(path: Path) -> pq.FileMetaData | None:
    """Return the Parquet footer of a stage file, or None if there is no whole one; reads no more than it.

    Raises
    ------
    RemoteError
        If the file is at a URL that does not answer.
    """
    mirror = mirror_of(path)
    try:
        if mirror is not None and not path.is_file():
            return mirror.footer(path)
        return pq.read_metadata(path)
    except (FileNotFoundError, pa.ArrowInvalid):
        return None
    except OSError:
        if mirror is not None:
            raise
        return None


def _footer(metadata: pq.FileMetaData | None) -> tuple[StageKey, dict[str, Any]] | None:
    """Return what a stage wrote to the footer of its file, or None if it is no stage's."""
    try:
        footer = None if metadata is None else json.loads((metadata.metadata or {}).get(FOOTER_KEY, b"null"))
        return None if footer is None else (StageKey.model_validate(footer), footer["details"])
    except ValueError:
        return None


def written_key(path: Path) -> StageKey | None:
    """Return what a stage file was written under, or None if there is no whole one."""
    footer = _footer(read_footer(path))
    return None if footer is None else footer[0]


def written_fingerprint(path: Path) -> str | None:
    """Return what depends on a stage file depends on, or None if there is no whole one."""
    footer = _footer(read_footer(path))
    return None if footer is None else str(footer[1].get("content", footer[0].fingerprint))


def current_parquet(workspace: Workspace, path: Path, name: str, key: StageKey) -> StageFile | None:
    """Return a reference to a stage file if it is whole and its footer agrees with `key`, else None."""
    metadata, size = read_footer(path), _size(path)
    footer = _footer(metadata)
    if metadata is None or footer is None or size is None or footer[0] != key:
        return None
    details = footer[1]
    return StageFile(
        stage=key.stage,
        name=name,
        path=workspace.relative(path),
        rows=metadata.num_rows,
        bytes=size,
        fingerprint=details.get("content", key.fingerprint),
        details=details,
        reused=True,
    )


def _size(path: Path) -> int | None:
    """Return the size of a file that is here or at the URL that is mirrored here, or None if there is none."""
    if path.is_file():
        return path.stat().st_size
    mirror = mirror_of(path)
    held = None if mirror is None else mirror.held(path)
    return None if held is None else held.bytes


class ManifestFile(BaseModel):
    """Size and hash of one file of a product."""

    bytes: int
    sha256: str


class Manifest(BaseModel):
    """The footer of a product that is not one Parquet file: a fitted model, the dataset, a report."""

    key: StageKey
    files: dict[str, ManifestFile]  # by path relative to the manifest's folder
    details: dict[str, Any] = {}
    fitted_on: dict[str, str] = {}  # shard -> fingerprint of its documents

    @property
    def content(self) -> str:
        """A digest of what the product holds."""
        return digest([{name: file.sha256 for name, file in self.files.items()}, self.details])


def write_manifest(
    path: Path,
    key: StageKey,
    files: Iterable[Path],
    details: Mapping[str, Any],
    fitted_on: Iterable[StageFile] = (),
) -> None:
    """Write the manifest of `files`, after them, so that its presence means that they are whole."""
    manifest = Manifest(
        key=key,
        files={
            file.relative_to(path.parent).as_posix(): ManifestFile(bytes=file.stat().st_size, sha256=file_digest(file))
            for file in sorted(files)
        },
        details=dict(details),
        fitted_on={file.name: file.fingerprint for file in fitted_on},
    )
    with written_file(path) as partial:
        partial.write_text(manifest.model_dump_json(indent=2) + "\n")


def read_manifest(path: Path) -> Manifest | None:
    """Return a manifest, or None if it is missing or unreadable; says nothing about its files.

    Raises
    ------
    RemoteError
        If it is at a URL that does not answer.
    """
    brought(path)
    try:
        return Manifest.model_validate_json(path.read_text())
    except (OSError, ValueError):
        return None


def is_whole(path: Path, manifest: Manifest, *, here: bool = False) -> bool:
    """Return whether every file of a manifest at `path` is there in its full size.

    In the mirror of a URL, the content of small files is compared, too, and that of all files that `here` copies here:
    the files of a folder are sent one by one, so that those of a run that was killed may lie beside older ones.

    Parameters
    ----------
    path
        The manifest.
    manifest
        Its content.
    here
        Whether files that are only at a URL are to be copied here.
    """
    is_mirrored = mirror_of(path) is not None
    for name, file in manifest.files.items():
        target = path.parent / name
        if _size(target) != file.bytes:
            return False
        is_compared = is_mirrored and (file.bytes <= SMALL_BYTES or (here and not target.is_file()))
        if is_compared and file_digest(brought(target)) != file.sha256:
            return False
    return True


def manifest_reference(workspace: Workspace, path: Path, name: str, manifest: Manifest) -> StageFile:
    """Return the reference to the product of a manifest; its fingerprint is that of its content."""
    return StageFile(
        stage=manifest.key.stage,
        name=name,
        path=workspace.relative(path),
        rows=int(manifest.details.get("rows", 0)),
        bytes=sum(file.bytes for file in manifest.files.values()),
        fingerprint=manifest.content,
        details=manifest.details,
        reused=True,
    )


def tree_files(folder: Path) -> list[Path]:
    """Return all files below a folder, sorted."""
    return sorted(path for path in folder.rglob("*") if path.is_file())
