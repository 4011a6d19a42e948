import gzip
import random
import zlib

import pyarrow as pa
import pytest

from fineweb_mask.tasks.source.http_body import CODINGS, BodyError, content_type, unpacked

PAGE = b"<html><body><p>The tide is out, and the boats lie on the sand.</p></body></html>" * 20
MOST = 2**20
NOISE = random.Random(0).randbytes(2000)


def deflated(content, bits):
    stream = zlib.compressobj(wbits=bits)
    return stream.compress(content) + stream.flush()


PACKED = {
    "gzip": gzip.compress(PAGE),
    "zlib": deflated(PAGE, 15),
    "raw": deflated(PAGE, -15),
    "br": pa.Codec("brotli").compress(PAGE, asbytes=True),
    "zstd": pa.Codec("zstd").compress(PAGE, asbytes=True),
}


def chunked(content, size=100, end=b"0\r\n\r\n"):
    pieces = (content[start : start + size] for start in range(0, len(content), size))
    return b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + end


def of(body, content="", transfer=""):
    return unpacked(body, content, transfer, MOST)


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ("text/html; charset=koi8-r", ("text/html", "koi8-r")),
        ("text/html; charset='koi8-r'", ("text/html", "koi8-r")),
        ("text/html ; level=1; charset = koi8-r ; x=y", ("text/html", "koi8-r")),
        ("text/html; charset=; charset=koi8-r; charset=utf-8", ("text/html", "koi8-r")),
        ("text/html; charset=koi8-r,text/html", ("text/html", "koi8-r")),
        ("text/html; charset=koi8-r, text/html;charset=utf-8", ("text/html", "utf-8")),
        ("text/html; charset=koi8-r,application/xhtml+xml", ("application/xhtml+xml", "")),
        ("charset=koi8-r", ("", "koi8-r")),
        ("", ("", "")),
    ],
)
def test_the_type_and_charset_are_those_of_the_last_header(headers, expected):
    assert content_type(headers) == expected


@pytest.mark.parametrize(
    ("coding", "form"),
    [("X-GZip", "gzip"), ("deflate", "zlib"), ("deflate", "raw"), ("br", "br"), ("zstd", "zstd")],
)
def test_a_body_is_unpacked(coding, form):
    assert of(PACKED[form], coding) == PAGE
    assert of(PACKED[form], f" {coding} ,identity") == PAGE
    assert of(chunked(PACKED[form]), coding, transfer="chunked") == PAGE
    assert of(chunked(PACKED[form]), transfer=f"{coding}, Chunked") == PAGE


def test_several_codings_are_undone_in_their_order():
    assert of(pa.Codec("brotli").compress(PACKED["gzip"], asbytes=True), "gzip, br") == PAGE


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "zstd", "gzip, br", "compress", ""])
def test_a_body_that_the_crawler_unpacked_stays_as_it_is(coding):
    for page in (PAGE, b"\n\n\n\n A line without a tag", "\ufeff<p>ž".encode("utf-16-le"), b""):
        assert of(page, coding) == page
        assert of(page, coding, transfer="chunked") == page
        assert of(chunked(page), coding, transfer="chunked") == page


@pytest.mark.parametrize("form", ["gzip", "zlib", "br", "zstd"])
def test_a_wrong_or_missing_name_does_no_harm(form):
    for coding in ("", "gzip", "deflate", "br", "zstd", "utf-8", "compress"):
        assert of(PACKED[form], coding) == PAGE


def test_what_nothing_here_unpacks_is_named(monkeypatch):
    with pytest.raises(BodyError, match=r"^unknown_coding: compress$"):
        of(b"\x1f\x9d\x90" + bytes(range(256)), "compress")
    monkeypatch.delitem(CODINGS, "br")  # of Arrow, which may be built without
    with pytest.raises(BodyError, match=r"^unknown_coding: br$"):
        of(pa.Codec("brotli").compress(NOISE, asbytes=True), "br")


@pytest.mark.parametrize(
    ("body", "coding", "transfer"),
    [
        *((b"\xff" + NOISE, coding, "") for coding in ("gzip", "deflate", "br", "zstd")),
        (PACKED["gzip"][:40] + b"\xff" + NOISE, "gzip", ""),
        (chunked(PAGE).replace(b"\r\n64\r\n", b"\r\nzz\r\n", 3), "", "chunked"),
    ],
    ids=["gzip", "deflate", "br", "zstd", "within", "chunks"],
)
def test_a_damaged_body_is_an_error(body, coding, transfer):
    with pytest.raises(BodyError, match=r"^broken_page$"):
        of(body, coding, transfer)


PACK = {
    "gzip": gzip.compress,
    "deflate": lambda content: deflated(content, -15),
    "br": lambda content: pa.Codec("brotli").compress(content, asbytes=True),
    "zstd": lambda content: pa.Codec("zstd").compress(content, asbytes=True),
}


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br"])
def test_a_body_that_is_cut_off_is_read_up_to_there(coding):
    page = PAGE + (NOISE * 10).hex().encode()
    found = of(PACK[coding](page)[:-200], coding)
    assert page.startswith(found)
    assert found.startswith(PAGE)


@pytest.mark.parametrize("cut", [1, 5, 6, 8, 50])
def test_chunks_that_are_cut_off_are_read_up_to_there(cut):
    found = of(chunked(PAGE)[:-cut], transfer="chunked")
    assert PAGE.startswith(found)
    assert len(PAGE) - len(found) < 60


def test_chunks_may_have_extensions_trailers_and_bare_line_feeds():
    body = b"5;name=value\r\n<html\r\n000A  \r\n> and more\r\n0\r\nExpires: never\r\n\r\n"
    assert of(body, transfer="chunked") == b"<html> and more"
    assert of(body.replace(b"\r\n", b"\n"), transfer="chunked") == b"<html> and more"


def test_what_stands_after_the_end_is_left_out():
    assert of(PACKED["gzip"] + bytes(100), "gzip") == PAGE
    assert of(PACKED["gzip"] * 2, "gzip") == PAGE * 2


@pytest.mark.parametrize("coding", PACK)
def test_a_small_body_that_unpacks_to_a_large_one_is_not_unpacked_whole(coding):
    assert MOST < len(of(PACK[coding](bytes(2**24)), coding)) < 2 * MOST
