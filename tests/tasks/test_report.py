"""The report: what it says is what is in the workspace, safe whatever the web wrote."""

import json
import re

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fineweb_mask.models.schemas import MASKS
from fineweb_mask.tasks import report
from fineweb_mask.tasks.reporting import geometry

NOBODY = {"selected": False, "inclusion": None, "block": None}
SCRIPT = "<script>alert('x')</script>\"&"
FIGURES = ["quality"]


def page(built):
    return (built.workspace.reports / "index.html").read_text(encoding="utf-8")


def metrics(built):
    return dict(json.loads((built.workspace.reports / "metrics.json").read_text(encoding="utf-8")))


def again(built, **changes):
    """Return the job of another report of a workspace."""
    job = built.report_job
    names = ("dataset", "shards", "teaching", "counts", "blocks", "settings")
    return report.ReportJob(root=job.root, **({name: getattr(job, name) for name in names} | changes))


@pytest.fixture(scope="module", autouse=True)
def reported(built):
    """Make the report of the shared workspace before any test here copies it."""
    return built.report


def test_the_page_has_its_figures_and_says_what_happened(built):
    folder = built.workspace.reports
    assert sorted(path.stem for path in (folder / "plots").iterdir()) == FIGURES
    assert page(built).count('src="data:image/png;base64,') == len(FIGURES)
    assert page(built).count("<summary>The numbers</summary>") == len(FIGURES)
    assert (folder / "index.md").read_text(encoding="utf-8").count("](plots/") == len(FIGURES)
    text = re.sub(r"<[^>]*>|\s", "", page(built))
    counted = (f"{built.counts.documents_in}documentsin", f"{built.counts.tokens_selected:,}tokensselected")
    for phrase in (*counted, *(block["name"] for block in built.blocks)):
        assert phrase in text
    funnel = text[text.index("Fromthesource") :]
    assert f"dropped:tooshort{built.counts.dropped['too_short']}" in funnel
    assert f"dropped:duplicate{built.counts.dropped['duplicate'] - 1}" in funnel  # one of them lies within a shard
    assert f"notselected{built.counts.not_selected}" in funnel


def test_the_metrics_are_what_the_masks_say(built):
    found, counts = metrics(built), built.counts
    assert (found["counts"], found["blocks"]) == (counts.model_dump(), built.blocks)
    diversity = found["diversity"]
    assert diversity["eligible"]["documents"] == counts.documents_eligible
    assert diversity["random"]["documents"] == diversity["selected"]["documents"] == counts.selected
    assert 1 < diversity["selected"]["effective_rank"] <= 16
    assert sum(cluster["before"] for cluster in found["clusters"]) == counts.documents_eligible
    assert sum(cluster["after"] for cluster in found["clusters"]) == counts.selected
    for rows in found["retention"].values():
        assert sum(row["documents"] for row in rows) == counts.documents_eligible
        assert sum(row["selected"] for row in rows) == counts.selected


def test_budgets_by_group_and_a_small_sample_are_shown_and_the_page_is_the_same_again(copied, monkeypatch):
    monkeypatch.setattr(geometry, "SAMPLE", 12)
    assert "Budgets by group" not in page(copied)
    details = copied.dataset.details
    selection = details["recipe"]["selection"] | {"groups": {"column": "language"}, "metrics": "disf"}
    recipe = details["recipe"] | {"selection": selection}
    dataset = copied.dataset.model_copy(update={"details": details | {"recipe": recipe}})
    blocks = [block | {"group": SCRIPT, "budget": block["selected"] / 0.75} for block in copied.blocks]
    job = again(copied, dataset=dataset, blocks=blocks).model_copy(update={"force": True})
    report.report(job)
    text = page(copied)
    report.report(job)
    assert page(copied) == text
    assert f"Measured on 12 of {copied.counts.documents_eligible}" in text
    assert metrics(copied)["diversity"]["eligible"]["documents"] == 12
    table = text[text.index("<h2>Budgets by group") : text.index("<h2>Distance from the optimum")]
    labels = re.findall(r'<button type="button">([^<]*)', table)
    assert labels == ["language", "documents", "selected", "budget (documents)", "filled"]
    assert SCRIPT not in text
    assert "75.0%" in table
    assert metrics(copied)["blocks"][0]["group"] == SCRIPT


def test_a_report_is_of_one_dataset_and_its_settings(copied):
    assert copied.report.cached
    job = copied.report_job
    assert job.current() is not None
    assert again(copied, dataset=copied.dataset.model_copy(update={"fingerprint": "other"})).current() is None
    assert again(copied, settings=job.settings.model_copy(update={"by": []})).current() is None
    masks = job.shards[0].masks.model_copy(update={"fingerprint": "other"})
    shards = [job.shards[0].model_copy(update={"masks": masks}), *job.shards[1:]]
    assert again(copied, shards=shards).current() is None
    (copied.workspace.reports / "metrics.json").unlink()
    assert job.current() is None


def test_a_report_where_nothing_was_eligible(copied):
    [shard, *_] = copied.report_job.shards
    masks = copied.read(shard.masks)
    none = [pa.array([value] * len(masks), MASKS.field(name).type) for name, value in NOBODY.items()]
    pq.write_table(pa.table([masks["row"], *none], schema=MASKS), copied.workspace.resolve(shard.masks))
    counts = copied.counts.model_copy(update={"selected": 0, "not_selected": 0, "documents_eligible": 0})
    dataset = copied.dataset.model_copy(update={"fingerprint": "none"})
    report.report(again(copied, dataset=dataset, shards=[shard], counts=counts, blocks=[]))
    assert not list((copied.workspace.reports / "plots").iterdir())
    assert metrics(copied)["diversity"] == {}
