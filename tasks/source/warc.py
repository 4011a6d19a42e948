"""Read the pages of a WARC file: of a crawl (.warc.gz), or Common Crawl's texts (.warc.wet.gz), by warcio.

A row is a record of type `response`, `resource` or `conversion`. datatrove's reader is not used: it drops records
without a count, takes a file that is cut off for a whole one, and needs the system's libmagic. Nor is FastWARC, which
takes such a file for a whole one, too. Source of the format: ISO 28500,
https://iipc.github.io/warc-specifications/specifications/warc-format/warc-1.1/

Crawlers keep the headers of a server, and the body either as it came or unpacked: a body that is a text is taken as it
is. Sources: RFC 9110, section 8.4, RFC 9112, section 7.1.
"""

import codecs
import io
import re
import zlib
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any

import pyarrow as pa

from fineweb_mask.models.pages import CHARSET, FIRST_BYTES, check_extraction, codec_of
from fineweb_mask.models.urls import is_url
from fineweb_mask.tasks.source import opening
from fineweb_mask.tasks.source.discovery import SourceShard
from fineweb_mask.tasks.source.opening import BrokenFileError, open_unpacked

COLUMNS = pa.schema([(name, pa.string()) for name in ("text", "id", "url", "date", "file_path")])
ROW_TYPES = ("response", "resource", "conversion")
HTTP = ("", "application/http", "message/http")
HTML = ("text/html", "application/xhtml+xml")
UNKNOWN = ("", "unknown/unknown", "application/unknown")
"""Types that tell nothing: a tag is looked for."""
NO_TEXT = re.compile(rb"[\0-\x08\x0b\x0e-\x1a\x1c-\x1f]")
"""Bytes of no text: https://mimesniff.spec.whatwg.org/#binary-data-byte."""
CHUNK = re.compile(rb"(?:\r?\n)?([0-9a-f]{1,15})[ \t]*(?:;[^\n]*)?(?:\r?\n|\Z)", re.IGNORECASE)
"""The end of the chunk before, and the size of one."""
OF_ZLIB = {"gzip": [31], "deflate": [15, -15]}
"""Formats by their numbers in zlib; servers send `deflate` without a head, too, against the RFC."""
OF_ARROW = {"br": "brotli", "zstd": "zstd"}


class BodyError(ValueError):
    """A body cannot be read; the message is the reason by which it is counted."""


