"""Verify a dataset, local or remote, against its provenance record.

Every byte is read. Sizes, SHA-256, rows and tokens must match the record, and the record the hash of it on the card. No
document may be repeated, and the folder must have no other files. Findings are listed, not raised, so that one bad file
does not hide another.
"""

import errno
import glob
import hashlib
import io
import os
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from threading import Lock
from typing import Any, Literal, NamedTuple

import duckdb
from pydantic import AliasPath, BaseModel, Field, ValidationError

from fineweb_mask.models.errors import DataError, FinewebMaskError
from fineweb_mask.models.urls import reject_credentials
from fineweb_mask.tasks.catalog.spilling import open_database
from fineweb_mask.tasks.dataset.output import CARD, digest_on_card, record_digest
from fineweb_mask.tasks.source.discovery import pin_commit
from fineweb_mask.tasks.storage.remote.errors import attempt
from fineweb_mask.tasks.storage.remote.filesystem import RemoteFile, is_local, open_filesystem
from fineweb_mask.tasks.workspace.manifest import PROVENANCE, Manifest, ManifestFile

CHUNK_BYTES = 4 * 2**20
MEMORY_LIMIT = "1GB"
DATA_SUFFIX = ".parquet"
LISTED = 20
"""Maximum number of repeated documents that are named."""
MISSING = "is missing"
STORE = """
    INSERT INTO documents SELECT $1, id, hash(text), token_count FROM read_parquet($2, hive_partitioning = false)
"""
TWICE = """
    SELECT list(file ORDER BY file), id FROM documents GROUP BY id, text HAVING count(*) > 1 ORDER BY ALL LIMIT $1
"""
OF_TWO_TEXTS = "SELECT count(*) FROM (SELECT 1 FROM documents GROUP BY id HAVING count(DISTINCT text) > 1)"

BytesCallback = Callable[[int], None]
"""Called with the number of bytes just read."""


class VerifyError(DataError):
    """No dataset or no provenance record was found."""


class FileProblem(BaseModel):
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

    def open(self, name: str) -> Any:  # noqa: ANN401
        """Open a file of the dataset for reading; failed requests to a URL are retried."""
        if self.is_local:
            return Path(self.root, name).open("rb")
        return io.BufferedReader(RemoteFile(f"{self.url.rstrip('/')}/{name}"), CHUNK_BYTES)

    @property
    def is_local(self) -> bool:
        """Whether its files are local."""
        return is_local(self.filesystem)

    def names(self) -> set[str]:
        """Return the names of the files in its folder."""
        found = attempt(self.url, self.filesystem.find, self.root)
        names = (str(PurePosixPath(path).relative_to(self.root)) for path in found)
        return {name for name in names if not is_of_the_hub(name)}


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
    problems: list[FileProblem]


def find_dataset(place: str) -> Dataset:
    """Find the dataset at a folder or URL, or in the folder `dataset` of the workspace there.

    Raises
    ------
    VerifyError
        If the folder does not exist, or has no dataset.
    """
    place = place.rstrip("/") or "/"
    try:
        place = pin_commit(reject_credentials(place))
        for folder in (place, f"{place}/dataset"):
            if _kind(f"{folder}/{PROVENANCE}") == "file":
                return Dataset(*open_filesystem(folder), folder)
        is_folder = _kind(place) == "directory"
    except FinewebMaskError as error:  # it names the place, without what is secret in it
        raise VerifyError(str(error)) from error
    except (OSError, ValueError, ImportError) as error:
        raise VerifyError(f"{place}: {error}") from error
    if not is_folder:
        raise VerifyError(f"{place} must be a folder, and is none")
    raise VerifyError(
        f"{place} is neither a dataset nor a workspace with one: it has no {PROVENANCE}; where the recipe has "
        "materialize.output, name that"
    )


def _kind(place: str) -> str | None:
    """Return `file` or `directory`, or None if nothing exists; raise if the server denies access or does not answer."""
    filesystem, path = open_filesystem(place)
    try:
        return str(attempt(place, filesystem.info, path)["type"])
    except OSError as error:
        if error.errno in {errno.ENOENT, errno.ENOTDIR}:
            return None
        raise


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
        with dataset.open(PROVENANCE) as record:
            manifest = Manifest.model_validate_json(record.read())
        _Details.model_validate(manifest.details)
    except ValidationError as error:
        raise VerifyError(f"{dataset.url}/{PROVENANCE} is not a valid provenance record: {error}") from error
    return manifest


def license_of(manifest: Manifest) -> str | None:
    """Return the licence on the card of a dataset with this record, or None if it has none."""
    return _Details.model_validate(manifest.details).license


