"""Make small WARC files of pages of our own."""

import html
import io
from collections.abc import Iterable
from typing import Any, NamedTuple

from warcio.statusandheaders import StatusAndHeaders
from warcio.warcwriter import WARCWriter


class Answer(NamedTuple):
    """What a server answered, and what the crawler noted."""

    body: bytes
    url: str = "https://example.org/"
    status: str = "200 OK"
    headers: tuple[tuple[str, str], ...] = (("Content-Type", "text/html; charset=utf-8"),)
    payload: str | None = "text/html"


def page_of(text: str, title: str = "A page") -> bytes:
    """Return a page with a menu and a footer around the paragraphs of a text."""
    paragraphs = "".join(f"<p>{html.escape(part)}</p>" for part in text.split("\n") if part.strip())
    return (
        f"<!DOCTYPE html><html><head><title>{html.escape(title)}</title></head><body><nav><ul><li><a href='/'>Home</a>"
        f"<li><a href='/contact'>Contact us</a></ul></nav><article><h1>{html.escape(title)}</h1>{paragraphs}</article>"
        "<footer><p>Imprint and cookies</p></footer></body></html>"
    ).encode()


def warc_bytes(answers: Iterable[Answer], packed: bool = True, texts: Iterable[str] = ()) -> bytes:
    """Return a WARC file: its own record, a request and a response for each answer, then extracted texts (WET)."""
    stream = io.BytesIO()
    writer = WARCWriter(stream, gzip=packed)
    writer.write_record(writer.create_warcinfo_record("crawl.warc", {"software": "the tests"}))

    def write(
        kind: str, url: str, number: int, body: bytes | None = None, payload: str | None = None, **how: Any
    ) -> None:
        noted = {"WARC-Record-ID": f"<urn:uuid:{number:032x}>", "WARC-Date": "2026-01-02T03:04:05Z"}
        if payload:
            noted["WARC-Identified-Payload-Type"] = payload
        if body is not None:
            how |= {"payload": io.BytesIO(body), "length": len(body)}
        writer.write_record(writer.create_warc_record(url, kind, warc_headers_dict=noted, **how))

    for number, answer in enumerate(answers):
        asked = StatusAndHeaders("GET / HTTP/1.1", [("Host", "example.org")], is_http_request=True)
        write("request", answer.url, number + 2**64, http_headers=asked)
        headers = StatusAndHeaders(answer.status, list(answer.headers), protocol="HTTP/1.1")
        write("response", answer.url, number, answer.body, answer.payload, http_headers=headers)
    for number, text in enumerate(texts):
        url = f"https://example.org/{number}"
        write("conversion", url, number, text.encode(), warc_content_type="text/plain")
    return stream.getvalue()


def record_bytes(kind: str, block: bytes, content_type: str | None, *more: str) -> bytes:
    """Return a record as it stands in a file, with more lines in its head."""
    named = [f"Content-Type: {content_type}"] if content_type is not None else []
    head = [
        "WARC/1.1",
        f"WARC-Type: {kind}",
        f"WARC-Record-ID: <urn:uuid:{len(block):032x}>",
        "WARC-Target-URI: https://example.org/",
        "WARC-Date: 2026-01-02T03:04:05Z",
        *named,
        *more,
        f"Content-Length: {len(block)}",
    ]
    return "\r\n".join(head).encode() + b"\r\n\r\n" + block + b"\r\n\r\n"
