"""Verify a dataset, local or remote, against its provenance record.

Every byte is read. Sizes, SHA-256, rows and tokens must match the record, and the record the hash of it on the card. No
document may be repeated, and the folder must have no other files. Findings are listed, not raised, so that one bad file
does not hide another.
"""

import errno
import hashlib
import io
import os
import tempfile
import unicodedata
from collections.abc import Callable, Container, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path, PurePosixPath
from threading import Lock
from typing import Any, Literal, NamedTuple

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import AliasPath, BaseModel, Field, ValidationError

from fineweb_mask.models.errors import DataError, FinewebMaskError
from fineweb_mask.models.urls import is_url, reject_credentials
from fineweb_mask.tasks.dataset.output import CARD, digest_on_card, record_digest
from fineweb_mask.tasks.dataset.writers import rows_of
from fineweb_mask.tasks.source.discovery import pin_commit
from fineweb_mask.tasks.storage.remote.filesystem import RemoteFile, is_local, open_filesystem
from fineweb_mask.tasks.storage.remote.retries import attempt
from fineweb_mask.tasks.workspace.manifest import PROVENANCE, Manifest, ManifestFile
from fineweb_mask.tasks.workspace.records.runs import LastRun
from fineweb_mask.tasks.workspace.workspace import LAST_RUN

CHUNK_BYTES = 4 * 2**20
ID_MEMORY = "1GB"
DATA_SUFFIX = ".parquet"
LISTED = 20
"""Maximum number of repeated documents that are named."""
LINK = "is a symbolic link, whose target may change: put the file itself there"
UNREADABLE = (OSError, ValueError, LookupError, TypeError, pa.ArrowException, duckdb.Error)
"""Errors that the content of a data file may cause."""
ROWS = pa.schema([("id", pa.string()), ("token_count", pa.int64()), ("text", pa.string())])

BytesCallback = Callable[[int], None]
"""Called with the number of bytes just read."""


class VerifyError(DataError):
    """No dataset or no provenance record was found."""


class Finding(BaseModel):
    """Something that is wrong with a file of the dataset."""

    file: str
    problem: str


class _Details(BaseModel):
    """What is read of the details of a record."""

    rows: int | None = None
    tokens: int | None = None
    counts: dict[str, Any] = {}
    recipe: dict[str, dict[str, Any]] = {}
    tokens_selected: int | None = Field(None, validation_alias=AliasPath("counts", "tokens_selected"))
    exact_dedup: str | None = Field(None, validation_alias=AliasPath("recipe", "ingest", "exact_dedup"))
    license: str | None = Field(None, validation_alias=AliasPath("recipe", "materialize", "license"))


class Dataset(NamedTuple):
    """The location of a dataset."""

    filesystem: Any
    root: str
    url: str

    def path(self, name: str) -> str:
        """Return the path of a file of the dataset in its filesystem."""
        return f"{self.root.rstrip('/')}/{name}"

    def open(self, name: str) -> Any:  # noqa: ANN401
        """Open a file of the dataset for reading; failed requests to a URL are retried."""
        if self.is_local:
            return self.filesystem.open(self.path(name), "rb")
        return io.BufferedReader(RemoteFile(f"{self.url.rstrip('/')}/{name}"), CHUNK_BYTES)

    @property
    def is_local(self) -> bool:
        """Whether its files are local."""
        return is_local(self.filesystem)


class DataFile(BaseModel):
    """Rows and tokens of a data file."""

    file: str
    rows: int
    tokens: int


class Verification(BaseModel):
    """The result of verifying a dataset."""

    status: Literal["ok", "broken"]
    dataset: str
    files: int
    bytes: int
    rows: int
    tokens: int
    tokens_estimated: int | None = None  # of the selected documents, if the files have no number of all
    repeated_ids: int  # ids of the source that documents with different texts share
    data: list[DataFile]
    problems: list[Finding]


