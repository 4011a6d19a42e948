"""Samples: rows of a shard's files belong together, and draws are uniform."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fineweb_mask.tasks.reporting.samples import (
    DocumentRef,
    documents_at,
    draw,
    eligible_table,
    evenly_spaced,
    quality_at,
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
    scores = quality_at(*workspace, refs, "quality")
    for ref, vector, row, text, quality in zip(refs, vectors, rows, texts, scores, strict=True):
        shard = workspace[1][ref.shard]
        [found] = [
            one for one in built.joined(shard.documents, shard.scores, shard.embeddings) if one["row"] == ref.row
        ]
        assert vector.tolist() == found["embedding"]
        assert (row, quality) == ({"id": found["id"], "text": found["text"]}, found["quality"])
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


def test_indices_are_evenly_spaced():
    for n, at_most, expected in ((5, 9, 5), (5, 2, 2), (64, 16, 16), (65, 16, 13)):
        found = list(evenly_spaced(n, at_most))
        assert (len(found), found[0]) == (expected, 0)
        assert len(set(np.diff(found))) <= 1
