"""The report: one page without a single outside resource, safe whatever the web wrote into names."""

import base64
import json
import re
from html.parser import HTMLParser
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from models.schemas import MASKS
from tasks import report

NOBODY = {"selected": False, "inclusion": None, "block": None}
SCRIPT = "<script>alert('x')</script>\"&"


class Page(HTMLParser):
    """Collects the tags, what they load, and the text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.loads: list[str] = []
        self.handlers: list[str] = []
        self.words = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.loads += [value or "" for name, value in attrs if name in ("src", "href", "srcset", "data", "action")]
        self.handlers += [name for name, _ in attrs if name.startswith("on")]

    def handle_data(self, data: str) -> None:
        self.words += data


def page(built: Any) -> tuple[str, Page]:
    text = (built.workspace.reports / "index.html").read_text(encoding="utf-8")
    return text, Page(text)


@pytest.fixture
def hostile(copied: Any) -> Any:
    """The report anew, with names that are markup."""
    blocks = [block | {"name": SCRIPT} for block in copied.blocks]
    retention = [{"dump": dump, "documents": 3, "selected": 1} for dump in (SCRIPT, "$\\frac$", "雪\n\x00", "x" * 500)]
    dataset = copied.dataset.model_copy(
        update={"details": copied.dataset.details | {"retention": retention}, "fingerprint": "hostile"}
    )
    job = report.plan(
        copied.workspace,
        dataset=dataset,
        shards=copied.dataset_job.shards,
        counts=copied.counts.model_copy(update={"dropped": {SCRIPT: 3}}),
        blocks=blocks,
        stages=[{"stage": SCRIPT, "files": 1, "cached": 0, "seconds": 0.0}],
    )
    assert not report.report(job).reused
    return copied


def test_the_page_loads_nothing_from_outside(built: Any) -> None:
    text, parsed = page(built)
    assert parsed.loads
    assert all(target.startswith("data:image/png;base64,") for target in parsed.loads)
    assert not {"script", "link", "iframe", "object", "embed", "base"} & set(parsed.tags)
    assert not re.search(r"url\s*\(|@import|https?://", text)


def test_the_page_has_its_figures(built: Any) -> None:
    _, parsed = page(built)
    with_curve = bool(built.blocks[0]["history"])
    assert parsed.tags.count("img") == 3 + with_curve
    for target in parsed.loads:
        image = base64.b64decode(target.split(",", 1)[1], validate=True)
        assert image.startswith(b"\x89PNG\r\n\x1a\n")
        assert len(image) > 5_000


def test_the_page_says_what_happened(built: Any) -> None:
    _, parsed = page(built)
    words = "".join(parsed.words.split())
    for phrase in (
        f"{built.counts.documents_in}documentsin",
        f"{built.counts.tokens_selected}tokensselected",
        f"dropped:duplicate{built.counts.dropped['duplicate']}",
        f"notselected{built.counts.not_selected}",
    ):
        assert phrase in words
    for block in built.blocks:
        assert block["name"] in words


def test_metrics_json_says_the_same(built: Any) -> None:
    metrics = json.loads((built.workspace.reports / "metrics.json").read_text())
    assert metrics["counts"] == built.counts.model_dump()
    assert metrics["blocks"] == built.blocks
    assert metrics["retention"] == built.dataset.details["retention"]
    assert metrics["stages"] == built.report_job.stages


def test_hostile_names_are_text_in_the_page(hostile: Any) -> None:
    text, parsed = page(hostile)
    assert "<script" not in text.lower()
    assert "script" not in parsed.tags
    assert not parsed.handlers
    assert parsed.words.count(SCRIPT) >= 3  # block, drop reason and stage, as they are
    assert json.loads((hostile.workspace.reports / "metrics.json").read_text())["blocks"][0]["name"] == SCRIPT


def test_a_report_is_of_one_dataset(copied: Any) -> None:
    assert copied.report.reused
    job = copied.report_job
    assert job.current() is not None
    other = copied.dataset.model_copy(update={"fingerprint": "other"})
    again = report.plan(
        copied.workspace,
        dataset=other,
        shards=copied.dataset_job.shards,
        counts=copied.counts,
        blocks=copied.blocks,
        stages=[],
    )
    assert again.current() is None
    (copied.workspace.reports / "metrics.json").unlink()
    assert job.current() is None
    assert not report.report(job).reused


def test_a_report_where_nothing_was_eligible(copied: Any) -> None:
    [shard, *_] = copied.dataset_job.shards
    masks = copied.read(shard.masks)
    none = [pa.array([value] * len(masks), MASKS.field(name).type) for name, value in NOBODY.items()]
    pq.write_table(pa.table([masks["row"], *none], schema=MASKS), copied.workspace.resolve(shard.masks))
    counts = copied.counts.model_copy(update={"selected": 0, "not_selected": 0, "documents_eligible": 0})
    dataset = copied.dataset.model_copy(update={"fingerprint": "none"})
    job = report.plan(copied.workspace, dataset=dataset, shards=[shard], counts=counts, blocks=[], stages=[])
    report.report(job)
    assert page(copied)[1].tags.count("img") == 3
