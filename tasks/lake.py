"""The workspace: where every stage's files lie, how they are written, and how one is known to be current.

Promises: a reader sees a whole file or none; a file says in its footer which stage, settings and inputs it came
from; a file is current only if that agrees with what would be built now. Nothing in a file depends on the clock,
the run, the machine or the workspace's own path, so equal inputs give equal bytes.
"""

import fcntl
import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel, ConfigDict

from models.stopping import stop_if_requested

FOOTER_KEY = b"fineweb_mask"
ROW_GROUP_BYTES = 64 * 2**20
ROW_GROUP_ROWS = 65_536


class LakeError(RuntimeError):
    """The workspace cannot be used as asked."""


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
    """The folder of one corpus, with the layout that every stage relies on."""

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root).absolute()

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
        return self.root / "cache"

    def relative(self, path: Path) -> str:
        """Return a path inside the workspace as it stands in a `StageFile`."""
        return path.relative_to(self.root).as_posix()

    def resolve(self, file: StageFile) -> Path:
        """Return where a referenced file lies now."""
        return self.root / file.path

    @contextmanager
    def exclusive(self) -> Iterator[Self]:
        """Hold the workspace for one run, and clear away what a killed run left half written.

        Raises
        ------
        LakeError
            If another run holds it.
        """
        self.root.mkdir(parents=True, exist_ok=True)
        with (self.root / ".lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise LakeError(
                    f"another run is using the workspace {self.root}: wait for it, or choose another with --workspace"
                ) from error
            for leftover in self.root.rglob(".*.partial"):
                shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
            yield self


def _partial(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.parent / f".{path.name}.{uuid.uuid4().hex}.partial"


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def written_file(path: Path) -> Iterator[Path]:
    """Give a temporary path beside `path`; rename it to `path` once the block ends without an error."""
    partial = _partial(path)
    try:
        yield partial
        with partial.open("rb") as stream:
            os.fsync(stream.fileno())
        partial.replace(path)
        _sync_folder(path.parent)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def written_folder(path: Path) -> Iterator[Path]:
    """Give a temporary folder beside `path`; put it in `path`'s place once the block ends without an error."""
    partial = _partial(path)
    partial.mkdir()
    try:
        yield partial
        if path.exists():
            retired = _partial(path)
            path.rename(retired)
            partial.rename(path)
            shutil.rmtree(retired)
        else:
            partial.rename(path)
        _sync_folder(path.parent)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


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


def _footer(path: Path) -> tuple[StageKey, dict[str, Any]] | None:
    """Return what the footer of a stage file says, or None if there is no whole one."""
    try:
        footer = json.loads((pq.read_metadata(path).metadata or {}).get(FOOTER_KEY, b"null"))
        return StageKey.model_validate(footer), footer["details"]
    except (OSError, pa.ArrowInvalid, ValueError):
        return None


def written_key(path: Path) -> StageKey | None:
    """Return what a stage file was written under, or None if there is no whole one."""
    footer = _footer(path)
    return None if footer is None else footer[0]


def written_fingerprint(path: Path) -> str | None:
    """Return what depends on a stage file depends on, or None if there is no whole one."""
    footer = _footer(path)
    return None if footer is None else str(footer[1].get("content", footer[0].fingerprint))


def current_parquet(workspace: Workspace, path: Path, name: str, key: StageKey) -> StageFile | None:
    """Return a reference to a stage file if it is whole and its footer agrees with `key`, else None."""
    try:
        metadata = pq.read_metadata(path)
        footer = json.loads((metadata.metadata or {}).get(FOOTER_KEY, b"null"))
    except (OSError, pa.ArrowInvalid, ValueError):
        return None
    if not isinstance(footer, dict) or {field: footer.get(field) for field in key.model_dump()} != key.model_dump():
        return None
    return StageFile(
        stage=key.stage,
        name=name,
        path=workspace.relative(path),
        rows=metadata.num_rows,
        bytes=path.stat().st_size,
        fingerprint=footer["details"].get("content", key.fingerprint),
        details=footer["details"],
        reused=True,
    )


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
    """Return a manifest, or None if it is missing or unreadable; says nothing about its files."""
    try:
        return Manifest.model_validate_json(path.read_text())
    except (OSError, ValueError):
        return None


def is_whole(path: Path, manifest: Manifest) -> bool:
    """Return whether every file of a manifest at `path` is there in its full size."""
    targets = {path.parent / name: file.bytes for name, file in manifest.files.items()}
    return all(target.is_file() and target.stat().st_size == size for target, size in targets.items())


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