def find_dataset(place: str) -> Dataset:
    """Find the dataset at a folder or URL, or the dataset of the workspace there, as its last run wrote it.

    Raises
    ------
    VerifyError
        If the folder does not exist, or has no dataset.
    """
    place = place.rstrip("/") or "/"
    try:
        place = pin_commit(reject_credentials(place))
        found = _dataset_at(place)
        exists = found is not None or _kind(place) == "directory"
        output = None if found is not None else _output_of(place)
        found = found or _dataset_at(output or f"{place}/dataset")
    except FinewebMaskError as error:  # it names the place, without what is secret in it
        raise VerifyError(str(error)) from error
    except (OSError, ValueError, ImportError) as error:
        raise VerifyError(f"{place}: {error}") from error
    if found is not None:
        return found
    if not exists:
        raise VerifyError(f"{place} must be a folder, and is none")
    if output is not None:
        raise VerifyError(
            f"{place}: its last run was to write the dataset to {output}, which has no {PROVENANCE}: run it again"
        )
    raise VerifyError(f"{place} is neither a dataset nor a workspace with one: it has no {PROVENANCE}")


def _dataset_at(place: str) -> Dataset | None:
    filesystem, root = open_filesystem(reject_credentials(place))
    return Dataset(filesystem, root, place) if _kind(f"{place}/{PROVENANCE}") == "file" else None


def _kind(place: str) -> str | None:
    """Return `file` or `directory`, or None if nothing exists; raise if the server denies access or does not answer."""
    filesystem, path = open_filesystem(place)
    try:
        return str(attempt(place, filesystem.info, path)["type"])
    except OSError as error:
        if error.errno in {errno.ENOENT, errno.ENOTDIR}:
            return None
        raise


def _output_of(workspace: str) -> str | None:
    """Return the folder or URL outside of a workspace to which its last run wrote the dataset, if any."""
    if _kind(f"{workspace}/{LAST_RUN}") != "file":
        return None
    filesystem, path = open_filesystem(f"{workspace}/{LAST_RUN}")
    try:
        last = LastRun.model_validate_json(attempt(workspace, filesystem.cat_file, path))
    except ValidationError:
        return None
    output = last.settings.materialize.output
    return output if output is None or is_url(output) else str(Path(last.folder) / output)


def is_of_the_hub(name: str) -> bool:
    """Return whether a file of a dataset's folder is one that the hub or its client adds."""
    return name == ".gitattributes" or name.startswith(".cache/huggingface/")


def read_provenance(dataset: Dataset) -> Manifest:
    """Return a dataset's provenance record.

    Raises
    ------
    VerifyError
        If the file is not a valid record.
    """
    try:
        manifest = Manifest.model_validate_json(dataset.open(PROVENANCE).read())
        _Details.model_validate(manifest.details)
    except ValidationError as error:
        raise VerifyError(f"{dataset.url}/{PROVENANCE} is not a valid provenance record: {error}") from error
    return manifest


def license_of(manifest: Manifest) -> str | None:
    """Return the licence on the card of a dataset with this record, or None if it has none."""
    return _Details.model_validate(manifest.details).license


def verify(dataset: Dataset, manifest: Manifest, advance: BytesCallback = lambda _: None) -> Verification:
    """Read the whole dataset and compare it with its provenance record; `advance` is called after each read."""
    with tempfile.TemporaryDirectory(prefix="fineweb-mask-verify-") as folder:
        return _Check(dataset, manifest, Path(folder), advance).run()