def warc_records(shard: SourceShard) -> Iterator[dict[str, Any] | str]:
    """Yield the rows: a dictionary of COLUMNS, or a problem.

    Instead of a `text`, an HTML page has the bytes of the `page` and the `charset` that its server named, or none.
    Problems are `too_large`, `not_html`, `http_error` for an answer other than 200, `broken_page`,
    `unknown_coding: ` and `unknown_charset: ` with its name, and for texts, which are UTF-8, `invalid_utf8`.

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
    with open_unpacked(shard.url) as stream:
        for record in _whole(Archive(stream, no_record_parse=True)):
            if record.rec_type in ROW_TYPES:
                try:
                    yield _row(record, path)
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


def _row(record: Any, path: str) -> dict[str, Any]:  # noqa: ANN401 - of warcio, without types
    head, max_bytes = record.rec_headers, opening.LARGEST_DOCUMENT
    row = {
        "id": head.get_header("WARC-Record-ID"),
        "url": head.get_header("WARC-Target-URI"),
        "date": head.get_header("WARC-Date"),
        "file_path": path,
    }
    block = body = record.raw_stream.read(2 * max_bytes)  # chunks take more than what they hold
    kind, charset = _content_type(head)
    is_text = record.rec_type == "conversion" and kind not in HTML
    codings = list[str]()
    if record.rec_type == "response" and (kind in HTTP or block.startswith(b"HTTP/")):
        body, answer = _answer(block)
        kind, charset = _content_type(answer)
        named = [*_values(answer, "content-encoding"), *_values(answer, "transfer-encoding")]
        codings = [name.partition(";")[0].strip().lower().removeprefix("x-") for name in named]
    if (found_out := head.get_header("WARC-Identified-Payload-Type")) and not is_text:  # by the crawler
        kind = found_out.partition(";")[0].strip().lower()
    if not is_text and kind not in HTML + UNKNOWN:
        raise BodyError("not_html")
    body = unpacked(body, codings, max_bytes)
    if len(body) > max_bytes or len(block) == 2 * max_bytes:
        raise BodyError("too_large")
    try:
        if is_text:
            return {**row, "text": body.decode()}
        codec_of(charset)
    except UnicodeDecodeError as error:
        raise BodyError("invalid_utf8") from error
    except LookupError as error:
        raise BodyError(f"unknown_charset: {charset[:20]}") from error
    start = body[:FIRST_BYTES].lower().replace(b"\0", b"")  # of UTF-16, too
    if kind in UNKNOWN and b"<html" not in start and b"<!doctype html" not in start:
        raise BodyError("not_html")
    return {**row, "page": body, "charset": charset}


def _values(headers: Any, name: str) -> list[str]:  # noqa: ANN401
    """Return the values of all headers of a name, which stand in several or with commas between them."""
    return ",".join(value for key, value in headers.headers if key.lower() == name).split(",")


def _content_type(headers: Any) -> tuple[str, str]:  # noqa: ANN401
    """Return the type and the charset that `Content-Type` names last, in lower case, or empty."""
    values = _values(headers, "content-type")
    kinds = [value.partition(";")[0].strip().split(" ")[0].lower() for value in values]
    charsets = CHARSET.findall(",".join(values))
    return next((kind for kind in reversed(kinds) if "/" in kind), ""), charsets[-1].lower() if charsets else ""


def _answer(block: bytes) -> tuple[bytes, Any]:
    """Return the body and the headers of a server's answer."""
    from warcio.statusandheaders import StatusAndHeadersParser

    stream = io.BytesIO(block)
    try:
        answer = StatusAndHeadersParser((), verify=False).parse(stream)
    except EOFError as error:  # an empty one
        raise BodyError("http_error") from error
    if not answer.statusline.startswith("200"):
        raise BodyError("http_error")
    return stream.read(), answer


def unpacked(body: bytes, codings: Sequence[str], most: int) -> bytes:
    """Return a body without its codings, in the order in which they were applied.

    Of one that is larger, at least one byte more is returned, but not all.

    Raises
    ------
    BodyError
        `broken_page`, or `unknown_coding: ` with its name.
    """
    for coding in reversed([name for name in codings if name not in {"", "identity"}]):
        if coding == "chunked":
            body = _joined(body)
        elif NO_TEXT.search(body, 0, FIRST_BYTES) and not body.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            body = _unpacked(body, coding, most)
    return body


def _unpacked(body: bytes, coding: str, most: int) -> bytes:
    for bits in OF_ZLIB.get(coding, []):
        found, rest = b"", body
        try:
            while rest and len(found) <= most:  # several streams, one after the other
                stream = zlib.decompressobj(bits)
                found += stream.decompress(rest, most + 1 - len(found))
                rest = stream.unused_data if stream.unused_data.startswith(b"\x1f\x8b") else b""
        except zlib.error:
            continue
        if found:
            return found
    if coding in OF_ARROW and pa.Codec.is_available(OF_ARROW[coding]):
        try:
            with pa.CompressedInputStream(pa.BufferReader(body), OF_ARROW[coding]) as unpacking:
                return bytes(unpacking.read(most + 1))
        except OSError as error:
            raise BodyError("broken_page") from error
    raise BodyError("broken_page" if coding in OF_ZLIB else f"unknown_coding: {coding[:20]}")


def _joined(body: bytes) -> bytes:
    """Return a body without the sizes of its chunks, as it is if it has none; one cut off, as far as it goes."""
    parts: list[bytes] = []
    place = 0
    while place < len(body) and (size := CHUNK.match(body, place)):
        place = size.end() + int(size[1], 16)
        if place == size.end():
            return b"".join(parts)
        parts.append(body[size.end() : place])
    if parts and body[place:].strip():
        raise BodyError("broken_page")
    return b"".join(parts) if parts else body
