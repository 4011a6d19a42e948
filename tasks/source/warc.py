"""Read the pages of a WARC file: of a crawl (.warc.gz), or Common Crawl's texts (.warc.wet.gz), by warcio.

A row is a record of type `response` or `conversion`. datatrove's reader is not used: it drops records without a count,
takes a file that is cut off for a whole one, and needs the system's libmagic. Source of the format: ISO 28500,
https://iipc.github.io/warc-specifications/specifications/warc-format/warc-1.1/
"""

import io
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

import pyarrow as pa

from fineweb_mask.models.pages import NEEDED, ExtractionError
from fineweb_mask.models.urls import is_url
from fineweb_mask.tasks.source.discovery import SourceShard
from fineweb_mask.tasks.source.unpacking import UNPACKING_ERRORS, open_unpacked, unpacking_error

COLUMNS = pa.schema([(name, pa.string()) for name in ("text", "id", "url", "date", "file_path")])
ROW_TYPES = ("response", "conversion")
HTML = ("text/html", "application/xhtml+xml")
FIRST_BYTES = 1024
"""Bytes of a page in which a tag is looked for, where nothing tells its type."""


class BrokenWarcError(ValueError):
    """A file is not a WARC file, or is damaged or cut off."""


class _Checked(io.RawIOBase):
    """A stream whose end before its time is an error; warcio takes an EOFError for the end of the file."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        try:
            return self._stream.read(size)
        except UNPACKING_ERRORS as error:
            raise BrokenWarcError(str(unpacking_error(error))) from error


def count_rows(shard: SourceShard) -> int:
    """Return the number of rows of a WARC file, from one pass over it.

    Raises
    ------
    BrokenWarcError
        If it is damaged or cut off.
    ExtractionError
        If warcio is not installed.
    """
    with _records(shard) as records:
        types = Counter(record.rec_type for record in records)
    if not types:
        raise BrokenWarcError("the file has no whole record: it is cut off")
    return sum(types[name] for name in ROW_TYPES)


def warc_records(shard: SourceShard, max_bytes: int) -> Iterator[dict[str, Any] | str]:
    """Yield the rows: a dictionary of COLUMNS, with the bytes of an HTML `page` instead of a `text`, or a problem.

    Problems are `too_large`, `not_html`, and `http_error` for an answer other than 200.
    """
    path = shard.url if is_url(shard.url) and not shard.url.startswith("file:") else shard.relative
    with _records(shard) as records:
        for record in records:
            if record.rec_type in ROW_TYPES:
                yield _row(record, path, max_bytes)


@contextmanager
def _records(shard: SourceShard) -> Iterator[Iterator[Any]]:
    try:
        from warcio.archiveiterator import ArchiveIterator
    except ImportError as error:
        raise ExtractionError(f"WARC files need warcio, received {error}: {NEEDED}") from error

    class Archive(ArchiveIterator):  # type: ignore[misc]
        INC_RECORD = ""  # it would print what is counted in `err_count`

        def _next_record(self, next_line: bytes | None) -> Any:  # noqa: ANN401
            try:
                return super()._next_record(next_line)
            except EOFError as error:  # which ends the iteration
                if next_line is None:
                    raise
                raise BrokenWarcError("the file is cut off in the head of a record") from error

    with open_unpacked(shard.url, shard.relative) as stream:
        yield _whole(Archive(_Checked(stream)))


def _whole(archive: Any) -> Iterator[Any]:  # noqa: ANN401 - of warcio, without types
    """Yield records, and raise if one is shorter or longer than it says."""
    while True:
        try:
            record = next(archive, None)
        except (BrokenWarcError, OSError):
            raise
        except Exception as error:  # whatever warcio raises for bytes that it does not expect
            raise BrokenWarcError(f"not a WARC file, or damaged: {error}") from error
        if archive.err_count:
            raise BrokenWarcError("the file is damaged: a record is longer than it says")
        if record is None:
            return
        if record.rec_headers.get_header("Content-Length") is None:
            raise BrokenWarcError("the file is damaged or cut off: a record does not say how long it is")
        yield record
        while record.raw_stream.read(2**16):
            pass
        if missing := getattr(record.raw_stream, "limit", 0):
            raise BrokenWarcError(f"the file is damaged or cut off: the last record lacks {missing:,} bytes")


def _row(record: Any, path: str, max_bytes: int) -> dict[str, Any] | str:  # noqa: ANN401 - of warcio, without types
    headers = record.rec_headers
    if record.http_headers is not None and record.http_headers.get_statuscode() != "200":
        return "http_error"
    try:
        content = record.content_stream().read(max_bytes + 1)
    except BrokenWarcError:
        raise
    except Exception:  # noqa: BLE001 - a page that its server packed in a wrong way
        return "broken_page"
    if len(content) > max_bytes:
        return "too_large"
    row: dict[str, Any] = {
        "id": headers.get_header("WARC-Record-ID"),
        "url": headers.get_header("WARC-Target-URI"),
        "date": headers.get_header("WARC-Date"),
        "file_path": path,
    }
    if record.rec_type == "conversion":  # a text already
        try:
            return {**row, "text": content.decode()}
        except UnicodeDecodeError:
            return "invalid_utf8"
    return {**row, "page": content} if _is_html(record, content) else "not_html"


def _is_html(record: Any, content: bytes) -> bool:  # noqa: ANN401
    """Return what the crawler found out, else what the server said, else whether the first bytes have its tag."""
    known = record.rec_headers.get_header("WARC-Identified-Payload-Type")
    if not known and record.http_headers is not None:
        known = (record.http_headers.get_header("Content-Type") or "").partition(";")[0]
    if known:
        return known.strip().lower() in HTML
    start = content[:FIRST_BYTES].lower()
    return b"<html" in start or b"<!doctype html" in start
