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
from collections.abc import Callable, Container, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path, PurePosixPath
from threading import Lock
from typing import Any, Literal, NamedTuple

import duckdb
from pydantic import AliasPath, BaseModel, Field, ValidationError

from fineweb_mask.models.errors import DataError, FinewebMaskError
from fineweb_mask.models.urls import is_url, reject_credentials
from fineweb_mask.tasks.catalog.quoting import pattern_of
from fineweb_mask.tasks.catalog.spilling import open_database
from fineweb_mask.tasks.dataset.output import CARD, digest_on_card, record_digest
from fineweb_mask.tasks.source.discovery import pin_commit
from fineweb_mask.tasks.storage.remote.filesystem import RemoteFile, is_local, open_filesystem
from fineweb_mask.tasks.storage.remote.retries import attempt
from fineweb_mask.tasks.workspace.manifest import PROVENANCE, Manifest, ManifestFile
from fineweb_mask.tasks.workspace.records.runs import LastRun
from fineweb_mask.tasks.workspace.workspace import LAST_RUN

CHUNK_BYTES = 4 * 2**20
MEMORY_LIMIT = "1GB"
DATA_SUFFIX = ".parquet"
LISTED = 20
"""Maximum number of repeated documents that are named."""
LINK = "is a symbolic link, whose target may change: put the file itself there"
STORE = """
    INSERT INTO documents SELECT $1, id, hash(text), token_count FROM read_parquet($2, hive_partitioning = false)
"""

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
    tokens_selected: int | None = Field(None, validation_alias=AliasPath("counts", "tokens_selected"))
    tokens_estimated: int = Field(0, validation_alias=AliasPath("counts", "tokens_estimated"))
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
    with (
        tempfile.TemporaryDirectory(prefix="fineweb-mask-verify-") as folder,
        open_database(f"{folder}/documents.duckdb", memory_limit=MEMORY_LIMIT) as documents,
    ):
        return _Check(dataset, manifest, Path(folder), documents, advance).run()


class _Check:
    """One pass over a dataset, with several files in parallel."""

    def __init__(
        self,
        dataset: Dataset,
        manifest: Manifest,
        folder: Path,
        documents: duckdb.DuckDBPyConnection,
        advance: BytesCallback,
    ) -> None:
        self._dataset = dataset
        self._manifest = manifest
        self._details = _Details.model_validate(manifest.details)
        self._names = sorted(manifest.files)
        self._folder = folder
        self._documents = documents
        self._documents.execute("CREATE TABLE documents (file UINTEGER, id VARCHAR, text UBIGINT, tokens BIGINT)")
        self._lock = Lock()  # of this table
        self._advance = advance
        self._problems: list[Finding] = []

    def run(self) -> Verification:
        """Check all files and return the result."""
        present = self._present_files()
        for name in sorted(present.difference(self._names, {PROVENANCE})):
            self._wrong(name, "does not belong to the dataset: provenance.json does not name it")
        self._check_record(present)
        with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
            found = list(pool.map(partial(self._problem, present), range(len(self._names))))
        for name, problem in zip(self._names, found, strict=True):
            if problem is not None:
                self._wrong(name, problem)
        counted = self._documents.execute(
            "SELECT file, count(*), coalesce(sum(tokens), 0)::BIGINT FROM documents GROUP BY file ORDER BY file"
        ).fetchall()
        data = [DataFile(file=self._names[file], rows=rows, tokens=tokens) for file, rows, tokens in counted]
        repeated = self._check_repeats()
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
            tokens_estimated=self._details.tokens_selected if self._details.tokens_estimated else None,
            repeated_ids=repeated,
            data=data,
            problems=sorted(self._problems, key=lambda problem: problem.file),
        )

    def _wrong(self, file: str, problem: str) -> None:
        self._problems.append(Finding(file=file, problem=problem))

    def _present_files(self) -> set[str]:
        """Return the names of the files in the dataset's folder."""
        root = self._dataset.root
        found = attempt(self._dataset.url, self._dataset.filesystem.find, root)
        names = (str(PurePosixPath(path).relative_to(root)) for path in found)
        return {name for name in names if not is_of_the_hub(name)}

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

    def _problem(self, present: Container[str], index: int) -> str | None:
        """Return what is wrong with a file, or None; store the documents of one that is as recorded."""
        name = self._names[index]
        recorded = self._manifest.files[name]
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
            return "provenance.json names a file outside the dataset"
        if name not in present or self._is_link(name):
            return LINK if name in present else "is missing"
        try:
            with self._local(name) as (path, found):
                if found.bytes != recorded.bytes:
                    return f"has {found.bytes:,} bytes, {recorded.bytes:,} are recorded"
                if found.sha256 != recorded.sha256:
                    return f"has SHA-256 {found.sha256}, {recorded.sha256} is recorded"
                if name.endswith(DATA_SUFFIX):
                    with self._lock:
                        self._documents.execute(STORE, [index, pattern_of(str(path))])
        except (OSError, duckdb.Error) as error:  # of a data file, also that it lacks a column
            return f"cannot be read: {str(error).splitlines()[0]}"
        return None

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

    def _check_sums(self, rows: int, tokens: int) -> None:
        details = self._details
        recorded_tokens = details.tokens_selected if details.tokens is None else details.tokens
        for what, found, recorded in (("documents", rows, details.rows), ("tokens", tokens, recorded_tokens)):
            if recorded is None:
                self._wrong(PROVENANCE, f"does not record the number of {what}")
            elif found != recorded:
                self._wrong(PROVENANCE, f"{recorded:,} {what} are recorded, the files hold {found:,}")

    def _check_repeats(self) -> int:
        """Report repeated documents; return the number of ids that documents with different texts share.

        Duplicates are allowed if the recipe did not remove them.
        """
        if self._details.exact_dedup == "corpus":
            twice = self._documents.execute(
                "SELECT list(file ORDER BY file), id FROM documents GROUP BY id, text HAVING count(*) > 1 "
                "ORDER BY ALL LIMIT ?",
                [LISTED],
            ).fetchall()
            for files, id_ in twice:
                where = ", ".join(dict.fromkeys(self._names[file] for file in files))
                self._wrong(where, f"holds the document {id_!r} {len(files)} times")
        [[repeated]] = self._documents.execute(
            "SELECT count(*) FROM (SELECT 1 FROM documents GROUP BY id HAVING count(DISTINCT text) > 1)"
        ).fetchall()
        return int(repeated)
