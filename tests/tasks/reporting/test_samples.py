"""Samples: rows of a shard's files belong together, draws are uniform, documents near the threshold are found."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fineweb_mask.tasks.reporting.samples import (
    DocumentRef,
    _nearest,
    documents_at,
    draw,
    eligible_table,
    evenly_spaced,
    near_threshold,
    take_rows,
    texts_at,
    vectors_at,
)
from fineweb_mask.tasks.workspace.references import ShardFiles, StageFile
from fineweb_mask.tasks.workspace.workspace import Workspace


@pytest.fixture
def workspace(built):
    return built.workspace, built.report_job.shards


def test_the_rows_of_a_shard_s_files_are_joined(built, workspace):
    workspace, shards = workspace
    for shard in shards:
        expected = [
            {"id": row["id"], "nowhere": None, "quality": row["quality"], "selected": row["selected"]}
            for row in built.joined(shard.documents, shard.scores, shard.masks)
        ]
        assert eligible_table(workspace, shard, ["id", "nowhere"]).to_pylist() == expected
    assert len(eligible_table(workspace, shards[2], [])) < shards[2].documents.rows  # b has duplicates


def test_a_draw_is_of_eligible_and_of_selected_documents(built, workspace):
    eligible, selected = draw(*workspace, 1_000, np.random.default_rng(0))
    assert len(eligible.documents) == eligible.population == built.counts.documents_eligible
    assert eligible.shards == 3
    assert (len(selected.documents), selected.population) == (built.counts.selected,) * 2
    masks = [built.read(shard.masks).to_pylist() for shard in workspace[1]]
    assert all(masks[document.shard][document.row]["selected"] for document in selected.documents)
    some, few = draw(*workspace, 7, np.random.default_rng(1))
    assert len(set(some.documents)) == len(set(few.documents)) == 7
    assert some.documents == sorted(some.documents)
    assert set(some.documents) <= set(eligible.documents)
    assert some == draw(*workspace, 7, np.random.default_rng(1))[0]
    generator = np.random.default_rng(0)  # every document is drawn as often
    drawn = [document for _ in range(300) for document in draw(*workspace, 10, generator)[0].documents]
    by_shard, rows = (np.bincount([document.shard for document in some]) for some in (drawn, eligible.documents))
    np.testing.assert_allclose(by_shard / by_shard.sum(), rows / rows.sum(), atol=0.03)


def test_vectors_texts_and_documents_are_those_referred_to(built, workspace):
    refs = [DocumentRef(0, 1), DocumentRef(0, 9), DocumentRef(2, 0), DocumentRef(2, 6)]
    vectors = vectors_at(*workspace, refs)
    rows = documents_at(*workspace, refs, ["id", "text"])
    which, texts = texts_at(*workspace, refs, 10)
    assert which == [0, 1, 2, 3]
    for ref, vector, row, text in zip(refs, vectors, rows, texts, strict=True):
        shard = workspace[1][ref.shard]
        [found] = [
            one for one in built.joined(shard.documents, shard.scores, shard.embeddings) if one["row"] == ref.row
        ]
        assert vector.tolist() == found["embedding"]
        assert [row[name] for name in ("id", "text", "quality")] == [found[name] for name in ("id", "text", "quality")]
        assert text == found["text"][:10]


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
    which, texts = texts_at(Workspace(tmp_path), [shard], [DocumentRef(0, row) for row in (5, 350, 399, 800)], 99)
    assert (which, texts, read) == ([1, 2], ["text 350", "text 399"], [3])


def test_documents_near_the_threshold_are_the_nearest(built, workspace):
    workspace, shards = workspace
    kept, rejected = near_threshold(workspace, shards, each=3)
    assert len(kept) == len(rejected) == 3
    assert len({near.block for near in kept}) == 2  # from all blocks in turn
    for near in [*kept, *rejected]:
        mask = built.read(shards[near.document.shard].masks).slice(near.document.row, 1).to_pylist()[0]
        assert (mask["block"], mask["inclusion"]) == (near.block, near.inclusion)
        assert mask["selected"] == (near in kept)
        rows = [row for shard in shards for row in built.read(shard.masks).to_pylist() if row["block"] == near.block]
        k = sum(row["selected"] for row in rows)
        ordered = sorted((row["inclusion"] for row in rows), reverse=True)
        assert near.threshold == pytest.approx((ordered[k - 1] + ordered[k]) / 2)
        alike = [row["inclusion"] for row in rows if row["selected"] == mask["selected"]]
        nearer = [one for one in alike if abs(one - near.threshold) < abs(near.inclusion - near.threshold)]
        assert len(nearer) < 2  # two of one block and one of the other are shown


def test_indices_are_evenly_spaced():
    for n, at_most, expected in ((5, 9, 5), (5, 2, 2), (64, 16, 16), (65, 16, 13)):
        found = list(evenly_spaced(n, at_most))
        assert (len(found), found[0]) == (expected, 0)
        assert len(set(np.diff(found))) <= 1


def test_a_document_that_was_never_considered_is_the_farthest_of_all():
    columns = {"row": range(4), "shard": [0] * 4, "inclusion": [3.0, 1.0, 0.5, -np.inf]}
    rows = pa.table(columns | {"selected": [True, True, False, False]})
    kept, rejected = _nearest("block", rows, 2)
    assert [near.document.row for near in kept + rejected] == [1, 0, 2, 3]
    assert {near.threshold for near in kept + rejected} == {0.75}
    kept, rejected = _nearest("block", rows.slice(3).set_column(3, "selected", pa.array([True])), 2)
    assert (len(kept), rejected) == (1, [])
