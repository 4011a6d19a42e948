"""What is published to the UI, without a server."""

import io
import logging
import re

import numpy as np
import pytest
from PIL import Image
from prefect.logging import disable_run_logger

from fineweb_mask.flows.display import prefect_ui
from fineweb_mask.flows.display.prefect_ui import PrefectUi, page_markdown
from fineweb_mask.models.losses import Wiped
from fineweb_mask.models.runtime.progress import Step
from fineweb_mask.tasks.reporting.page import Figure, Page, Section, Table
from fineweb_mask.tasks.workspace.references import StageFile
from tests.tasks.reporting.test_page import Job


def file(rows, *, cached=False):
    return StageFile(stage="embed", name="s", path="p", rows=rows, bytes=1, fingerprint="f", cached=cached)


@pytest.fixture
def logged(caplog, monkeypatch):
    """The lines of the run's log."""
    monkeypatch.setattr(prefect_ui, "get_run_logger", lambda: logging.getLogger("run"))
    with caplog.at_level(logging.INFO, "run"):
        yield caplog


def test_the_log_says_what_is_built_and_does_not_grow_with_what_is_cached(logged):
    shown, cached = PrefectUi("w"), file(7, cached=True)
    shown.on_stage("score", 3, 1)
    shown.on_job_end("score", "s", file(7).model_copy(update={"name": "100% %s shard", "seconds": 1.25}))
    shown.on_job_end("score", "s", cached)
    shown.on_job_end("score", "s", None)
    assert logged.messages == ["score: 3 to do, 1 of them cached", "score: 100% %s shard, 7 rows, 1.2 s, 6 rows/s"]


def test_the_progress_of_running_jobs_is_published(monkeypatch):
    published = []

    def publish(of, percent, text):
        published.append((of, percent, text))
        return "its id"

    monkeypatch.setattr(prefect_ui, "create_progress_artifact", lambda percent, key, text: publish(key, percent, text))
    monkeypatch.setattr(prefect_ui, "update_progress_artifact", publish)
    shown = PrefectUi("workspaces/mine")
    with disable_run_logger():
        shown.on_stage("contend", 4, 0)
    shown.refresh()
    shown.on_job_progress("contend", "greedy s", 0.5, (Step("blocks", 1, 2), Step("greedy picks", 0, 1200)))
    shown.refresh()
    shown.refresh()  # nothing is new
    with disable_run_logger():
        shown.on_job_end("contend", "greedy s", file(0))
    shown.refresh()
    assert published == [
        ("progress-contend-workspaces-mine", 0.0, "0 of 4 done"),
        ("its id", 12.5, "0 of 4 done, blocks 1 of 2, greedy picks 0 of 1,200"),
        ("its id", 25.0, "1 of 4 done, about 0 s left"),
    ]


def test_a_group_that_is_wiped_out_is_an_event(monkeypatch):
    events = []
    monkeypatch.setattr(prefect_ui, "emit_event", lambda event, resource, **_: events.append((event, resource)))
    PrefectUi("workspaces/mine").on_wiped([Wiped("source", "web", "ingest", 100, 1, {"regex: a": 90, "too_short": 9})])
    resource = {"prefect.resource.id": "fineweb-mask.group.source: web", "prefect.resource.name": "source: web"}
    assert events == [("fineweb-mask.group.wiped", resource)]


def test_a_page_holds_as_many_of_its_charts_as_fit(tmp_path, monkeypatch):
    sizes = {"a": 10, "b": 60, "c": 1}  # pixels of a side, of noise
    figures = [Figure(name, noise(size), Table("", [], []), "", "A caption.") for name, size in sizes.items()]
    page = Page("Report", "l", [], [Section("s", figures=figures)], "f")
    job = Job(root=str(tmp_path))
    assert page_markdown(job.folder) == ""
    job.write(page)
    whole = page_markdown(job.folder)
    assert whole.count("](data:image/png;base64,") == 3
    most = len(whole) - 500
    monkeypatch.setattr(prefect_ui, "PAGE_BYTES", most)
    text = page_markdown(job.folder)
    assert len(text) <= most
    assert re.findall(r"!\[(\w)\]\(data:image/png;base64,", text) == ["a", "c"]
    assert "The chart is in `plots/b.png`." in text


def noise(side):
    """Return a square picture that cannot be compressed, as a PNG."""
    stream = io.BytesIO()
    pixels = np.random.default_rng(0).integers(0, 256, size=(side, side, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(stream, format="png")
    return stream.getvalue()
