from contextlib import closing

import pytest

from fineweb_mask.tasks.processes import text_worker
from fineweb_mask.tasks.processes.workers import Workers
from fineweb_mask.tasks.source.warc.pages import with_texts

pytest.importorskip("trafilatura")
TEXT = "The tide is out, and the boats lie on the sand. Somebody has left a red bucket between them. " * 3
PAGE = f"<html><body><article><p>{TEXT}</p></article></body></html>".encode()


def extracted(*pages, processes=1, seconds=60.0):
    workers = Workers(text_worker.__name__, f'"{text_worker.EXTRACT}"', processes, seconds=seconds)
    with closing(workers):
        return list(with_texts(({"page": page} if isinstance(page, bytes) else page for page in pages), workers))


def test_records_keep_their_order_and_their_problems():
    found = extracted(
        *(
            record
            for number in range(20)
            for record in ({"page": PAGE.replace(b"red", b"%d" % number), "id": number}, "too_large", {"text": "whole"})
        ),
        processes=2,
    )
    assert found[1::3] == ["too_large"] * 20
    assert found[2::3] == [{"text": "whole"}] * 20
    assert [record["id"] for record in found[::3]] == list(range(20))
    assert [record["text"] for record in found[::3]] == [
        TEXT.replace("red", str(number)).strip() for number in range(20)
    ]


@pytest.mark.parametrize("page", [b"", b"<html></html>", b"\xff\xfe\x00" * 100, b"<p>" * 5, bytes(1000)])
def test_a_page_without_text_says_so(page):
    assert extracted(page) == ["no_text"]


def test_other_encodings_are_found_out():
    text = (
        "Die Käuferin grüßt den Bäcker und zählt die Brötchen in der großen Tüte, die sie über die Straße trägt. " * 5
    )
    page = f"<html><head><meta charset='iso-8859-1'></head><body><article><p>{text}</p></article></body></html>"
    [record] = extracted(page.encode("iso-8859-1"))
    assert record == {"text": text.strip()}


@pytest.mark.parametrize("depth", [100, 20_000])
def test_deeply_nested_pages_end(depth):
    [found] = extracted(b"<div>" * depth + PAGE + b"</div>" * depth)
    assert isinstance(found, dict) or found in {"no_text", "broken_page"}


def test_a_page_that_takes_too_long_costs_only_itself():
    slow = b"<html><body>" + b"<p>word <b>word</b></p>" * 1_000_000 + b"</body></html>"
    assert extracted(PAGE, slow, PAGE, seconds=4) == [{"text": TEXT.strip()}, "too_slow", {"text": TEXT.strip()}]


def test_the_processes_of_this_one_are_used_by_default():
    assert list(with_texts([{"page": PAGE}])) == [{"text": TEXT.strip()}]
