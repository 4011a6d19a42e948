"""Find the source files; each is a shard, which `fineweb_mask.tasks.source.reader` reads.

A branch on the Hugging Face hub may move while a run reads from it, and the hub has no conditional range requests. A
commit never changes, so a source there is pinned to the current one, and a run reads one version of every file. The
fingerprint of a file is git's hash of its content (`blob_id`), so a new commit leaves the outputs of unchanged files
current.
"""

import errno
import hashlib
import logging
import os
import re
from collections import Counter, defaultdict
from dataclasses import replace
from functools import cache
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Literal, NamedTuple
from urllib.parse import unquote

from pydantic import BaseModel, ConfigDict

from fineweb_mask.models.errors import SettingsError
from fineweb_mask.models.schemas import FINEWEB
from fineweb_mask.models.settings import SourceSettings
from fineweb_mask.models.urls import HUB, is_url
from fineweb_mask.tasks.source.opening import PACKED
from fineweb_mask.tasks.storage.remote.errors import RemoteError, attempt, is_missing, is_transient, redacted
from fineweb_mask.tasks.storage.remote.filesystem import (
    is_local,
    open_filesystem,
    size_in,
    version_of,
)

if TYPE_CHECKING:
    from huggingface_hub import HfUri

Format = Literal["parquet", "jsonl", "warc"]

FORMATS: dict[str, Format] = {
    ".parquet": "parquet",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".warc": "warc",
    ".wet": "warc",
}
ENDING = re.compile(
    f"({'|'.join(map(re.escape, FORMATS))})({'|'.join(map(re.escape, PACKED))})?\\Z", re.IGNORECASE | re.ASCII
)
KEY = re.compile("([^=?&]+)=(.*)")
NULL_KEY = "__HIVE_DEFAULT_PARTITION__"
LARGEST_DOCUMENT = 32 * 2**20
"""Most bytes of a line of JSON, of a page, or of a text of Parquet; a larger one is dropped."""
MOST_NAME_BYTES = 150
"""Longest name of a shard: file systems allow 255 bytes, of which a tag, a suffix and a partial file's name need 80."""
GLOB_CHARACTERS = frozenset("*?[")
NO_URL = re.compile("[\ud800-\udfff]|::")
"""Bytes of a path that is not UTF-8, as Python reads it, and what fsspec takes for two URLs."""
HIDDEN = (".", "_")
"""Beginnings of the names of files and folders that are left out."""
NO_DOCUMENTS = frozenset({"hidden", ".md"})
"""Files that are left out of nearly every source, and that nobody misses."""

ANSWER_SECONDS = 10.0
"""Longest time for the hub's answer."""
LOGGERS = ("httpx2", "huggingface_hub.utils._http")
"""Loggers that are quiet: the hub redirects to signed URLs, which give access like a token until they expire."""

logger = logging.getLogger(__name__)


for _name in LOGGERS:
    logging.getLogger(_name).setLevel(logging.ERROR)


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
    keys: tuple[tuple[str, str | None], ...] = ()  # in the folders of its path, which are columns
    columns: tuple[tuple[str, str], ...] | None = None  # of the documents beside FINEWEB's, and types; None: the file's


def are_documents(path: str) -> bool:
    """Return whether a path is one of documents, not of a recipe; a file of JSON may be either and counts as a recipe.

    >>> [are_documents(path) for path in ("a.jsonl.gz", "s3://bucket/a", "pages/*.parquet", "mine.yaml", "sample")]
    [True, True, True, False, False]
    """
    is_known = ending_of(path).lower() not in {"", ".json"}
    return is_url(path) or bool(GLOB_CHARACTERS & set(path)) or is_known or Path(path).is_dir()


class Source(NamedTuple):
    """The files of a source, ordered by name, and those that are left out: their paths in it, by what they are."""

    shards: list[SourceShard]
    left_out: dict[str, list[str]]


def discover(settings: SourceSettings) -> list[SourceShard]:
    """Return the files of the source, as `find_source` does."""
    return find_source(settings).shards


def find_source(settings: SourceSettings) -> Source:
    """Find the files of the source: a file, folder, glob or URL.

    Raises
    ------
    SourceError
        If there is none, a file's format is unknown, or a folder cannot be opened.
    RemoteError
        If the source is at a URL that cannot be read.
    """
    filesystem, root = open_filesystem(pin_commit(settings.path))
    try:
        base, found = attempt(settings.path, _list_files, filesystem, root, settings.path)
    except SourceError:
        raise
    except ValueError as error:  # fsspec refuses some paths, such as a bucket without a name
        raise SourceError(f"source.path: {settings.path!r}: {error}") from error
    shards, left_out = [], defaultdict[str, list[str]](list)
    for path, info in found.items():
        relative = str(PurePosixPath(path).relative_to(base)) if base else path
        if info["type"] == "directory":
            if "created" in info and not os.access(path, os.R_OK | os.X_OK):  # of this machine
                problem = f"{relative!r} cannot be opened: allow it, or name a folder or a pattern without it"
                raise SourceError(f"source.path: {problem}")
        elif why := _why_left_out(path, relative, info, settings):
            left_out[why].append(relative)
        else:
            shards.append(_shard(filesystem, path, relative, info, settings))
    if not shards:
        raise SourceError(
            f"source.path: no {'/'.join(FORMATS)} file below {settings.path!r}, it has {named(left_out)}: give other "
            "files, or set source.format to parquet, jsonl or warc, whatever their names are"
        )
    files_of = Counter(shard.name for shard in shards)
    shards = [_told_apart(shard) if files_of[shard.name] > 1 else shard for shard in shards]
    return Source(sorted(shards, key=lambda shard: shard.name), dict(sorted(left_out.items())))


