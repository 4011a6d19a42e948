"""Find the source files; each is a shard, which `fineweb_mask.tasks.source.reader` reads.

A branch on the Hugging Face hub may move while a run reads from it, and the hub has no conditional range requests. A
commit never changes, so a source there is pinned to the current one, and a run reads one version of every file. The
fingerprint of a file is git's hash of its content (`blob_id`), so a new commit leaves the outputs of unchanged files
current.
"""

import errno
import hashlib
import logging
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path, PurePosixPath
from threading import Timer
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict

from fineweb_mask.models.errors import SettingsError
from fineweb_mask.models.settings import SourceSettings
from fineweb_mask.models.urls import HUB, is_url
from fineweb_mask.tasks.storage.remote.errors import RemoteError, is_missing, is_transient, redacted
from fineweb_mask.tasks.storage.remote.filesystem import (
    file_info,
    is_local,
    open_filesystem,
    open_source,
    version_of,
)
from fineweb_mask.tasks.storage.remote.retries import attempt

if TYPE_CHECKING:
    from huggingface_hub import HfUri

Format = Literal["parquet", "jsonl", "warc"]

FORMATS: dict[str, Format] = {
    ".parquet": "parquet",
    **{f"{name}{packed}": "jsonl" for name in (".jsonl", ".ndjson", ".json") for packed in ("", ".gz", ".zst")},
    **{f"{name}{packed}": "warc" for name in (".warc", ".wet") for packed in ("", ".gz")},
}
MOST_NAME_BYTES = 150
"""Longest name of a shard: file systems allow 255 bytes, of which a tag, a suffix and a partial file's name need 80."""
GLOB_CHARACTERS = frozenset("*?[")
NO_URL = re.compile("[\ud800-\udfff]|::")
"""Bytes of a path that is not UTF-8, as Python reads it, and what fsspec takes for two URLs."""
HIDDEN = (".", "_")
"""Beginnings of the names of files and folders that are left out."""
SLOW_SECONDS = 5.0
"""Time after which a line says that files are still being listed."""

ANSWER_SECONDS = 10.0
"""Longest time for the hub's answer."""
LOGGERS = ("httpx2", "huggingface_hub.utils._http")
"""Loggers that print URLs: the hub redirects to signed URLs, which give access like a token until they expire."""

logger = logging.getLogger(__name__)


def _without_secrets(record: logging.LogRecord) -> bool:
    record.msg, record.args = redacted(record.getMessage()), None
    return True


for _name in LOGGERS:
    logging.getLogger(_name).addFilter(_without_secrets)


class SourceError(SettingsError):
    """The source has no files, or files whose names cannot be distinguished."""


class SourceShard(BaseModel):
    """One source file and its fingerprint."""

    model_config = ConfigDict(frozen=True)

    name: str  # of the shard in the workspace
    relative: str  # of the file in the source
    url: str
    format: Format
    bytes: int
    fingerprint: str
    as_text: tuple[str, ...] = ()  # columns whose types differ between files, so that they are kept as text


def are_documents(path: str) -> bool:
    """Return whether a path is one of documents, not of a recipe; a file of JSON may be either and counts as a recipe.

    >>> [are_documents(path) for path in ("a.jsonl.gz", "s3://bucket/a", "pages/*.parquet", "mine.yaml", "sample")]
    [True, True, True, False, False]
    """
    known = tuple(ending for ending in FORMATS if ending != ".json")
    return is_url(path) or bool(GLOB_CHARACTERS & set(path)) or path.lower().endswith(known) or Path(path).is_dir()


