"""The page of a comparison: its numbers against plain references."""

import json
import math
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest

from fineweb_mask.models.errors import SettingsError
from fineweb_mask.models.settings import SourceSettings
from fineweb_mask.models.settings.selection import METRICS
from fineweb_mask.tasks.comparison.page import (
    ComparisonJob,
    check_label_column,
    knee,
    over_blocks,
    write_comparison_page,
)
from fineweb_mask.tasks.comparison.variants import select_variant
from fineweb_mask.tasks.source.columns import settle
from fineweb_mask.tasks.witness.job import measure_teaching
from tests.tasks.comparison.test_variants import jobs
from tests.tasks.jobs import witness_job
from tests.tasks.source_files import discover

SELECTORS = ["mean_field", "random", "top_quality"]
HOSTILE = "<img src=x onerror=alert(1)> | `a`"


@pytest.fixture(scope="module")
def labelled(built, pipeline, tmp_path_factory, make_parquet, make_document):
    """A small workspace of one block whose documents carry a topic; some have none, one name is an attack."""
    tmp_path = tmp_path_factory.mktemp("labelled")
    topics = ["sea", "kitchen", HOSTILE, None]
    rows = [make_document(row, topic=topics[row % 4]) for row in range(40)]
    source = tmp_path / "source" / "a.parquet"
    make_parquet(source, rows, (pa.field("topic", pa.string()),))
    changes = {"workspace": str(tmp_path / "workspace"), "source": SourceSettings(path=str(source.parent))}
    return pipeline(built.recipe.model_copy(update=changes))


def page_job(built, selectors, lambs=(), **fields):
    """Run every job of a comparison but the last, and return this."""
    workspace, shards, settings = built.workspace, built.selection_shards, built.recipe.selection
    planned = {selector: list(jobs(workspace, shards, settings, selector)) for selector in selectors}
    for lamb in lambs:
        own = settings.model_copy(update={"lamb": lamb})
        planned[f"lamb {lamb}"] = list(jobs(workspace, shards, own, "mean_field"))
    masks = {name: [file for job in of for file in _made(job)] for name, of in planned.items()}
    ordered = sorted(shards, key=lambda shard: shard.name)
    return ComparisonJob(
        teaching=measure_teaching(witness_job(workspace, ordered, masks, page="compare")),
        root=str(workspace.root),
        settings=settings,
        variants=[of[0].variant.model_copy(update={"name": name}) for name, of in planned.items()],
        documents=[shard.documents for shard in ordered],
        groups={name: [select_variant(job) for job in of] for name, of in planned.items()},
        masks=masks,
        lambs={f"lamb {lamb}": lamb for lamb in lambs},
        **fields,
    )


def _made(job):
    select_variant(job)
    return job.shard_files()


def test_the_numbers_of_a_comparison(labelled):
    job = page_job(labelled, SELECTORS, label_column="topic", seconds={"random": 0.25})
    write_comparison_page(job)
    assert write_comparison_page(job).cached
    metrics = json.loads((job.folder / "metrics.json").read_text())
    topics = labelled.read(labelled.documents[0])["topic"].to_pylist()
    masks = {name: labelled.read(files[0])["selected"].to_pylist() for name, files in job.masks.items()}
    chosen = {name: {row for row, one in enumerate(mask) if one} for name, mask in masks.items()}
    for name, row in zip(SELECTORS, metrics["jaccard"]["values"], strict=True):
        expected = [len(chosen[name] & chosen[other]) / len(chosen[name] | chosen[other]) for other in SELECTORS]
        assert row == pytest.approx(expected)
    for name in SELECTORS:
        counts = Counter(topics[row] for row in chosen[name] if topics[row] is not None)
        shares = [count / counts.total() for count in (*counts.values(), *[0] * (3 - len(counts)))]
        one = metrics["selections"][name]
        assert one["effective_topics"] == pytest.approx(math.exp(-sum(s * math.log(s) for s in shares if s)))
        assert one["selected"] == len(chosen[name])
        assert one["upper_bound"] == metrics["selections"]["mean_field"]["upper_bound"]  # proved once, for all
        tokens = labelled.read(labelled.documents[0])["token_count"].to_pylist()
        assert one["tokens"] == sum(tokens[row] for row in chosen[name])
    assert metrics["selections"]["random"]["seconds"] == 0.25
    assert metrics["selections"]["mean_field"]["seconds"] is None
    assert metrics["selections"]["random"]["gap"] > metrics["selections"]["mean_field"]["gap"]
    assert metrics["topics"][HOSTILE].keys() == set(SELECTORS)
    assert {path.name for path in (job.folder / "plots").iterdir()} == {"trade-off.png"}


