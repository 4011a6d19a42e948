import gzip
import random
import re
import zlib
from pathlib import Path

import pyarrow as pa
import pytest

from fineweb_mask.models.settings import IngestSettings, SourceSettings
from fineweb_mask.tasks.ingest import ingest
from fineweb_mask.tasks.source import opening
from fineweb_mask.tasks.source.opening import BrokenFileError
from fineweb_mask.tasks.source.warc import BodyError, unpacked, warc_records
from fineweb_mask.tasks.storage.parquet import VerifiedFile
from fineweb_mask.tasks.workspace.job import BadShardError
from fineweb_mask.tasks.workspace.workspace import Workspace
from tests.tasks.jobs import ingest_job

pytest.importorskip("warcio")
pytest.importorskip("trafilatura")

from tests.tasks.source_files import discover
from tests.warc import Answer, page_of, record_bytes, warc_bytes


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(opening, "LARGEST_DOCUMENT", 2**20)


TEXT = "The tide is out, and the boats lie on the sand. Somebody has left a red bucket between them.\n" * 3


def shard_of(path: Path, content: bytes):
    path.write_bytes(content)
    [shard] = discover(SourceSettings(path=str(path)))
    return shard


def rows(path: Path, content: bytes):
    return list(warc_records(shard_of(path, content)))


@pytest.mark.parametrize("name", ["a.warc.gz", "a.warc"])
def test_a_page_has_its_url_id_date_and_file(tmp_path, name):
    [row] = rows(tmp_path / name, warc_bytes([Answer(page_of(TEXT), "https://a.org/b")], name.endswith(".gz")))
    own = {"id": f"<urn:uuid:{0:032x}>", "url": "https://a.org/b", "date": "2026-01-02T03:04:05Z", "file_path": name}
    assert row == {"page": page_of(TEXT), "charset": "utf-8"} | own


def answer_of(head: str, body: bytes, *more: str, content_type: str | None = "application/http; msgtype=response"):
    return record_bytes("response", head.replace("\n", "\r\n").encode() + b"\r\n\r\n" + body, content_type, *more)


def test_what_is_no_page_has_its_reason(tmp_path):
    packed = gzip.compress(page_of(TEXT))
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (packed[:50], packed[50:])) + b"0\r\n\r\n"
    zipped = (("Content-Type", "text/html"), ("Content-Encoding", "gzip"))
    answers = [
        (Answer(b"%PDF-1.7", payload="application/pdf"), "not_html"),
        (Answer(b"%PDF-1.7", headers=(("Content-Type", "application/pdf"),), payload=None), "not_html"),
        (Answer(page_of("gone"), status="404 Not Found"), "http_error"),
        (Answer(b"", status="301 Moved Permanently", headers=(("Location", "/"),)), "http_error"),
        (Answer(page_of("long " * 2**18)), "too_large"),
        (Answer(packed, headers=zipped), True),
        (Answer(chunks, headers=(*zipped, ("Transfer-Encoding", "chunked"))), True),
        (Answer(page_of(TEXT), headers=(), payload=None), True),
        (Answer(b"\x00\x01\x02", headers=(), payload=None), "not_html"),
    ]
    head = "HTTP/1.1 200 OK\nContent-Type: text/html; charset={}\nContent-Encoding: {}"
    records = [
        (answer_of(head.format("utf-8", "compress"), b"\x1f\x9d\x90" + bytes(100)), "unknown_coding: compress"),
        (answer_of(head.format("iso-2022-cn", "identity"), b"<p>page</p>"), "unknown_charset: iso-2022-cn"),
        (answer_of(head.format("utf-8", "gzip"), gzip.compress(bytes(1000))[:10] + b"\xff" * 100), "broken_page"),
        (answer_of(head.format("utf-8", "gzip"), gzip.compress(bytes(2**21))), "too_large"),
        (answer_of(head.format("utf-8", "identity"), bytes(2**22)), "too_large"),
        (answer_of("HTTP/1.1 200 OK\nContent-Type: video/mp4", bytes(2**22)), "not_html"),
    ]
    content = warc_bytes((answer for answer, _ in answers), False) + b"".join(record for record, _ in records)
    expected = [reason for _, reason in (*answers, *records)]
    found = rows(tmp_path / "a.warc", content)
    assert [row if isinstance(row, str) else row["page"] == page_of(TEXT) for row in found] == expected


def test_extracted_texts_are_utf8_and_taken_as_they_are(tmp_path):
    wrong = record_bytes("conversion", "Grüße".encode("cp1252"), "text/plain")
    found = rows(tmp_path / "a.warc.wet", warc_bytes([], False, texts=["Grüße", "Two\nlines"]) + wrong)
    assert [row if isinstance(row, str) else row["text"] for row in found] == ["Grüße", "Two\nlines", "invalid_utf8"]
    assert found[1]["url"] == "https://example.org/1"