def discover(settings: SourceSettings) -> list[SourceShard]:
    """Return the files of the source (a file, folder, glob or URL), ordered by name.

    Raises
    ------
    SourceError
        If there is none, a file's format is unknown, or its name is not UTF-8.
    RemoteError
        If the source is at a URL that cannot be read.
    """
    filesystem, root = open_filesystem(pin_commit(settings.path))
    try:
        with _told_when_slow(settings.path):
            base, found = attempt(settings.path, _list_files, filesystem, root, settings)
    except SourceError:
        raise
    except ValueError as error:  # fsspec refuses some paths, such as a bucket without a name
        raise SourceError(f"source.path: {settings.path!r}: {error}") from error
    shards = [_shard(filesystem, path, info, base, settings) for path, info in found.items()]
    files_of = Counter(shard.name for shard in shards)
    shards = [_told_apart(shard) if files_of[shard.name] > 1 else shard for shard in shards]
    return sorted(shards, key=lambda shard: shard.name)


@contextmanager
def _told_when_slow(path: str) -> Iterator[None]:
    message = "listing the files of %s; if it holds much else, name the folder of the documents, or a pattern of files"
    timer = Timer(SLOW_SECONDS, logger.warning, (message, path))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _list_files(filesystem: Any, root: str, settings: SourceSettings) -> tuple[str, dict[str, dict[str, Any]]]:  # noqa: ANN401
    """Return the folder that shard names are relative to, and the fsspec `info` of each file by path."""
    filesystem.invalidate_cache()  # not `isfile` and `isdir`: they return False if the server does not answer
    try:
        info = filesystem.info(root)
    except FileNotFoundError as error:
        if not is_missing(error):
            raise
        info = None
    if info is not None and info["type"] == "file":
        return str(PurePosixPath(root).parent), {root: info}
    if info is not None:
        base, found = root, filesystem.find(root, detail=True)
    elif GLOB_CHARACTERS & set(root):
        fixed = list(PurePosixPath(root).parts)
        while GLOB_CHARACTERS & set("".join(fixed)):
            fixed.pop()
        base = str(PurePosixPath(*fixed)) if fixed else ""
        found = filesystem.glob(root, detail=True)
    else:
        raise SourceError(f"source.path: {settings.path!r} does not exist (looked for {root}): check its spelling")
    files = {
        path: info
        for path, info in found.items()
        if info["type"] != "directory"
        and not any(part.startswith(HIDDEN) for part in PurePosixPath(path).relative_to(base or "/").parts)
        and (settings.format != "auto" or _suffix(path) is not None)
    }
    if not files:
        raise SourceError(
            f"source.path: no {'/'.join(sorted(FORMATS))} file below {settings.path!r}: give a folder or a "
            "pattern that has some"
        )
    return base, files


def _suffix(path: str) -> str | None:
    return next((suffix for suffix in sorted(FORMATS, key=len, reverse=True) if path.lower().endswith(suffix)), None)


def stem_of(relative: str) -> str:
    """Return the path of a source file without the ending that tells its format.

    >>> stem_of("en/000.jsonl.gz")
    'en/000'
    """
    return relative[: len(relative) - len(_suffix(relative) or "")]


def _shard(filesystem: Any, path: str, info: dict[str, Any], base: str, settings: SourceSettings) -> SourceShard:  # noqa: ANN401
    relative = str(PurePosixPath(path).relative_to(base)) if base else path
    name = shard_name(relative)
    suffix = _suffix(path)
    if settings.format == "auto" and suffix is None:
        raise SourceError(
            f"source.path: cannot tell the format of {path!r}: set source.format to parquet, jsonl or warc, or convert "
            "it to one of these"
        )
    if is_local(filesystem) and NO_URL.search(path):
        raise SourceError(f"source.path: the name of {path!r} is not UTF-8, or has '::' in it: rename the file")
    url = filesystem.unstrip_protocol(path)
    if is_local(filesystem) or info.get("size") is None:  # a listing has the size of the link, or none
        try:
            info = attempt(url, filesystem.info, path)
        except OSError as error:
            if is_transient(error) or not is_local(filesystem):
                raise
            info = {**info, "size": 0, "type": "missing"}  # of a link without a target, which its reader names
    return SourceShard(
        name=name,
        relative=relative,
        url=url,
        format=FORMATS[suffix] if settings.format == "auto" and suffix else settings.format,
        bytes=file_info(info, url).bytes,
        fingerprint=content_of(url)
        if settings.fingerprint == "content" and info["type"] == "file"
        else fingerprint_of(info),
    )


