"""The pages of a comparison and of a sweep: their numbers against plain references, and hostile topics."""

import json
import math
from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from fineweb_mask.models.settings import SourceSettings
from fineweb_mask.models.settings.selection import METRICS
from fineweb_mask.tasks.selection import compare_page, contenders, frontier, sweep_page
from fineweb_mask.tasks.selection.compare_page import LabelColumnError, check_label_column
from fineweb_mask.tasks.selection.contenders import over_blocks
from fineweb_mask.tasks.selection.groups import group_name, grouped
from fineweb_mask.tasks.source.discovery import discover
from tests.tasks.jobs import contender_job, frontier_job, ranges_jobs

SELECTORS = ["mean_field", "random", "top_quality"]
HOSTILE = "<img src=x onerror=alert(1)> | `a`"


@pytest.fixture(scope="module")
def labelled(built: Any, pipeline: Any, tmp_path_factory: Any, make_parquet: Any, make_document: Any) -> Any:
    """A small workspace of one block whose documents carry a topic; some have none, one name is an attack."""
    tmp_path = tmp_path_factory.mktemp("labelled")
    topics = ["sea", "kitchen", HOSTILE, None]
    rows = [make_document(row, topic=topics[row % 4]) for row in range(40)]
    source = tmp_path / "source" / "a.parquet"
    make_parquet(source, rows, (pa.field("topic", pa.string()),))
    recipe = built.recipe.model_copy(
        update={
            "workspace": str(tmp_path / "workspace"),
            "source": SourceSettings(path=str(source.parent)),
        }
    )
    return pipeline(recipe)


def selected(built: Any, selectors: list[str]) -> dict[str, Any]:
    workspace, shards, settings = built.workspace, built.selection_shards, built.recipe.selection
    ranges = {job.name: contenders.find_ranges(job) for job in ranges_jobs(workspace, shards, settings)}
    files: dict[str, Any] = {"groups": {}, "masks": {}, "ranges": ranges}
    for selector in selectors:
        planned = [
            contender_job(workspace, group, settings, selector, ranges[group_name(group)])
            for group in grouped(shards, settings)
        ]
        files["groups"][selector] = [contenders.run_selector(job) for job in planned]
        files["masks"][selector] = [file for job in planned for file in job.shard_files() or []]
    return files


def compared(built: Any, label_column: str | None) -> compare_page.CompareJob:
    files = selected(built, SELECTORS)
    shards = sorted(built.selection_shards, key=lambda shard: shard.name)
    return compare_page.CompareJob(
        root=str(built.workspace.root),
        settings=built.recipe.selection,
        label_column=label_column,
        documents=[shard.documents for shard in shards],
        masks=files["masks"],
        groups=files["groups"],
        seconds={"random": 0.25},
    )


def test_the_numbers_of_a_comparison(labelled: Any) -> None:
    job = compared(labelled, "topic")
    compare_page.write_compare_page(job)
    assert compare_page.write_compare_page(job).cached
    metrics = json.loads((job.folder / "metrics.json").read_text())
    topics = labelled.read(labelled.documents[0])["topic"].to_pylist()
    masks = {name: labelled.read(files[0])["selected"].to_pylist() for name, files in job.masks.items()}
    chosen = {name: {row for row, one in enumerate(mask) if one} for name, mask in masks.items()}
    for name, row in zip(SELECTORS, metrics["jaccard"]["values"], strict=True):
        expected = [len(chosen[name] & chosen[other]) / len(chosen[name] | chosen[other]) for other in SELECTORS]
        assert row == pytest.approx(expected)
    for name in SELECTORS:
        counts = Counter(topics[row] for row in chosen[name] if topics[row] is not None)
        shares = [counts[topic] / counts.total() for topic in ("sea", "kitchen", HOSTILE)]
        one = metrics["selectors"][name]
        assert one["topics"] == sum(share > 0 for share in shares)
        assert one["effective_topics"] == pytest.approx(math.exp(-sum(s * math.log(s) for s in shares if s)))
        assert one["rarest_topic"] == pytest.approx(min(shares))
        assert one["selected"] == len(chosen[name])
        assert one["upper_bound"] == metrics["selectors"]["mean_field"]["upper_bound"]  # proved once, for all
        tokens = labelled.read(labelled.documents[0])["token_count"].to_pylist()
        assert one["tokens"] == sum(tokens[row] for row in chosen[name])
    assert metrics["selectors"]["random"]["seconds"] == 0.25
    assert metrics["selectors"]["mean_field"]["seconds"] is None
    assert metrics["selectors"]["random"]["gap"] > metrics["selectors"]["mean_field"]["gap"]


