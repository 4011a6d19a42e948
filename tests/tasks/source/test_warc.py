import gzip
import re
from pathlib import Path

import pytest

from fineweb_mask.models.settings import IngestSettings, SourceSettings
from fineweb_mask.tasks.ingest import ingest
from fineweb_mask.tasks.source.discovery import discover
from fineweb_mask.tasks.source.warc import BrokenWarcError, count_rows, warc_records
from fineweb_mask.tasks.storage.parquet import VerifiedFile
from fineweb_mask.tasks.workspace.job import BadShardError
from fineweb_mask.tasks.workspace.workspace import Workspace
from tests.tasks.jobs import ingest_job

pytest.importorskip("warcio")
pytest.importorskip("trafilatura")

from tests.warc import Answer, page_of, warc_bytes

TEXT = "The tide is out, and the boats lie on the sand. Somebody has left a red bucket between them.\n" * 3


def shard_of(path: Path, content: bytes):
    path.write_bytes(content)
    [shard] = discover(SourceSettings(path=str(path)))
    return shard


def rows(path: Path, content: bytes, most: int = 2**20):
    return list(warc_records(shard_of(path, content), most))


@pytest.mark.parametrize("name", ["a.warc.gz", "a.warc"])
def test_a_page_has_its_url_id_date_and_file(tmp_path, name):
    [row] = rows(tmp_path / name, warc_bytes([Answer(page_of(TEXT), "https://a.org/b")], name.endswith(".gz")))
    assert row == {
        "page": page_of(TEXT),
        "id": f"<urn:uuid:{0:032x}>",
        "url": "https://a.org/b",
        "date": "2026-01-02T03:04:05Z",
        "file_path": name,
    }


def test_what_is_no_page_has_its_reason(tmp_path):
    packed = gzip.compress(page_of(TEXT))
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (packed[:50], packed[50:])) + b"0\r\n\r\n"
    html = ("Content-Type", "text/html")
    answers = [
        Answer(b"%PDF-1.7", payload="application/pdf"),
        Answer(b"%PDF-1.7", headers=(("Content-Type", "application/pdf"),), payload=None),
        Answer(page_of("gone"), status="404 Not Found"),
        Answer(b"", status="301 Moved Permanently", headers=(("Location", "/"),)),
        Answer(page_of("long " * 2**18)),
        Answer(packed, headers=(html, ("Content-Encoding", "gzip"))),
        Answer(chunks, headers=(html, ("Content-Encoding", "gzip"), ("Transfer-Encoding", "chunked"))),
        Answer(page_of(TEXT), headers=(), payload=None),
        Answer(b"\x00\x01\x02", headers=(), payload=None),
        Answer(page_of(TEXT), headers=(("Content-Type", "application/xhtml+xml; charset=utf-8"),), payload=None),
        Answer(gzip.compress(b"<html>" + b" " * 2**22), headers=(html, ("Content-Encoding", "gzip"))),
    ]
    found = rows(tmp_path / "a.warc.gz", warc_bytes(answers))
    assert [row if isinstance(row, str) else row["page"] == page_of(TEXT) for row in found] == [
        "not_html",
        "not_html",
        "http_error",
        "http_error",
        "too_large",
        True,
        True,
        True,
        "not_html",
        True,
        "too_large",
    ]
    assert count_rows(shard_of(tmp_path / "a.warc.gz", warc_bytes(answers))) == len(answers)


def test_extracted_texts_are_taken_as_they_are(tmp_path):
    found = rows(tmp_path / "a.warc.wet.gz", warc_bytes([], texts=["Grüße", "Two\nlines"]))
    assert [row["text"] for row in found] == ["Grüße", "Two\nlines"]
    assert found[1]["url"] == "https://example.org/1"


WHOLE = {packed: warc_bytes([Answer(page_of(TEXT))] * 3, packed) for packed in (True, False)}


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("share", [0.2, 0.5, 0.9, 0.99])
def test_a_file_that_is_cut_off_is_an_error(tmp_path, packed, share):
    content = WHOLE[packed][: int(share * len(WHOLE[packed]))]
    shard = shard_of(tmp_path / f"a.warc{'.gz' if packed else ''}", content)
    with pytest.raises(BrokenWarcError):
        count_rows(shard)


@pytest.mark.parametrize(
    "content",
    [
        b"text\n" * 100,
        bytes(1000),
        WHOLE[False].replace(b"Content-Length: ", b"Content-Length: x", 2),
        WHOLE[False].replace(b"Content-Length: ", b"Content-Length: 9"),
        WHOLE[False].replace(b"WARC/1.0", b"WARD/1.0"),
    ],
    ids=["text", "zeros", "no number", "too long", "another format"],
)
def test_what_is_no_warc_file_is_an_error(tmp_path, content):
    with pytest.raises(BrokenWarcError):
        count_rows(shard_of(tmp_path / "a.warc", content))


def test_a_crawl_becomes_documents_and_every_row_has_its_reason(tmp_path):
    texts = [re.sub("red", f"red {number}", TEXT) for number in range(12)]
    answers = [Answer(page_of(text), f"https://a.org/{number}") for number, text in enumerate(texts)]
    answers[3:3] = [Answer(b"%PDF", payload="application/pdf"), Answer(b"<html><body></body></html>")]
    source = SourceSettings(path=str(tmp_path / "crawl"))
    (tmp_path / "crawl").mkdir()
    (tmp_path / "crawl" / "CC-1.warc.gz").write_bytes(warc_bytes(answers))
    (tmp_path / "crawl" / "CC-2.warc.gz").write_bytes(warc_bytes(answers)[:-100])
    good, cut = discover(source)
    workspace = Workspace(tmp_path / "workspace")
    file = ingest(ingest_job(workspace, good, source, IngestSettings(min_chars=50)))
    assert (file.rows, file.details["rows_in"]) == (12, 14)
    assert file.details["dropped"] == {"no_text": 1, "not_html": 1}
    with VerifiedFile(workspace.resolve(file)) as documents:
        table = documents.read().to_pylist()
    assert [row["source_row"] for row in table] == [0, 1, 2, *range(5, 14)]
    for row, text in zip(table, texts, strict=True):
        assert row["text"].split("\n")[1:] == text.strip().split("\n")  # after the title
        assert "Contact us" not in row["text"]
        assert "cookies" not in row["text"]
    assert table[4]["url"] == "https://a.org/4"
    with pytest.raises(BadShardError, match=r"CC-2.warc.gz.*cut off"):
        ingest(ingest_job(workspace, cut, source, IngestSettings(min_chars=50)))
