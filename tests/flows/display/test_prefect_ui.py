"""What is published to the UI, without a server."""

import io
import logging
import re

import numpy as np
import pytest
from markdown_it import MarkdownIt
from PIL import Image
from prefect.logging import disable_run_logger

from fineweb_mask.flows.display import prefect_ui
from fineweb_mask.flows.display.prefect_ui import LOG_SECONDS, PrefectUi, page_markdown
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


def test_the_log_says_what_is_done_and_does_not_grow_with_what_is_cached(logged):
    shown, cached = PrefectUi("w"), file(7, cached=True).model_copy(update={"name": "100% %s shard"})
    shown.on_stage("score", 2)
    shown.on_job_end("score", "s", file(7).model_copy(update={"seconds": 1.25}))
    shown.on_job_end("score", "s", cached)
    shown.on_job_end("score", "s", None)
    assert logged.messages == [
        "score: 2 to do",
        "score: s, 7 rows, 1.2 s, 6 rows/s",
        "score: 100% %s shard, 7 rows, cached",
    ]
    for _ in range(2_499):
        shown.on_job_end("score", "s", cached)
    assert len(logged.messages) == 2 + 22
    assert logged.messages[-1] == "score: 2000 files cached"


def test_the_log_reports_the_progress_of_a_long_job_every_30_seconds(logged, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(prefect_ui, "monotonic", lambda: now[0])
    shown, job, lambs = PrefectUi("w"), "100% %s shard", Step("values of lamb", 1, 4)
    for now[0] in (0.0, 10.0, LOG_SECONDS, LOG_SECONDS + 1, 2 * LOG_SECONDS):
        shown.on_job_progress("select", job, 0.1, (lambs, Step("greedy picks", int(now[0]), 50)))
        shown.on_job_progress("select", "no active loop", 0.1, ())
    shown.on_job_end("select", job, None)
    shown.on_job_progress("select", job, 0.1, (lambs,))
    assert logged.messages == [
        f"select: 100% %s shard, values of lamb 1 of 4, greedy picks {picks} of 50" for picks in (30, 60)
    ]


def test_the_progress_of_running_jobs_is_published(monkeypatch):
    published = []

    def publish(of, percent, text):
        published.append((of, percent, text))
        return "its id"

    monkeypatch.setattr(prefect_ui, "create_progress_artifact", lambda percent, key, text: publish(key, percent, text))
    monkeypatch.setattr(prefect_ui, "update_progress_artifact", publish)
    shown = PrefectUi("workspaces/mine")
    with disable_run_logger():
        shown.on_stage("contend", 4)
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


def test_no_name_of_a_shard_is_a_link_or_a_picture_in_the_table():
    shown = PrefectUi("workspaces/mine")
    names = ["CC-MAIN-2024-10_00001", "![x](http:/tracks.example/p.png)", "www.example.com", "<img src=x>"]
    with disable_run_logger():
        for name in names:
            shown.on_job_end("embed", name, file(1).model_copy(update={"name": name}))
    listed = [row["shard"] for row in shown._files]
    assert listed[0] == names[0]
    found = MarkdownIt().render("\n\n".join(listed))
    assert not re.search(r"<(?!/?p>)", found)
    assert "tracks.example" in found
    assert "www." not in "".join(listed)  # which is a link without any markup


def test_groups_that_are_wiped_out_are_a_table(monkeypatch):
    published, events = {}, []
    monkeypatch.setattr(prefect_ui, "emit_event", lambda event, *_, **__: events.append(event))  # asks a server
    monkeypatch.setattr(prefect_ui, "create_table_artifact", lambda rows, key, **_: published.update({key: rows}))
    wiped = Wiped("source", "<img src=x>", "ingest", 100, 1, {"regex: a": 90, "too_short": 9})
    PrefectUi("workspaces/mine").on_wiped([wiped])
    assert events == ["fineweb-mask.group.wiped"]
    [row] = published["wiped-workspaces-mine"]
    assert (row["step"], row["documents"], row["kept"]) == ("ingest", 100, 1)
    found = MarkdownIt().render(f"{row['group']}\n\n{row['dropped']}")
    assert found == "<p>source: &lt;img src=x&gt;</p>\n<p>90 regex: a, 9 too_short</p>\n"


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