@pytest.mark.parametrize(
    "head",
    [
        "HTTP/1.1 200 OK\nContent-Type: text/html; charset=koi8-r",
        "HTTP/1.0 200 \nCONTENT-TYPE : text/html;charset='koi8-r'",
        "HTTP/2 200\nContent-Type: text/html;\n charset=koi8-r",
        "HTTP/2.0 200 OK\nContent-Type: text/html; charset=koi8-r\nContent-Type: text/html",
        "HTTP/1.1 200\nContent-Type: text/html; charset=koi8-r\nContent-Length: 99999\nContent-Encoding: gzip",
        "HTTP/1.1 200 OK\nContent-Type: text/html; charset=koi8-r\nTransfer-Encoding: Chunked\nContent-Encoding: gzip",
    ],
)
@pytest.mark.parametrize("content_type", ["application/http; msgtype=response", None, "text/html"])
def test_a_page_has_the_charset_that_its_server_named(tmp_path, head, content_type):
    page = "<p>ещё этих мягких французских булок</p>".encode("koi8-r")
    for more in ((), ("WARC-Truncated: length",), ("WARC-Identified-Payload-Type: text/html",)):
        record = answer_of(head, page, *more, content_type=content_type)
        [row] = rows(tmp_path / "a.warc", record.replace(b"https://", b"https://" if more else b"HTTPS://"))
        assert (row["page"], row["charset"]) == (page, "koi8-r")


def test_pages_without_http_have_the_charset_of_their_record(tmp_path):
    page, http = page_of(TEXT), "application/http; msgtype=response"
    records = [
        (record_bytes("resource", page, "text/html; charset=koi8-r"), "koi8-r"),
        (record_bytes("conversion", page, "application/xhtml+xml; charset=KOI8-R"), "koi8-r"),
        (record_bytes("response", page, "text/html; charset=koi8-r"), "koi8-r"),
        (record_bytes("resource", b"\xff\xfe" + page.decode().encode("utf-16-le"), None), ""),
        (record_bytes("resource", b"{}", "application/json"), "not_html"),
        (record_bytes("resource", b"a text", "text/plain"), "not_html"),
        (record_bytes("revisit", b"HTTP/1.1 200 OK\r\n\r\n", http), None),
        (record_bytes("metadata", b"a: b", "application/warc-fields"), None),
        (record_bytes("response", b"", http), "http_error"),
        (answer_of("HTTP/1.1 200 OK\nContent-Type: unknown/unknown", page), ""),
        (answer_of("HTTP/1.1 204 No Content\nContent-Type: text/html", b""), "http_error"),
    ]
    shard = shard_of(tmp_path / "a.warc", b"".join(record for record, _ in records))
    found = [row if isinstance(row, str) else row["charset"] for row in warc_records(shard)]
    assert found == [expected for _, expected in records if expected is not None]


PAGE = b"<html><body><p>The tide is out, and the boats lie on the sand.</p></body></html>" * 20
NOISE = b"\xff" + random.Random(0).randbytes(2000)


def deflated(content, bits):
    stream = zlib.compressobj(wbits=bits)
    return stream.compress(content) + stream.flush()


PACK = {
    "gzip": gzip.compress,
    "deflate": lambda content: deflated(content, 15),
    "raw": lambda content: deflated(content, -15),
    "br": lambda content: pa.Codec("brotli").compress(content, asbytes=True),
    "zstd": lambda content: pa.Codec("zstd").compress(content, asbytes=True),
}


def chunked(content, size=100, end=b"0\r\n\r\n"):
    pieces = (content[start : start + size] for start in range(0, len(content), size))
    return b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + end


@pytest.mark.parametrize("form", PACK)
def test_a_body_is_unpacked_not_whole_if_it_is_large_and_left_if_the_crawler_unpacked_it(form):
    coding = "deflate" if form == "raw" else form
    assert unpacked(PACK[form](PAGE), [coding, "identity", ""], 2**20) == PAGE
    assert unpacked(chunked(PACK[form](PAGE)), [coding, "chunked"], 2**20) == PAGE
    assert 2**20 < len(unpacked(PACK[form](bytes(2**24)), [coding], 2**20)) < 2**21
    for page in (PAGE, b"\n\n A line without a tag", "\ufeff<p>ž".encode("utf-16-le"), b""):
        assert unpacked(page, [coding, "chunked"], 2**20) == unpacked(chunked(page), [coding, "chunked"], 2**20) == page
    with pytest.raises(BodyError, match=r"^broken_page$"):
        unpacked(NOISE, [coding], 2**20)


