"""Read what HTTP says about a body: its type and charset, and what it was packed in on its way.

Crawlers keep the headers of a server, and the body either as it came or unpacked; servers name what they do not do. So
what cannot be unpacked and is a text is taken as it is. Sources: RFC 9110, section 8.4, RFC 9112, section 7.1, and
https://fetch.spec.whatwg.org/#concept-header-extract-mime-type.
"""

import re
import zlib
from collections.abc import Callable, Iterable
from functools import lru_cache, partial

import pyarrow as pa

from fineweb_mask.models.pages import CHARSET, FIRST_BYTES

NO_TEXT = re.compile(rb"[\0-\x08\x0b\x0e-\x1a\x1c-\x1f]")
"""Bytes of no text: https://mimesniff.spec.whatwg.org/#binary-data-byte."""
UTF_16 = (b"\xff\xfe", b"\xfe\xff")
CHUNK = re.compile(rb"(?:\r?\n)?([0-9a-f]{1,15})[ \t]*(?:;[^\n]*)?(?:\r?\n|\Z)", re.IGNORECASE)
"""The end of the chunk before, and the size of one."""
PIECE = 512
"""Bytes that are unpacked at a time: of a stream that is cut off, as many may be lost."""
MEMBERS = 100
"""Most streams, one after the other, in one body."""


class BodyError(ValueError):
    """A body cannot be read; the message is the reason by which it is counted."""


@lru_cache(2**10)
def content_type(values: str) -> tuple[str, str]:
    """Return the type and charset that `Content-Type` names, in lower case, or empty.

    Of several, with commas between them, the last counts; the charset may stand in one before it of the same type.

    Examples
    --------
    >>> content_type('Text/HTML; Charset="Shift_JIS", text/html'), content_type("text/html;charset=a, text/plain")
    (('text/html', 'shift_jis'), ('text/plain', ''))
    """
    kind = charset = ""
    for value in values.split(","):
        named = value.strip().partition(";")[0].split(" ")[0].lower()
        if "/" in named and named != "*/*":
            charset = charset if named == kind else ""
            kind = named
        charset = found[1].lower() if (found := CHARSET.search(value)) else charset
    return kind, charset


def unpacked(body: bytes, content: str, transfer: str, most: int) -> bytes:
    """Return a body without what its headers `Content-Encoding` and `Transfer-Encoding` name.

    A body that is cut off is returned as far as it goes.

    Parameters
    ----------
    body
        As it was kept.
    content, transfer
        The values of the headers, with commas between them.
    most
        If the body is larger, at least one byte more is returned, but not all.

    Raises
    ------
    BodyError
        `broken_page`, or `unknown_coding: ` with its name.
    """
    named = [name.partition(";")[0].strip().lower() for name in f"{content},{transfer}".split(",")]
    if "chunked" in named:
        body = _joined(body)
    codings = [name.removeprefix("x-") for name in reversed(named) if name not in {"", "chunked", "identity"}]
    for coding in [*codings, ""]:  # in the end, what no header names
        found = CODINGS[coding](body, most) if coding in CODINGS else None
        if found is None and _is_packed(body):
            others = (unpack(body, most) for name, unpack in CODINGS.items() if name != "deflate")
            found = next((other for other in others if other and b"<" in other and not _is_packed(other)), None)
            if found is None and coding:
                raise BodyError("broken_page" if coding in CODINGS else f"unknown_coding: {coding[:20]}")
        body = body if found is None else found
    return body


def _is_packed(body: bytes) -> bool:
    return not body.startswith(UTF_16) and NO_TEXT.search(body, 0, FIRST_BYTES) is not None


def _joined(body: bytes) -> bytes:
    """Return a body without the sizes of its chunks, as it is if it has none."""
    parts: list[bytes] = []
    place = 0
    while place < len(body) and (size := CHUNK.match(body, place)):
        place = size.end() + int(size[1], 16)
        if place == size.end():
            return b"".join(parts)
        parts.append(body[size.end() : place])
    if parts and body[place:].strip():  # more than the end of a chunk, after which it is cut off
        raise BodyError("broken_page")
    return b"".join(parts) if parts else body


def _inflated(formats: Iterable[int], body: bytes, most: int) -> bytes | None:
    """Unpack by zlib, in one of its formats; what stands after the end is left out."""
    for bits in formats:
        found, rest = b"", body
        try:
            for _ in range(MEMBERS):
                stream = zlib.decompressobj(bits)
                found += stream.decompress(rest, most + 1 - len(found))
                rest = stream.unused_data
                if not rest or len(found) > most:
                    break
        except zlib.error:
            if not found:
                continue
        return found
    return None


def _by_arrow(name: str, body: bytes, most: int) -> bytes | None:
    found = bytearray()
    with pa.CompressedInputStream(pa.BufferReader(body), name) as stream:
        try:
            while len(found) <= most and (piece := stream.read(PIECE)):
                found += piece
        except OSError as error:
            if "Truncated" not in str(error) or not found:
                return None
    return bytes(found)


CODINGS: dict[str, Callable[[bytes, int], bytes | None]] = {
    "gzip": partial(_inflated, [47]),  # zlib's number for its own format, too
    "deflate": partial(_inflated, [47, -15]),  # and for one without a head, which servers send against the RFC
    **{
        coding: partial(_by_arrow, name)
        for coding, name in {"br": "brotli", "zstd": "zstd"}.items()
        if pa.Codec.is_available(name)
    },
}
"""Functions of a body and the most bytes to return; None if it is not packed so, or damaged."""
