from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pyarrow.parquet as pq
import pytest

from fineweb_mask.models.settings.source import FilterSettings
from fineweb_mask.tasks.processes import texts as module
from fineweb_mask.tasks.processes.texts import ROWS_WORTH_PROCESSES, text_filter, with_texts
from fineweb_mask.tasks.processes.workers import WorkerProcessError, Workers

pytestmark = pytest.mark.filterwarnings("ignore:The 'registered_domain' property:DeprecationWarning")
SETTINGS = [FilterSettings(kind="gopher_quality"), FilterSettings(kind="pii")]
TEXT = "The tide is out, and the boats lie on the sand. Somebody has left a red bucket between them. " * 3
PAGE = f"<html><body><article><p>{TEXT}</p></article></body></html>".encode()


@pytest.fixture(scope="module")
def texts(sample_corpus):
    pytest.importorskip("datatrove.pipeline.filters")
    [path, *_] = sorted((sample_corpus / "corpus").glob("*.parquet"))
    rows = pq.read_table(path, columns=["text"])["text"].to_pylist()
    return [f"{text} Write to me@example.com, \U0001f600" for text in rows if text][:60]


@pytest.mark.long
def test_processes_and_threads_decide_as_one_thread_does(texts, monkeypatch):
    monkeypatch.setattr(module, "cores", lambda: 2)
    urls = [None] * len(texts)
    expected = text_filter(SETTINGS, rows=10)(texts, urls)
    assert any(outcome.dropped for outcome in expected)
    assert any(outcome.text != text for outcome, text in zip(expected, texts, strict=True))
    assert text_filter(SETTINGS, ROWS_WORTH_PROCESSES)(texts, urls) == expected
    with ThreadPoolExecutor(4) as threads:  # spaCy, which is below, must not be used by two at once
        found = threads.map(lambda _: text_filter(SETTINGS, rows=10)(texts, urls), range(4))
        assert all(one == expected for one in found)


def test_a_process_that_keeps_ending_is_a_transient_error(texts, monkeypatch):
    monkeypatch.setattr(module, "cores", lambda: 2)
    monkeypatch.setattr(Workers, "ask", lambda *_: "ended")
    with pytest.raises(WorkerProcessError, match="run again"):
        text_filter(SETTINGS, ROWS_WORTH_PROCESSES)(texts, [None] * len(texts))


def extracted(*pages, processes=1):
    pytest.importorskip("trafilatura")
    workers = Workers(module.__name__, f'"{module.EXTRACT}"', processes, seconds=60.0)
    with closing(workers):
        return list(with_texts(({"page": page} if isinstance(page, bytes) else page for page in pages), workers))


@pytest.mark.long
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


def test_of_every_page_there_is_a_text_or_a_problem():
    german = "Die Käuferin grüßt den Bäcker und zählt die Brötchen in der großen Tüte, die sie trägt. " * 5
    page = f"<html><head><meta charset='iso-8859-1'></head><body><article><p>{german}</p></article></body></html>"
    deep = b"<div>" * 20_000 + PAGE + b"</div>" * 20_000
    *empty, text, nested = extracted(b"", b"\xff\xfe\x00" * 100, bytes(1000), page.encode("iso-8859-1"), deep)
    assert empty == ["no_text"] * 3
    assert text == {"text": german.strip()}  # by another encoding
    assert isinstance(nested, dict) or nested in {"no_text", "broken_page"}


@pytest.mark.long
def test_a_page_that_takes_too_long_costs_only_itself():
    pytest.importorskip("trafilatura")

    class Impatient(Workers):
        def ask(self, message):
            self._seconds = 1.0 if len(message) > 2 * len(PAGE) else 60.0  # in which a process starts
            return super().ask(message)

    slow = b"<html><body>" + b"<p>word <b>word</b></p>" * 500_000 + b"</body></html>"
    whole = {"text": TEXT.strip()}
    with closing(Impatient(module.__name__, f'"{module.EXTRACT}"', 1)) as workers:
        records = ({"page": page} for page in (PAGE, slow, PAGE))
        assert list(with_texts(records, workers)) == [whole, "too_slow", whole]
    assert list(with_texts([{"page": PAGE}])) == [whole]  # by the processes of this one