def test_several_codings_are_undone_in_their_order_and_several_streams_are_one_body():
    assert unpacked(PACK["br"](PACK["gzip"](PAGE)), ["gzip", "br"], 2**20) == PAGE
    assert unpacked(PACK["gzip"](PAGE) * 2 + bytes(9), ["gzip"], 2**20) == PAGE * 2


@pytest.mark.parametrize("cut", [1, 5, 6, 8, 50])
def test_what_is_cut_off_is_read_up_to_there(cut):
    found = unpacked(chunked(PAGE)[:-cut], ["chunked"], 2**20)
    assert PAGE.startswith(found)
    assert len(PAGE) - len(found) < 60
    page = PAGE + NOISE.hex().encode()
    assert page.startswith(unpacked(gzip.compress(page)[:-200], ["gzip"], 2**20))


def test_chunks_may_have_extensions_trailers_and_bare_line_feeds_and_damaged_ones_are_an_error():
    body = b"5;name=value\r\n<html\r\n000A  \r\n> and more\r\n0\r\nExpires: never\r\n\r\n"
    for one in (body, body.replace(b"\r\n", b"\n")):
        assert unpacked(one, ["chunked"], 2**20) == b"<html> and more"
    with pytest.raises(BodyError, match=r"^broken_page$"):
        unpacked(chunked(PAGE).replace(b"\r\n64\r\n", b"\r\nzz\r\n", 3), ["chunked"], 2**20)


WHOLE = {packed: warc_bytes([Answer(page_of(TEXT))] * 3, packed) for packed in (True, False)}


@pytest.mark.parametrize(
    "content",
    [
        *(whole[: int(share * len(whole))] for whole in WHOLE.values() for share in (0.2, 0.9, 0.99)),
        b"text\n" * 100,
        WHOLE[False].replace(b"Content-Length: ", b"Content-Length: x", 2),
        WHOLE[False].replace(b"Content-Length: ", b"Content-Length: 9"),
        WHOLE[False].replace(b"WARC/1.0", b"WARD/1.0"),
    ],
    ids=[*(f"cut off {number}" for number in range(6)), "text", "no number", "too long", "another format"],
)
def test_what_is_cut_off_or_no_warc_file_is_an_error(tmp_path, content):
    with pytest.raises(BrokenFileError):
        rows(tmp_path / "a.warc", content)


def test_a_crawl_becomes_documents_and_every_row_has_its_reason(tmp_path):
    texts = [re.sub("red", f"red {number}", TEXT) for number in range(12)]
    answers = [Answer(page_of(text), f"https://a.org/{number}") for number, text in enumerate(texts)]
    answers[3:3] = [Answer(b"%PDF", payload="application/pdf"), Answer(b"<html><body></body></html>")]
    encoded = {
        "windows-1257": "Šiandien oras gražus, todėl eisime pasivaikščioti į parką prie upės.",
        "shift_jis": "今日は天気がいいので、公園へ散歩に行きました。そこで古い友達に会いました。",
    }
    for charset, text in encoded.items():
        page = f"<html><body><article><p>{text} {text}</p><p>{text}</p></article></body></html>".encode(charset)
        answers.append(Answer(page, headers=(("Content-Type", f"text/html; charset={charset}"),), payload=None))
    source = SourceSettings(path=str(tmp_path / "crawl"))
    (tmp_path / "crawl").mkdir()
    (tmp_path / "crawl" / "CC-1.warc.gz").write_bytes(warc_bytes(answers))
    (tmp_path / "crawl" / "CC-2.warc.gz").write_bytes(warc_bytes(answers)[:-100])
    good, cut = discover(source)
    workspace = Workspace(tmp_path / "workspace")
    file = ingest(ingest_job(workspace, good, source, IngestSettings(min_chars=50)))
    assert (file.rows, file.details["rows_in"]) == (14, 16)
    assert file.details["dropped"] == {"no_text": 1, "not_html": 1}
    with VerifiedFile(workspace.resolve(file)) as documents:
        table = documents.read().to_pylist()
    assert [row["source_row"] for row in table] == [0, 1, 2, *range(5, 16)]
    for row, text in zip(table, texts, strict=False):
        assert row["text"].split("\n")[1:] == text.strip().split("\n")  # after the title
        assert "Contact us" not in row["text"]
        assert "cookies" not in row["text"]
    assert all(text in row["text"] for row, text in zip(table[12:], encoded.values(), strict=True))
    assert table[4]["url"] == "https://a.org/4"
    with pytest.raises(BadShardError, match=r"CC-2.warc.gz.*cut off"):
        ingest(ingest_job(workspace, cut, source, IngestSettings(min_chars=50)))