def verify(dataset: Dataset, manifest: Manifest, advance: BytesCallback = lambda _: None) -> Verification:
    """Read the whole dataset and compare it with its provenance record; `advance` is called after each read."""
    details, names, present = _Details.model_validate(manifest.details), sorted(manifest.files), dataset.names()
    lock = Lock()  # of the table of documents
    with (
        tempfile.TemporaryDirectory(prefix="fineweb-mask-verify-") as folder,
        open_database(f"{folder}/documents.duckdb", memory_limit=MEMORY_LIMIT) as connection,
    ):
        connection.execute("CREATE TABLE documents (file VARCHAR, id VARCHAR, text UBIGINT, tokens BIGINT)")

        def problem_of(name: str) -> str | None:
            def store(path: Path) -> None:
                with lock:
                    connection.execute(STORE, [name, glob.escape(str(path))])

            is_there = name in present
            return _problem(dataset, name, manifest.files[name], Path(folder), advance, store) if is_there else MISSING

        unnamed = sorted(present.difference(names, {PROVENANCE}))
        problems = [(name, "does not belong to the dataset: provenance.json does not name it") for name in unnamed]
        problems += _problems_of_record(dataset, present.intersection(names))
        with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
            problems += [(name, found) for name, found in zip(names, pool.map(problem_of, names), strict=True) if found]
        counted = "SELECT count(*), coalesce(sum(tokens), 0)::BIGINT FROM documents"
        [[rows, tokens]] = connection.execute(counted).fetchall()
        [[repeated]] = connection.execute(OF_TWO_TEXTS).fetchall()
        if details.exact_dedup == "corpus":  # else the recipe left duplicates in
            problems += [
                (", ".join(dict.fromkeys(files)), f"holds the document {id_!r} {len(files)} times")
                for files, id_ in connection.execute(TWICE, [LISTED]).fetchall()
            ]
    if not problems:  # otherwise the sums are wrong because of them
        for what, found, recorded in (("documents", rows, details.rows), ("tokens", tokens, details.tokens)):
            if found != recorded:
                problems.append((PROVENANCE, f"{recorded or 0:,} {what} are recorded, the files hold {found:,}"))
    return Verification(
        status="broken" if problems else "ok",
        dataset=dataset.url,
        files=len(names),
        bytes=sum(file.bytes for file in manifest.files.values()),
        rows=rows,
        tokens=tokens,
        tokens_estimated=details.tokens_selected if details.tokens_estimated else None,
        repeated_ids=repeated,
        problems=[FileProblem(file=file, problem=problem) for file, problem in sorted(problems)],
    )


def _problems_of_record(dataset: Dataset, present: set[str]) -> Iterator[tuple[str, str]]:
    """Check that the card is there, and carries the hash of the record."""
    if CARD not in present:
        yield CARD, "is missing, or provenance.json does not name it"
        return
    with dataset.open(CARD) as card, dataset.open(PROVENANCE) as record:
        carried = digest_on_card(card.read().decode(errors="replace"))
        found = record_digest(record.read())
    if carried is None:
        yield CARD, "does not end with the hash of provenance.json: it was edited"
    elif carried != found:
        yield PROVENANCE, f"has SHA-256 {found}, {carried} is on the card: it was edited"


def _problem(
    dataset: Dataset,
    name: str,
    recorded: ManifestFile,
    folder: Path,
    advance: BytesCallback,
    store: Callable[[Path], None],
) -> str | None:
    """Return what is wrong with a file, or None; store the documents of one that is as recorded.

    A remote file is copied to a temporary one in the folder.
    """
    digest, size = hashlib.sha256(), 0
    try:
        with dataset.open(name) as stream, tempfile.NamedTemporaryFile(dir=folder) as copy:
            while chunk := stream.read(CHUNK_BYTES):
                digest.update(chunk)
                size += len(chunk)
                if not dataset.is_local:
                    copy.write(chunk)
                advance(len(chunk))
            copy.flush()
            if size != recorded.bytes:
                return f"has {size:,} bytes, {recorded.bytes:,} are recorded"
            if digest.hexdigest() != recorded.sha256:
                return f"has SHA-256 {digest.hexdigest()}, {recorded.sha256} is recorded"
            if name.endswith(DATA_SUFFIX):
                store(Path(dataset.root, name) if dataset.is_local else Path(copy.name))
    except (OSError, duckdb.Error) as error:  # of a data file, also that it lacks a column
        return f"cannot be read: {str(error).splitlines()[0]}"
    return None