def test_figures_over_blocks_are_weighted():
    measures = {"mean_quality": 1.0, **dict.fromkeys(METRICS, -2.0), "facility": 0.5, "near_duplicates": 0.5}
    block = {"documents": 10, "selected": 5, "tokens_selected": 7, "objective": 0.5, "random_objective": 0.0,
             "upper_bound": 0.6, "terms": {"diversity": 0.2}, "measures": measures}  # fmt: skip
    other = block | {"documents": 30, "selected": 10, "objective": 0.9, "upper_bound": 1.0,
                     "measures": measures | {"mean_quality": 4.0, "facility": 0.1}}  # fmt: skip
    found = over_blocks([block, other])
    expected = {"mean_quality": 3.0, "facility": 0.2, "objective": 0.8, "gap": 0.1 / 0.9, "selected": 15, "tokens": 14}
    assert {name: found[name] for name in expected} == pytest.approx(expected)
    assert over_blocks([block, other | {"upper_bound": None}])["gap"] is None


def test_the_label_column_must_hold_labels(tmp_path, make_parquet, make_document):
    extra = (pa.field("topic", pa.int64()), pa.field("vector", pa.list_(pa.float32())))
    make_parquet(tmp_path / "a.parquet", [make_document(1, topic=3, vector=[0.5])], extra)
    (tmp_path / "b.parquet").write_bytes(b"broken")
    source = SourceSettings(path=str(tmp_path))
    shards = settle(discover(source), source)
    assert [check_label_column(name, shards) for name in ("Topic", "dump")] == ["topic", "dump"]
    fewer = settle(shards, SourceSettings(path=str(tmp_path), extra_columns=["vector"]))
    for name, files, others in (("subject", shards, ".*, topic, url"), ("vector", shards, ""), ("topic", fewer, "")):
        with pytest.raises(SettingsError, match=f"'{name}' must be among the documents' columns: {others}"):
            check_label_column(name, files)


def test_the_knee_is_the_point_farthest_from_the_chord_in_whatever_units():
    angle = np.linspace(0, np.pi / 2, 21)
    quality, diversity = np.sin(angle), np.cos(angle)
    assert knee(quality, diversity) == knee(1000 * quality - 7, 0.001 * diversity - 3) == 10
    x, y = np.sort(np.random.default_rng(0).random((2, 30)))
    x[[0, -1]] = y[[0, -1]] = 0, 1
    assert knee(x, y[::-1]) == int(np.argmax(x + y[::-1]))  # the farthest from the chord


@pytest.mark.parametrize(
    ("x", "y"),
    [
        ([], []),
        ([0, 1], [1, 0]),
        ([0, 0.5, 1], [1, 0.5, 0]),  # straight
        ([0, 0.5, 1], [1, 0.2, 0]),  # every point costs more than it gains
        ([1, 1, 1], [1, 1, 1]),  # nothing is traded
    ],
)
def test_a_curve_without_a_knee(x, y):
    assert knee(x, y) is None


@pytest.mark.long
def test_of_several_weights_of_quality_the_knee_is_recommended(copied):
    """Two blocks: figures are means over them. Without a column of labels there are no topics."""
    lambs = (0.0, 0.25, 0.5, 0.75, 1.0)
    job = page_job(copied, ["random"], lambs, seconds={"lamb 0.5": 0.1})
    written = write_comparison_page(job)
    assert write_comparison_page(job).cached
    metrics = json.loads((job.folder / "metrics.json").read_text())
    assert (metrics["topics"], metrics["blocks"]) == ({}, 2)
    assert metrics["documents"] == copied.counts.documents_eligible
    values = [metrics["selections"][name] for name in job.lambs]
    assert [value["seconds"] for value in values] == [None, None, 0.1, None, None]
    assert (values[2]["selected"], values[2]["effective_topics"]) == (copied.counts.selected, None)
    best = knee(*([value[name] for value in values] for name in ("mean_quality", "pairwise")))
    assert metrics["recommended_lamb"] == lambs[best] == written.details["recommended_lamb"]
    assert metrics["jaccard"]["selections"] == ["random"]
    assert {path.name for path in (job.folder / "plots").iterdir()} == {"trade-off.png"}
    assert f"--set selection.lamb={metrics['recommended_lamb']:g}" in (job.folder / "index.html").read_text()