class _Check:
    """One pass over a dataset, with several files in parallel."""

    def __init__(self, dataset: Dataset, manifest: Manifest, folder: Path, advance: BytesCallback) -> None:
        self._dataset = dataset
        self._manifest = manifest
        self._names = sorted(manifest.files)
        self._folder = folder
        self._advance = advance
        self._lock = Lock()
        self._problems: list[Finding] = []
        self._ids = duckdb.connect(str(folder / "ids.duckdb"), config={"memory_limit": ID_MEMORY})
        self._ids.execute("CREATE TABLE ids (file UINTEGER, id_hash UHUGEINT, text_hash UBIGINT)")

    def run(self) -> Verification:
        """Check all files and return the result."""
        sizes = self._present_files()
        for name in sorted(set(sizes).difference(self._names, {PROVENANCE})):
            self._wrong(name, "does not belong to the dataset: provenance.json does not name it")
        for name, problem in _skipped(self._names):
            self._wrong(name, problem)
        self._check_record(sizes)
        with self._ids, ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
            checked = pool.map(lambda index: self._check_file(index, sizes), range(len(self._names)))
            data = [found for found in checked if found is not None]
            repeated = self._check_ids()
        rows, tokens = sum(file.rows for file in data), sum(file.tokens for file in data)
        if not self._problems:  # otherwise the sums are wrong because of them
            self._check_sums(rows, tokens)
        return Verification(
            status="broken" if self._problems else "ok",
            dataset=self._dataset.url,
            files=len(self._names),
            bytes=sum(file.bytes for file in self._manifest.files.values()),
            rows=rows,
            tokens=tokens,
            tokens_estimated=self._estimated(),
            repeated_ids=repeated,
            data=data,
            problems=sorted(self._problems, key=lambda problem: problem.file),
        )

    def _wrong(self, file: str, problem: str) -> None:
        with self._lock:
            self._problems.append(Finding(file=file, problem=problem))

    def _present_files(self) -> dict[str, int]:
        """Return the size in bytes of every file in the dataset's folder."""
        root = self._dataset.root
        found = attempt(self._dataset.url, partial(self._dataset.filesystem.find, detail=True), root)
        sizes = {str(PurePosixPath(path).relative_to(root)): int(info["size"]) for path, info in found.items()}
        return {name: size for name, size in sizes.items() if not is_of_the_hub(name)}

    def _check_record(self, present: Container[str]) -> None:
        """Check that the card carries the hash of the record."""
        if self._is_link(PROVENANCE):
            self._wrong(PROVENANCE, LINK)
        if CARD not in self._names or CARD not in present:
            self._wrong(CARD, "is missing, or provenance.json does not name it")
            return
        with self._dataset.open(CARD) as card, self._dataset.open(PROVENANCE) as record:
            carried = digest_on_card(card.read().decode(errors="replace"))
            found = record_digest(record.read())
        if carried is None:
            self._wrong(CARD, "does not end with the hash of provenance.json: it was edited")
        elif carried != found:
            self._wrong(PROVENANCE, f"has SHA-256 {found}, {carried} is on the card: it was edited")

    def _is_link(self, name: str) -> bool:
        """Return whether a file, or a folder that it is in, is a symbolic link; in a cache of the hub, files are."""
        if not self._dataset.is_local:
            return False
        root = Path(self._dataset.root)
        path = root / name
        if root.parent.name == "snapshots" and path.resolve().parent == root.parent.parent.resolve() / "blobs":
            return False
        return any(part.is_symlink() for part in (path, *path.parents) if part.is_relative_to(root) and part != root)

    def _check_file(self, index: int, present: Container[str]) -> DataFile | None:
        """Check one file; return its rows and tokens if it is a readable data file."""
        name = self._names[index]
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
            problem = "provenance.json names a file outside the dataset"
        elif name not in present:
            problem = "is missing"
        elif self._is_link(name):
            problem = LINK
        else:
            try:
                with self._local(name) as (path, found):
                    self._compare(name, found)
                    return self._read(index, path) if name.endswith(DATA_SUFFIX) else None
            except UNREADABLE as error:
                problem = f"cannot be read: {error}"
        self._wrong(name, problem)
        return None

    def _compare(self, name: str, found: ManifestFile) -> None:
        recorded = self._manifest.files[name]
        if found.bytes != recorded.bytes:
            self._wrong(name, f"has {found.bytes:,} bytes, {recorded.bytes:,} are recorded")
        elif found.sha256 != recorded.sha256:
            self._wrong(name, f"has SHA-256 {found.sha256}, {recorded.sha256} is recorded")

    @contextmanager
    def _local(self, name: str) -> Iterator[tuple[Path, ManifestFile]]:
        """Yield a local path, size and digest of a file; a remote file is downloaded to a temporary one."""
        with ExitStack() as stack:
            stream = stack.enter_context(self._dataset.open(name))
            copy = None
            if not self._dataset.is_local:
                copy = stack.enter_context(tempfile.NamedTemporaryFile(dir=self._folder))
            digest, size = hashlib.sha256(), 0
            while chunk := stream.read(CHUNK_BYTES):
                digest.update(chunk)
                size += len(chunk)
                if copy is not None:
                    copy.write(chunk)
                self._advance(len(chunk))
            if copy is not None:
                copy.flush()
            path = Path(self._dataset.path(name) if copy is None else copy.name)
            yield path, ManifestFile(bytes=size, sha256=digest.hexdigest())

    def _read(self, index: int, path: Path) -> DataFile:
        """Count a data file's rows and tokens, and store the hashes of its documents."""
        name = self._names[index]
        rows = tokens = 0
        for batch in rows_of(name, path, ROWS):
            rows += batch.num_rows
            tokens += pc.sum(batch["token_count"]).as_py() or 0
            with self._lock:
                self._ids.register("batch", batch)
                self._ids.execute("INSERT INTO ids SELECT $1, md5_number(id), hash(text) FROM batch", [index])
                self._ids.unregister("batch")
        return DataFile(file=name, rows=rows, tokens=tokens)

    def _check_sums(self, rows: int, tokens: int) -> None:
        details = _Details.model_validate(self._manifest.details)
        recorded_tokens = details.tokens_selected if details.tokens is None else details.tokens
        for what, found, recorded in (("documents", rows, details.rows), ("tokens", tokens, recorded_tokens)):
            if recorded is None:
                self._wrong(PROVENANCE, f"does not record the number of {what}")
            elif found != recorded:
                self._wrong(PROVENANCE, f"{recorded:,} {what} are recorded, the files hold {found:,}")

    def _estimated(self) -> int | None:
        """Return the tokens of the documents as they were estimated from the lengths, where some were."""
        details = _Details.model_validate(self._manifest.details)
        return details.tokens_selected if details.counts.get("tokens_estimated") else None

    def _check_ids(self) -> int:
        """Report repeated documents; return the number of ids that documents with different texts share.

        Duplicates are allowed if the recipe did not remove them.
        """
        if _Details.model_validate(self._manifest.details).exact_dedup == "corpus":
            twice = self._ids.execute(
                "SELECT list(file ORDER BY file), id_hash FROM ids GROUP BY id_hash, text_hash HAVING count(*) > 1 "
                "ORDER BY ALL LIMIT ?",
                [LISTED],
            ).fetchall()
            for files, id_hash in twice:
                where = ", ".join(dict.fromkeys(self._names[file] for file in files))
                self._wrong(where, f"holds the document {self._id(files[0], id_hash)!r} {len(files)} times")
        [[repeated]] = self._ids.execute(
            "SELECT count(*) FROM (SELECT 1 FROM ids GROUP BY id_hash HAVING count(DISTINCT text_hash) > 1)"
        ).fetchall()
        return int(repeated)

    def _id(self, index: int, id_hash: int) -> str:
        """Return the id with a given hash, from the file that has it."""
        name = self._names[index]
        with self._local(name) as (path, _):
            for batch in rows_of(name, path, ROWS):
                for document in batch["id"].to_pylist():
                    if int.from_bytes(hashlib.md5(document.encode()).digest(), "little") == id_hash:  # noqa: S324 - to compare
                        return str(document)
        raise LookupError(id_hash)


def _skipped(names: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield the data files that some readers or disks skip or mix up because of their names, and why."""
    alike: dict[str, str] = {}
    for name in (name for name in names if name.endswith(DATA_SUFFIX)):
        if any(part.startswith((".", "_")) for part in name.split("/")):
            yield name, "readers such as pyarrow.dataset skip its rows: a name begins with . or _, hidden to them"
        if any(part.endswith((".", " ")) for part in name.split("/")):
            yield name, "Windows cannot store it: a name ends with a dot or a space"
        other = alike.setdefault(unicodedata.normalize("NFC", name).casefold(), name)
        if other != name:
            yield name, f"a disk that ignores case or normalises Unicode takes it for {other}: one replaces the other"
