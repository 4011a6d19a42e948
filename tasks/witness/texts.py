"""Read the texts of files that are not part of the corpus: held-out documents, benchmarks, datasets from elsewhere."""

import hashlib
from collections.abc import Iterable, Iterator
from urllib.parse import urlsplit

from fineweb_mask.models.settings import SourceSettings
from fineweb_mask.tasks.source.discovery import SourceShard
from fineweb_mask.tasks.source.reader import NoTextColumnError, ShardReader
from fineweb_mask.tasks.storage.parquet import VerifiedFile
from fineweb_mask.tasks.workspace.references import StageFile
from fineweb_mask.tasks.workspace.workspace import Workspace

BATCH_ROWS = 1_000


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


def corpus_texts(workspace: Workspace, documents: StageFile) -> Iterator[str]:
    """Yield the texts of a shard of the corpus, row by row."""
    with VerifiedFile(workspace.resolve(documents)) as file:
        for batch in file.iter_batches(BATCH_ROWS, columns=["text"]):
            yield from batch["text"].to_pylist()


def host_of(url: str | None) -> str | None:
    """Return the host of a page's address; None if it has none.

    >>> host_of("https://example.org:80/page"), host_of(None), host_of("http://[")
    ('example.org', None, None)
    """
    try:
        return urlsplit(url or "").hostname
    except ValueError:
        return None
