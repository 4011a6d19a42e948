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
        ('Text/HTML;CHARSET="KOI8-R"', ("text/html", "koi8-r")),
        ("text/html; charset='koi8-r'", ("text/html", "koi8-r")),
        ("text/html ; level=1; charset = koi8-r ; x=y", ("text/html", "koi8-r")),
        ("text/html charset=koi8-r", ("text/html", "koi8-r")),
        ("text/html; charset=; charset=koi8-r; charset=utf-8", ("text/html", "koi8-r")),
        ("text/html; charset=koi8-r,text/html", ("text/html", "koi8-r")),
        ("text/html; charset=koi8-r, text/html;charset=utf-8", ("text/html", "utf-8")),
        ("text/html; charset=koi8-r,application/xhtml+xml", ("application/xhtml+xml", "")),
        ("text/html,*/*", ("text/html", "")),
        ("charset=koi8-r", ("", "koi8-r")),
        ("html", ("", "")),
        ("", ("", "")),
    ],
)
def test_the_type_and_charset_are_those_of_the_last_header(headers, expected):
    assert content_type(headers) == expected


@pytest.mark.parametrize(
    ("coding", "form"),
    [("gzip", "gzip"), ("X-GZip", "gzip"), ("deflate", "zlib"), ("deflate", "raw"), ("br", "br"), ("zstd", "zstd")],
)
def test_a_body_is_unpacked(coding, form):
    assert of(PACKED[form], coding) == PAGE
    assert of(PACKED[form], f" {coding} ,identity") == PAGE
    assert of(chunked(PACKED[form]), coding, transfer="chunked") == PAGE
    assert of(chunked(PACKED[form]), transfer=f"{coding}, Chunked") == PAGE


def test_several_codings_are_undone_in_their_order():
    twice = pa.Codec("brotli").compress(PACKED["gzip"], asbytes=True)
    assert of(twice, "gzip, br") == PAGE
    assert of(gzip.compress(PACKED["gzip"]), "gzip, gzip") == PAGE


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "zstd", "gzip, br", "compress", "utf-8", "none", ""])
@pytest.mark.parametrize(
    "page", [PAGE, b"\n\n\n\n A line without a tag", "Žodis į kitą".encode(), "\ufeff<p>ž".encode("utf-16-le"), b""]
)
def test_a_body_that_the_crawler_unpacked_stays_as_it_is(coding, page):
    assert of(page, coding) == page
    assert of(page, coding, transfer="chunked") == page
    assert of(chunked(page), coding, transfer="chunked") == page


@pytest.mark.parametrize("form", ["gzip", "zlib", "br", "zstd"])
@pytest.mark.parametrize("coding", ["", "gzip", "deflate", "br", "zstd", "utf-8", "compress"])
def test_a_wrong_or_missing_name_does_no_harm(coding, form):
    assert of(PACKED[form], coding) == PAGE


@pytest.mark.parametrize("coding", ["compress", "dcb", "aes128gcm"])
def test_what_nothing_here_unpacks_is_named(coding):
    with pytest.raises(BodyError, match=f"^unknown_coding: {coding}$"):
        of(b"\x1f\x9d\x90" + bytes(range(256)), coding)


def test_arrow_without_a_codec_says_which_one(monkeypatch):
    monkeypatch.delitem(CODINGS, "br")
    with pytest.raises(BodyError, match=r"^unknown_coding: br$"):
        of(pa.Codec("brotli").compress(NOISE, asbytes=True), "br")


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "zstd"])
def test_a_damaged_body_is_an_error(coding):
    noise = bytearray(NOISE)
    noise[0] = 0xFF
    with pytest.raises(BodyError, match=r"^broken_page$"):
        of(bytes(noise), coding)
    with pytest.raises(BodyError, match=r"^broken_page$"):
        of(PACKED["gzip"][:40] + bytes(noise), "gzip")
    with pytest.raises(BodyError, match=r"^broken_page$"):
        of(chunked(PAGE).replace(b"\r\n64\r\n", b"\r\nzz\r\n", 3), transfer="chunked")


@pytest.mark.parametrize("coding", ["gzip", "zlib", "raw", "br"])
def test_a_body_that_is_cut_off_is_read_up_to_there(coding):
    page = PAGE + (NOISE * 10).hex().encode()
    form = {"gzip": gzip.compress, "zlib": lambda c: deflated(c, 15), "raw": lambda c: deflated(c, -15)}
    packed = form[coding](page) if coding in form else pa.Codec("brotli").compress(page, asbytes=True)
    found = of(packed[:-200], {"zlib": "deflate", "raw": "deflate"}.get(coding, coding))
    assert page.startswith(found)
    assert found.startswith(PAGE)


@pytest.mark.parametrize("cut", [1, 2, 4, 5, 6, 7, 8, 50])
def test_chunks_that_are_cut_off_are_read_up_to_there(cut):
    found = of(chunked(PAGE)[:-cut], transfer="chunked")
    assert PAGE.startswith(found)
    assert len(PAGE) - len(found) < 60


def test_chunks_may_have_extensions_trailers_and_bare_line_feeds():
    body = b"5;name=value\r\n<html\r\n000A  \r\n> and more\r\n0\r\nExpires: never\r\n\r\n"
    assert of(body, transfer="chunked") == b"<html> and more"
    assert of(body.replace(b"\r\n", b"\n"), transfer="chunked") == b"<html> and more"


def test_what_stands_after_the_end_is_left_out():
    assert of(PACKED["gzip"] + b"\r\n\r\n", "gzip") == PAGE
    assert of(PACKED["gzip"] + bytes(100), "gzip") == PAGE
    assert of(PACKED["gzip"] * 2, "gzip") == PAGE * 2


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "zstd"])
def test_a_small_body_that_unpacks_to_a_large_one_is_not_unpacked_whole(coding):
    large = bytes(2**26)
    packed = {
        "gzip": lambda: gzip.compress(large),
        "deflate": lambda: deflated(large, -15),
        "br": lambda: pa.Codec("brotli").compress(large, asbytes=True),
        "zstd": lambda: pa.Codec("zstd").compress(large, asbytes=True),
    }[coding]()
    assert MOST < len(of(packed, coding)) < 2 * MOST
