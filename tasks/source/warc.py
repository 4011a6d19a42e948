"""Read the pages of a WARC file: of a crawl (.warc.gz), or Common Crawl's texts (.warc.wet.gz), by warcio.

A row is a record of type `response`, `resource` or `conversion`. datatrove's reader is not used: it drops records
without a count, takes a file that is cut off for a whole one, and needs the system's libmagic. Nor is FastWARC, which
takes such a file for a whole one, too. Source of the format: ISO 28500,
https://iipc.github.io/warc-specifications/specifications/warc-format/warc-1.1/
"""

import codecs
import io
from collections.abc import Iterator
from itertools import count
from typing import Any

import pyarrow as pa

from fineweb_mask.models.pages import FIRST_BYTES, check_extraction, codec_of, codec_of_mark
from fineweb_mask.models.urls import is_url
from fineweb_mask.tasks.source.discovery import SourceShard
from fineweb_mask.tasks.source.http_body import BodyError, content_type, unpacked
from fineweb_mask.tasks.source.opening import BrokenFileError, open_unpacked

COLUMNS = pa.schema([(name, pa.string()) for name in ("text", "id", "url", "date", "file_path")])
ROW_TYPES = ("response", "resource", "conversion")
HTTP = ("", "application/http", "message/http")
HTML = ("text/html", "application/xhtml+xml")
UNKNOWN = ("", "unknown/unknown", "application/unknown")
"""Types that tell nothing: a tag is looked for."""


def warc_records(shard: SourceShard, max_bytes: int) -> Iterator[dict[str, Any] | str]:
    """Yield the rows: a dictionary of COLUMNS, or a problem.

    Instead of a `text`, an HTML page has the bytes of the `page` and the `charset` that its server named, or none.
    Problems are `too_large`, `not_html`, `http_error` for an answer other than 200, those of `unpacked`,
    `unknown_charset: ` with its name, and for texts `invalid_utf8` and `wrong_charset`.

    Raises
    ------
    BrokenFileError
        If the file is damaged or cut off.
    ExtractionError
        If what reads crawls is not installed.
    """
    check_extraction()
    from warcio.archiveiterator import ArchiveIterator

    class Archive(ArchiveIterator):  # type: ignore[misc]
        INC_RECORD = ""  # it would print what is counted in `err_count`

        def _next_record(self, next_line: bytes | None) -> Any:  # noqa: ANN401
            try:
                return super()._next_record(next_line)
            except EOFError as error:  # which ends the iteration
                if next_line is None:
                    raise
                raise BrokenFileError("the file is cut off in the head of a record") from error

    path = shard.url if is_url(shard.url) and not shard.url.startswith("file:") else shard.relative
    with open_unpacked(shard.url, shard.relative) as stream:
        for record in _whole(Archive(stream, no_record_parse=True)):
            if record.rec_type in ROW_TYPES:
                try:
                    yield _row(record, path, max_bytes)
                except BodyError as error:
                    yield str(error)


def _whole(archive: Any) -> Iterator[Any]:  # noqa: ANN401 - of warcio, without types
    """Yield records, and raise if one is shorter or longer than it says."""
    for number in count():
        try:
            record = next(archive, None)
        except (BrokenFileError, OSError):
            raise
        except Exception as error:  # whatever warcio raises for bytes that it does not expect
            raise BrokenFileError(f"not a WARC file, or damaged: {error}") from error
        if archive.err_count:
            raise BrokenFileError("the file is damaged: a record is longer than it says")
        if record is None and not number:
            raise BrokenFileError("the file has no whole record: it is cut off")
        if record is None:
            return
        if record.rec_headers.get_header("Content-Length") is None:
            raise BrokenFileError("the file is damaged or cut off: a record does not say how long it is")
        yield record
        while record.raw_stream.read(2**16):
            pass
        if missing := getattr(record.raw_stream, "limit", 0):
            raise BrokenFileError(f"the file is damaged or cut off: the last record lacks {missing:,} bytes")


def _row(record: Any, path: str, max_bytes: int) -> dict[str, Any]:  # noqa: ANN401 - of warcio, without types
    headers = _by_name(record.rec_headers)
    row = {
        "id": headers.get("warc-record-id"),
        "url": headers.get("warc-target-uri"),
        "date": headers.get("warc-date"),
        "file_path": path,
    }
    block = body = record.raw_stream.read(2 * max_bytes)  # chunks take more than what they hold
    kind, charset = content_type(headers.get("content-type", ""))
    content = transfer = ""
    if record.rec_type == "response" and (kind in HTTP or block.startswith(b"HTTP/")):
        body, answer = _answer(block)
        kind, charset = content_type(answer.get("content-type", ""))
        content, transfer = answer.get("content-encoding", ""), answer.get("transfer-encoding", "")
    kind = content_type(headers.get("warc-identified-payload-type", ""))[0] or kind  # what the crawler found out
    is_text = record.rec_type == "conversion" and kind not in HTML
    if not is_text:
        if kind not in HTML + UNKNOWN:
            raise BodyError("not_html")
        body = unpacked(body, content, transfer, max_bytes)
    if len(body) > max_bytes or len(block) == 2 * max_bytes:
        raise BodyError("too_large")
    codec = _codec(body, charset)
    if is_text:
        try:
            return {**row, "text": codec.decode(body)[0]}
        except UnicodeDecodeError as error:
            raise BodyError("invalid_utf8" if error.encoding == "utf-8" else "wrong_charset") from error
    start = body[:FIRST_BYTES].lower().replace(b"\0", b"")  # of UTF-16, too
    if kind in UNKNOWN and b"<html" not in start and b"<!doctype html" not in start:
        raise BodyError("not_html")
    return {**row, "page": body, "charset": charset}


def _by_name(headers: Any) -> dict[str, str]:  # noqa: ANN401
    """Return the values by name in lower case, those of the same name with commas between them."""
    found: dict[str, str] = {}
    for name, value in headers.headers:
        key = name.lower()
        found[key] = f"{found[key]},{value}" if key in found else value
    return found


def _answer(block: bytes) -> tuple[bytes, dict[str, str]]:
    """Return the body and the headers of a server's answer."""
    from warcio.statusandheaders import StatusAndHeadersParser

    stream = io.BytesIO(block)
    try:
        answer = StatusAndHeadersParser((), verify=False).parse(stream)
    except EOFError as error:  # an empty one
        raise BodyError("http_error") from error
    if not answer.statusline.startswith("200"):
        raise BodyError("http_error")
    return stream.read(), _by_name(answer)


def _codec(body: bytes, charset: str) -> codecs.CodecInfo:
    try:
        return codec_of_mark(body) or codec_of(charset) or codecs.lookup("utf-8")
    except LookupError as error:
        raise BodyError(f"unknown_charset: {charset[:20]}") from error