def test_hostile_topics_are_text_on_the_page(labelled: Any) -> None:
    job = compared(labelled, "topic")
    compare_page.write_compare_page(job)
    page = (job.folder / "index.html").read_text()
    assert "&lt;img src=x onerror=alert(1)&gt; | `a`" in page
    assert "<img src=x" not in page
    assert sorted(path.name for path in (job.folder / "plots").iterdir()) == [
        "near-duplicates.png",
        "overlap.png",
        "topics.png",
        "trade-off.png",
    ]


def test_without_a_label_column_there_are_no_topics(copied: Any) -> None:
    """Two blocks: figures are means over them."""
    job = compared(copied, None)
    compare_page.write_compare_page(job)
    metrics = json.loads((job.folder / "metrics.json").read_text())
    assert metrics["topics"] == {}
    assert metrics["blocks"] == 2
    assert metrics["selectors"]["random"]["topics"] is None
    assert "Topics" not in (job.folder / "index.html").read_text()
    assert metrics["documents"] == copied.counts.documents_eligible
    assert metrics["selectors"]["mean_field"]["selected"] == copied.counts.selected


def test_the_label_column_must_hold_labels(tmp_path: Any, make_parquet: Any, make_document: Any) -> None:
    extra = (pa.field("topic", pa.int64()), pa.field("vector", pa.list_(pa.float32())))
    make_parquet(tmp_path / "a.parquet", [make_document(1, topic=3, vector=[0.5])], extra)
    (tmp_path / "b.parquet").write_bytes(b"broken")
    source = SourceSettings(path=str(tmp_path))
    shards = discover(source)
    check_label_column("topic", shards, source)
    check_label_column("dump", shards, source)
    with pytest.raises(
        LabelColumnError, match=r"'subject' must be among the documents' columns: .*, topic, url, vector"
    ):
        check_label_column("subject", shards, source)
    with pytest.raises(LabelColumnError, match="must hold text, integers or booleans"):
        check_label_column("vector", shards, source)
    named = SourceSettings(path=str(tmp_path), extra_columns=["vector"])
    with pytest.raises(LabelColumnError, match="'topic' must be among"):
        check_label_column("topic", shards, named)


def test_a_sweep_recommends_its_knee(copied: Any) -> None:
    lambs = (0.0, 0.25, 0.5, 0.75, 1.0)
    settings = copied.recipe.selection
    files = selected(copied, ["random", "greedy"])
    frontiers = [
        frontier.sweep_lambs(frontier_job(copied.workspace, group, settings, lambs, files["ranges"][group_name(group)]))
        for group in grouped(copied.selection_shards, settings)
    ]
    job = sweep_page.SweepJob(
        root=str(copied.workspace.root),
        settings=settings,
        lambs=lambs,
        frontiers=frontiers,
        baselines=files["groups"],
        seconds={"0.5": 0.1},
    )
    written = sweep_page.write_sweep_page(job)
    assert sweep_page.write_sweep_page(job).cached
    metrics = json.loads((job.folder / "metrics.json").read_text())
    values = metrics["values"]
    assert [value["lamb"] for value in values] == list(lambs)
    assert [value["seconds"] for value in values] == [None, None, 0.1, None, None]
    x, y = (np.array([value[name] for value in values]) for name in ("mean_quality", "pairwise"))
    above = (x - x[0]) / (x[-1] - x[0]) + (y - y[-1]) / (y[0] - y[-1])
    assert metrics["recommended_lamb"] == lambs[int(above.argmax())] == written.details["recommended_lamb"]
    assert metrics["baselines"].keys() == {"random", "greedy"}
    assert {path.name for path in (job.folder / "plots").iterdir()} == {"frontier.png", "shares.png"}
    assert not (copied.workspace.root / "sweep" / "reports").exists()


def test_figures_over_blocks_are_weighted() -> None:
    measures = {"mean_quality": 1.0, **dict.fromkeys(METRICS, -2.0), "facility": 0.5, "near_duplicates": 0.5}
    block = {"documents": 10, "selected": 5, "tokens_selected": 7, "objective": 0.5, "random_objective": 0.0,
             "upper_bound": 0.6, "terms": {"diversity": 0.2}, "measures": measures}  # fmt: skip
    other = block | {"documents": 30, "selected": 10, "objective": 0.9, "upper_bound": 1.0,
                     "measures": measures | {"mean_quality": 4.0, "facility": 0.1}}  # fmt: skip
    found = over_blocks([block, other])
    assert found["mean_quality"] == pytest.approx(3.0)
    assert found["facility"] == pytest.approx(0.2)
    assert found["objective"] == pytest.approx(0.8)
    assert found["gap"] == pytest.approx(0.1 / 0.9)
    assert (found["selected"], found["tokens"]) == (15, 14)
    assert over_blocks([block, other | {"upper_bound": None}])["gap"] is None