def _list_files(filesystem: Any, root: str, path: str) -> tuple[str, dict[str, dict[str, Any]]]:  # noqa: ANN401
    """Return the folder that the names of shards are relative to, and the fsspec `info` of each file and folder."""
    filesystem.invalidate_cache()  # not `isfile` and `isdir`: they return False if the server does not answer
    try:
        info = filesystem.info(root)  # also of a folder whose own name has such characters
    except FileNotFoundError as error:
        if not is_missing(error):
            raise
        if not GLOB_CHARACTERS & set(root):
            problem = f"{path!r} does not exist (looked for {root}): check its spelling"
            raise SourceError(f"source.path: {problem}") from error
        fixed = list(PurePosixPath(root).parts)
        while GLOB_CHARACTERS & set("".join(fixed)):
            fixed.pop()
        return str(PurePosixPath(*fixed)) if fixed else "", filesystem.glob(root, detail=True)
    if info["type"] == "file":
        return str(PurePosixPath(root).parent), {root: info}
    return root, filesystem.find(root, detail=True, withdirs=is_local(filesystem))


def named(left_out: dict[str, list[str]]) -> str:
    """Return how many files of each kind are left out, and the first of each."""
    return ", ".join(f"{len(paths):,} {what} ({paths[0]})" for what, paths in sorted(left_out.items())) or "nothing"


def _why_left_out(path: str, relative: str, info: dict[str, Any], settings: SourceSettings) -> str | None:
    if any(part.startswith(HIDDEN) for part in relative.split("/")):
        return "hidden"
    if settings.format != "auto" or ending_of(path):
        has_url = "created" not in info or not NO_URL.search(relative)  # else a file of this machine
        return None if has_url else "names that are not UTF-8, or have '::'"
    last = PurePosixPath(path.lower()).suffixes
    return "".join(last[-2:] if last[-1] in PACKED else last[-1:]) if last else "without an ending"


def ending_of(path: str) -> str:
    """Return the ending that tells a file's format and how it is compressed, or an empty text.

    >>> [ending_of(path) for path in ("a.b/c.JSONL.gz", "d.parquet", "e.csv.gz")]
    ['.JSONL.gz', '.parquet', '']
    """
    found = ENDING.search(path)
    return found[0] if found else ""


def keys_of(path: str) -> dict[str, str | None]:
    """Return the keys in the folders of a path, as Spark and Arrow write the columns that they split a table by.

    >>> keys_of("s3://bucket/language=en/dump=CC%2D1/year=__HIVE_DEFAULT_PARTITION__/a=b.parquet")
    {'language': 'en', 'dump': 'CC-1', 'year': None}
    """
    own = {name.lower(): name for name in FINEWEB.names}
    found = {unquote(key[1]): unquote(key[2]) for part in path.split("/")[:-1] if (key := KEY.fullmatch(part))}
    return {own.get(name.lower(), name): None if value in {"", NULL_KEY} else value for name, value in found.items()}


def stem_of(relative: str) -> str:
    """Return the path of a source file without the ending that tells its format.

    >>> stem_of("en/000.jsonl.gz")
    'en/000'
    """
    return relative[: len(relative) - len(ending_of(relative))]


def _shard(filesystem: Any, path: str, relative: str, info: dict[str, Any], settings: SourceSettings) -> SourceShard:  # noqa: ANN401
    url, ending = filesystem.unstrip_protocol(path), ENDING.search(path)
    if is_local(filesystem) or info.get("size") is None:  # a listing has the size of the link, or none
        try:
            info = attempt(url, filesystem.info, path)
        except OSError as error:
            if is_transient(error) or not is_local(filesystem):
                raise
            info = {**info, "size": 0}  # of a link without a target, which its reader names
    return SourceShard(
        name=shard_name(relative),
        relative=relative,
        url=url,
        format=FORMATS[ending[1].lower()] if settings.format == "auto" and ending else settings.format,
        bytes=size_in(info, url),
        fingerprint=fingerprint_of(info),
        keys=tuple(keys_of(path).items()),
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


@cache
def _warn_once(message: str) -> None:
    logger.warning("%s", message)


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
        found, left_out = find_source(SourceSettings(path=str(inside), extra_columns=[]))
    except SourceError as error:
        raise SourceError(str(error).replace("source.path", setting)) from error
    if left_out.keys() - NO_DOCUMENTS:
        _warn_once(f"{setting}: of {path}, these are not read: {named(left_out)}; convert or unpack them")
    current = catalog_files(Path(path), "documents") if Path(path).is_dir() else None
    if current is None:
        return found
    return [file for file in found if f"documents/{file.relative}" in current]
