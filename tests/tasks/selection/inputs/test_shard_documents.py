"""What is read of a shard: candidates only, in any number of parts."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fineweb_mask.models.settings import IngestSettings, SourceSettings
from fineweb_mask.tasks import ingest
from fineweb_mask.tasks.selection.inputs import shard_documents
from fineweb_mask.tasks.selection.inputs.shard_documents import random_keys, read_columns, read_groups, read_vectors
from fineweb_mask.tasks.workspace.references import ShardFiles
from fineweb_mask.tasks.workspace.workspace import Workspace
from tests.tasks.conftest import document, write_rows
from tests.tasks.jobs import ingest_job
from tests.tasks.number_shards import numbers
from tests.tasks.source_files import discover


@pytest.mark.parametrize("at_once", [7, 1000])
def test_vectors_are_read_of_the_rows_that_are_asked_for(tmp_path, at_once):
    workspace = Workspace(tmp_path)
    shard = numbers(workspace, "a", 30, duplicates=(0, 7), bad=(3, 29))
    columns = read_columns(workspace, shard)
    assert columns.excluded == {"duplicate": 2, "bad_vector": 2}
    rows = columns.candidate.nonzero()[0]
    assert rows.tolist() == [row for row in range(30) if row not in (0, 3, 7, 29)]
    every = {row["row"]: row["embedding"] for row in pq.read_table(workspace.resolve(shard.embeddings)).to_pylist()}
    found = list(read_vectors(workspace, shard, rows, at_once))
    assert np.concatenate([rows[places] for places, _ in found]).tolist() == rows.tolist()
    for places, vectors in found:
        np.testing.assert_array_equal(
            vectors, np.array([every[row] for row in rows[places].tolist()], dtype=np.float16)
        )


def test_lots_differ_between_shards_and_seeds():
    drawn = np.array([random_keys(0, "a", 100), random_keys(0, "b", 100), random_keys(1, "a", 100)])
    assert len(np.unique(drawn, axis=0)) == 3
    assert ((drawn >= 0) & (drawn < 1)).all()


def test_groups_are_the_values_of_a_column_as_texts(tmp_path, monkeypatch):
    monkeypatch.setattr(shard_documents, "PART_ROWS", 2)
    columns = [
        {"dump": "x", "site": "one", "level": 3},
        {"dump": None, "site": "", "level": None},
        {"dump": "x", "site": None, "level": -1},
    ]
    extra = (pa.field("site", pa.string()), pa.field("level", pa.int32()))
    write_rows(tmp_path / "source" / "a.parquet", [document(row, **own) for row, own in enumerate(columns)], extra)
    write_rows(tmp_path / "source" / "b.parquet", [document(9)])
    workspace, source = Workspace(tmp_path / "workspace"), SourceSettings(path=str(tmp_path / "source"))
    settings = IngestSettings(min_chars=20)
    files = [ingest.ingest(ingest_job(workspace, shard, source, settings)) for shard in discover(source)]
    with_columns, without = (ShardFiles(documents=file) for file in files)

    expected = {"dump": ["x", "", "x"], "site": ["one", "", ""], "level": ["3", "", "-1"]}
    expected |= {"token_count": ["20", "21", "22"], "language_score": ["0.9"] * 3}
    for column, values in expected.items():
        assert read_groups(workspace, with_columns, column).tolist() == values
    assert read_groups(workspace, without, "level").tolist() == [""]
