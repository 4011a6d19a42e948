"""Extract the main text of a web page, without its menus, comments and markup, by trafilatura.

As FineWeb does (arXiv 2406.17557, section 3.2), with one difference: `deduplicate` is off. With it a paragraph is left
out if other pages had it before, so that a text would depend on the pages that happened to come before it in the same
process, and a file read again would give other documents.

Pages are decoded as browsers do (https://html.spec.whatwg.org/multipage/parsing.html#determining-the-character-encoding,
https://encoding.spec.whatwg.org/), but for what is wrong without doubt: bytes that are UTF-8 from the first to the last
are UTF-8, and an encoding in which most of the page's characters do not exist is not the page's.
"""

import codecs
import re
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec

from fineweb_mask.models.errors import ModelError

NEEDED = "pip install '.[warc]' in a checkout, or the packages of the extra `warc` in pyproject.toml"
CHARSET = re.compile(r"""charset\s*=\s*["']?\s*([^\s"';,]+)""", re.IGNORECASE)
"""A charset in the value of a header."""
IN_HEAD = re.compile(
    r"""<(meta|\?xml)\b[^>]*?\b(?:charset|encoding)\s*=\s*["']?\s*([^\s"';/>?]+)""", re.ASCII | re.IGNORECASE
)
"""The encoding that a tag of a page or its XML declaration names."""
NO_TAGS = re.compile(r"<!--.*?-->|<(script|style)\b.*?</\1", re.DOTALL | re.IGNORECASE)
"""Parts of a page in which a tag is not one."""
FIRST_BYTES, HEAD_BYTES = 2**10, 2**16
"""Bytes by which browsers tell a page's type and encoding before they read it, and as many as most heads have."""
MARKS = {
    codecs.BOM_UTF32_LE: "utf-32",  # before the mark of UTF-16, with which it begins
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
    codecs.BOM_UTF8: "utf-8-sig",
}
CODECS = {"gbk": "gb18030", "iso-2022-jp": "iso2022_jp_ext"}
"""Python's names for encodings that browsers take for a larger one."""
IN_TAGS = {"utf-16le": "utf-8", "utf-16be": "utf-8", "x-user-defined": "windows-1252"}
"""Encodings that a tag cannot mean, since it could not be read in them."""


class ExtractionError(ModelError):
    """What reads crawls is not installed."""


def check_extraction() -> None:
    """Check that what reads crawls is installed.

    Raises
    ------
    ExtractionError
        If it is not.
    """
    for package in ("warcio", "trafilatura", "webencodings"):
        if find_spec(package) is None:
            raise ExtractionError(f"WARC files need {package}, which is not installed: {NEEDED}")


def extract_text(page: bytes, charset: str = "") -> str | None:
    """Return the main text of an HTML page, or None if it has none.

    Parameters
    ----------
    page
        In any encoding.
    charset
        The encoding that the page's server named.

    Examples
    --------
    >>> page = "<html><nav>Menü</nav><article><p>" + "Ein schöner Satz der Seite. " * 20 + "</p></article></html>"
    >>> extract_text(page.encode("iso-8859-15"), "ISO-8859-15")[:27]
    'Ein schöner Satz der Seite.'
    """
    from trafilatura import extract

    text: str | None = extract(
        _decoded(page, charset) or page, favor_precision=True, include_comments=False, deduplicate=False
    )
    return text


def codec_of(label: str) -> codecs.CodecInfo | None:
    """Return the codec of the encoding that browsers know by a label, None if they know none.

    Raises
    ------
    LookupError
        If it is one that browsers refuse to decode, and Python has none.

    Examples
    --------
    >>> [codec_of(label).name for label in ("ISO-8859-1", "x-sjis", "gb2312")], codec_of("none")
    (['cp1252', 'cp932', 'gb18030'], None)
    """
    from webencodings import lookup

    if (encoding := lookup(label)) is None:
        return None
    if encoding.name == "replacement":
        return codecs.lookup(label)
    return codecs.lookup(CODECS[encoding.name]) if encoding.name in CODECS else encoding.codec_info


def _decoded(page: bytes, charset: str) -> str | None:
    """Return a page in the first encoding that may be its own; None if it has to be guessed."""
    for codec in _codecs(page, charset):
        text: str = codec.incrementaldecoder("replace").decode(page)  # what a page is cut off in is left out
        lost = text.count("\ufffd")
        is_wrong = lost and 2 * lost > len(text) - len(text.encode("ascii", "ignore"))
        if not is_wrong and ("utf-16" not in codec.name or "<" in text):  # any two bytes are a character of UTF-16
            return text
    return None


def _codecs(page: bytes, charset: str) -> Iterator[codecs.CodecInfo]:
    """Yield the codecs of the encodings that a page may be in, by who says so, most believed first."""
    if mark := next(filter(page.startswith, MARKS), None):
        yield codecs.lookup(MARKS[mark])
    if not page.isascii():
        with suppress(UnicodeDecodeError):
            codecs.getincrementaldecoder("utf-8")().decode(page)
            yield codecs.lookup("utf-8")
    if charset and (codec := codec_of(charset)):
        yield codec
    head = NO_TAGS.sub("", page[: FIRST_BYTES if page.isascii() else HEAD_BYTES].decode("latin-1"))
    found = sorted(IN_HEAD.findall(head), key=lambda one: one[0].startswith("?"))
    labels = (IN_TAGS.get(label.lower(), label) for _, label in found)
    yield from (codec for label in labels if (codec := codec_of(label)))
