from concurrent.futures import ThreadPoolExecutor

import pyarrow.parquet as pq
import pytest

from fineweb_mask.models.errors import SettingsError
from fineweb_mask.models.settings.source import FilterSettings
from fineweb_mask.tasks.processes import filters as module
from fineweb_mask.tasks.processes.filters import ROWS_WORTH_PROCESSES, text_filter
from fineweb_mask.tasks.processes.workers import WorkerProcessError, Workers

pytest.importorskip("datatrove.pipeline.filters")
pytestmark = pytest.mark.filterwarnings("ignore:The 'registered_domain' property:DeprecationWarning")
SETTINGS = [FilterSettings(kind="gopher_quality"), FilterSettings(kind="pii")]


@pytest.fixture(scope="module")
def texts(sample_corpus):
    [path, *_] = sorted((sample_corpus / "corpus").glob("*.parquet"))
    rows = pq.read_table(path, columns=["text"])["text"].to_pylist()
    return [f"{text} Write to me@example.com, \U0001f600" for text in rows if text][:150]


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


def test_wrong_options_are_told_before_any_process_starts():
    with pytest.raises(SettingsError, match="has no option"):
        text_filter([FilterSettings(kind="gopher_quality", options={"none": 1})], ROWS_WORTH_PROCESSES)