def shard_name(relative: str) -> str:
    """Return the name of the shard of a file: its path in the source, in characters that file names may have.

    >>> shard_name("en/a b.parquet")
    'en-a-b'
    """
    stem = relative.removesuffix(".parquet")
    name = "".join(character if character.isalnum() or character in "._-" else "-" for character in stem)
    return name if len(name.encode()) <= MOST_NAME_BYTES else _with_digest(name, relative)


def _told_apart(shard: SourceShard) -> SourceShard:
    """Return a shard whose name another one has, too, with a digest in the name, unless it is the file's own."""
    is_own = shard.relative == f"{shard.name}.parquet"
    return shard if is_own else shard.model_copy(update={"name": _with_digest(shard.name, shard.relative)})


def _with_digest(name: str, relative: str) -> str:
    """Return a name, cut to its most bytes, with a digest of the file's path."""
    digest = hashlib.blake2b(relative.encode(), digest_size=8).hexdigest()
    return f"{name.encode()[: MOST_NAME_BYTES - len(digest) - 1].decode(errors='ignore')}-{digest}"


def fingerprint_of(info: dict[str, Any]) -> str:
    """Return a fingerprint of a file from its fsspec `info`, without reading it."""
    return f"size:{info['size']} changed:{version_of(info)}"


def content_of(url: str) -> str:
    """Return a fingerprint of a file from its content."""
    with open_source(url) as stream:
        return f"sha256:{hashlib.file_digest(stream, 'sha256').hexdigest()}"


def pin_commit(url: str) -> str:
    """Return a URL of the hub with its branch or tag replaced by the current commit; other paths are unchanged.

    A bucket (`hf://buckets/...`) has no commits, so its URL is unchanged, too.

    Raises
    ------
    RemoteError
        If the repository or revision does not exist or may not be read, or the URL is malformed.
    UnansweredError
        If the hub keeps failing.
    """
    if not url.startswith(HUB):
        return url
    from huggingface_hub import parse_hf_uri
    from huggingface_hub.errors import HfUriError

    try:
        address = parse_hf_uri(url.rstrip("/"))
    except HfUriError as error:
        raise RemoteError(
            errno.EINVAL,
            f"{redacted(url)}: {redacted(str(error))} An address on the hub reads hf://datasets/owner/name/folder, or "
            "hf://datasets/owner/name@branch/folder",
        ) from None
    return address.to_uri() if address.is_bucket else attempt(url, _at_current_commit, address)


def _at_current_commit(address: "HfUri") -> str:
    from huggingface_hub import HfApi

    info = HfApi().repo_info(address.id, repo_type=address.type, revision=address.revision, timeout=ANSWER_SECONDS)
    return replace(address, revision=info.sha).to_uri()


def find_files(path: str, setting: str) -> list[SourceShard]:
    """Return the Parquet and JSON Lines files of a dataset: a file, a folder, a glob, or a URL.

    Of a workspace, or of a dataset that this package wrote, in a local folder, they are its documents: in a workspace,
    those of its last run.

    Raises
    ------
    SourceError
        If there are none; the message names the `setting`.
    """
    from fineweb_mask.tasks.catalog.views import catalog_files  # at the top, DuckDB reports leaks

    inside = next((folder for name in ("data", "documents") if (folder := Path(path) / name).is_dir()), path)
    try:
        found = discover(SourceSettings(path=str(inside), extra_columns=[]))
    except SourceError as error:
        raise SourceError(str(error).replace("source.path", setting)) from error
    current = catalog_files(Path(path), "documents") if Path(path).is_dir() else None
    if current is None:
        return found
    return [file for file in found if f"documents/{file.relative}" in current]
