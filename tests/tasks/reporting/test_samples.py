"""Samples: rows of a shard's files belong together, and draws are uniform."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fineweb_mask.tasks.reporting.samples import draw, eligible_documents, evenly_spaced, rows_at, texts_at, vectors_at
from fineweb_mask.tasks.workspace.references import ShardFiles, StageFile
from fineweb_mask.tasks.workspace.stage_parquet import take_rows
from fineweb_mask.tasks.workspace.workspace import Workspace


@pytest.fixture
def workspace(built):
    return built.workspace, built.report_job.shards


@pytest.fixture
def rows(built, workspace):
    """What the stages' files hold of the documents of every shard."""
    return [built.joined(*(getattr(shard, stage) for stage in STAGES)) for shard in workspace[1]]


STAGES = ("documents", "scores", "embeddings", "masks")


def test_every_document_in_a_block_is_eligible_and_some_of_the_shards_are_read_in_steps(workspace, rows):
    expected = [(index, one["row"], one["selected"]) for index, of in enumerate(rows) for one in of if one["block"]]
    places, selected = eligible_documents(*workspace, range(3))
    assert [(*place, one) for place, one in zip(places.tolist(), selected.tolist(), strict=True)] == expected
    assert len(places) < sum(shard.rows for shard in workspace[1])  # b has duplicates
    places, _ = eligible_documents(*workspace, [0, 2], step=3)
    of_shards = [[place for place in expected if place[0] == index][::3] for index in (0, 2)]
    assert [tuple(place) for place in places.tolist()] == [(*place[:2],) for of in of_shards for place in of]


def test_a_draw_is_of_eligible_and_of_selected_documents(built, workspace, rows):
    eligible, selected = draw(*workspace, 1_000, np.random.default_rng(0))
    assert len(eligible.places) == eligible.population == built.counts.documents_eligible
    assert eligible.shards == 3
    assert (len(selected.places), selected.population) == (built.counts.selected,) * 2
    masks = [{one["row"]: one["selected"] for one in of} for of in rows]
    assert all(masks[index][row] for index, row in selected.places.tolist())
    some, few = (list(map(tuple, one.places.tolist())) for one in draw(*workspace, 7, np.random.default_rng(1)))
    assert len(set(some)) == len(set(few)) == 7
    assert some == sorted(some)
    assert set(some) <= set(map(tuple, eligible.places.tolist()))
    assert (draw(*workspace, 7, np.random.default_rng(1))[0].places == some).all()
    generator = np.random.default_rng(0)  # every document is drawn as often
    drawn = np.concatenate([draw(*workspace, 10, generator)[0].places for _ in range(300)])
    by_shard, of_all = (np.bincount(places[:, 0]) for places in (drawn, eligible.places))
    np.testing.assert_allclose(by_shard / by_shard.sum(), of_all / of_all.sum(), atol=0.03)


@pytest.mark.parametrize("places", [[(0, 1), (0, 9), (2, 0), (2, 6)], np.empty((0, 2), int)], ids=["four", "none"])
def test_what_a_stage_has_of_documents_is_read_at_their_places(workspace, rows, places):
    places = np.array(places)
    expected = [next(one for one in rows[index] if one["row"] == row) for index, row in places.tolist()]
    for stage, columns in (("documents", ["id", "text"]), ("scores", ["quality"]), ("masks", ["selected", "row"])):
        found = rows_at(*workspace, places, stage, [*columns, "nowhere"]).to_pylist()
        assert found == [{name: one[name] for name in columns} for one in expected]
    assert vectors_at(*workspace, places).tolist() == [one["embedding"] for one in expected]
    which, texts = texts_at(*workspace, places, 10)
    assert (which, texts) == (list(range(len(places))), [one["text"][:10] for one in expected])


def test_only_the_row_groups_that_are_wanted_are_read(tmp_path, monkeypatch):
    table = pa.table({"row": range(1_000), "text": [f"text {row}" for row in range(1_000)]})
    pq.write_table(table, tmp_path / "x.parquet", row_group_size=100)
    read, original = [], pq.ParquetFile.read_row_group

    def spy(file, group, **options):
        read.append(group)
        return original(file, group, **options)

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", spy)
    found = take_rows(tmp_path / "x.parquet", np.array([0, 99, 100, 999]), ["text", "nowhere"])
    assert found.to_pylist() == [{"text": f"text {row}"} for row in (0, 99, 100, 999)]
    assert read == [0, 1, 9]
    reference = StageFile(stage="ingest", name="x", path="x.parquet", rows=1_000, bytes=1, fingerprint="")
    shard = ShardFiles(documents=reference, scores=reference, embeddings=reference, masks=reference)
    read.clear()
    which, texts = texts_at(Workspace(tmp_path), [shard], np.array([(0, row) for row in (5, 350, 399, 800)]), 99)
    assert (which, texts, read) == ([1, 2], ["text 350", "text 399"], [3])


def test_indices_are_evenly_spaced():
    for n, at_most, expected in ((5, 9, 5), (5, 2, 2), (64, 16, 16), (65, 16, 13)):
        found = list(evenly_spaced(n, at_most))
        assert (len(found), found[0]) == (expected, 0)
        assert len(set(np.diff(found))) <= 1
