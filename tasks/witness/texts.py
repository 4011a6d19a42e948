"""Read the texts of files that are not part of the corpus, such as held-out documents."""

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

from fineweb_mask.models.settings import SourceSettings
from fineweb_mask.tasks.source.discovery import SourceShard, find_files
from fineweb_mask.tasks.source.reader import NoTextColumnError, ShardReader


def find_targets(targets: Iterable[str]) -> dict[str, list[SourceShard]]:
    """Return the files of each FILE or NAME=FILE, by the file's name or NAME."""
    named = [one if "=" in one.split("/")[0] else f"{Path(one).name.split('.')[0]}={one}" for one in targets]
    return {name: find_files(path, f"target {name}") for name, _, path in (one.partition("=") for one in named)}


def texts_of(files: Iterable[SourceShard]) -> Iterator[str]:
    """Yield the texts of files in the column `text`, without empty ones.

    Raises
    ------
    BadShardError
        If a file cannot be read, or has no such column.
    """
    for file in files:
        try:
            reader = ShardReader(file, SourceSettings(path=file.url, extra_columns=[]))
        except NoTextColumnError as error:
            problem = "it has no column 'text': its texts must be in one of that name, rename the column"
            raise NoTextColumnError(f"{file.relative}: {problem}") from error
        for batch, _ in reader.batches():
            yield from (text for text in batch["text"].to_pylist() if text and text.strip())


def different_texts(files: Iterable[SourceShard]) -> list[str]:
    """Return the texts of files, each once, in an order that depends on them alone."""
    found = {hashlib.blake2b(text.encode(), digest_size=8).digest(): text for text in texts_of(files)}
    return [text for _, text in sorted(found.items())]


def host_of(url: str | None) -> str | None:
    """Return the host of a page's address; None if it has none.

    >>> host_of("https://example.org:80/page"), host_of(None), host_of("http://[")
    ('example.org', None, None)
    """
    try:
        return urlsplit(url or "").hostname
    except ValueError:
        return None
