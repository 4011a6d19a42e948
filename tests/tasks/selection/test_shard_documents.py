"""What is read of a shard: candidates only, in any number of parts."""

import numpy as np
import pyarrow.parquet as pq
import pytest

from fineweb_mask.tasks.selection import shard_documents
from fineweb_mask.tasks.selection.shard_documents import lots, read_columns, read_parts
from fineweb_mask.tasks.workspace.workspace import Workspace
from tests.tasks.number_shards import numbers


@pytest.mark.parametrize("at_once", [1, 7, 1000])
def test_parts_hold_the_candidates_in_their_order(tmp_path, monkeypatch, at_once):
    monkeypatch.setattr(shard_documents, "PART_ROWS", at_once)
    workspace = Workspace(tmp_path)
    shard = numbers(workspace, "a", 30, duplicates=(0, 7), bad=(3, 29))
    columns = read_columns(workspace, shard)
    assert columns.excluded == {"duplicate": 2, "bad_vector": 2}
    found = list(read_parts(workspace, shard, columns, 5, by_tokens=True))
    rows = np.concatenate([rows for rows, _ in found])
    assert rows.tolist() == [row for row in range(30) if row not in (0, 3, 7, 29)]
    vectors = np.array(pq.read_table(workspace.resolve(shard.embeddings))["embedding"].to_pylist(), dtype=object)
    for part_rows, part in found:
        np.testing.assert_array_equal(part.vectors, np.array(list(vectors[part_rows]), dtype=np.float16))
        np.testing.assert_array_equal(part.quality, columns.quality[part_rows])
        np.testing.assert_array_equal(part.tokens, part_rows + 10)
        np.testing.assert_array_equal(part.lots, lots(5, "a", 30)[part_rows])


def test_a_shard_without_candidates_has_no_parts(tmp_path):
    workspace = Workspace(tmp_path)
    for rows, duplicates in ((0, ()), (2, (0, 1))):
        shard = numbers(workspace, "a", rows, duplicates=duplicates)
        assert list(read_parts(workspace, shard, read_columns(workspace, shard), 0, by_tokens=False)) == []


def test_lots_differ_between_shards_and_seeds():
    drawn = [lots(0, "a", 100), lots(0, "b", 100), lots(1, "a", 100)]
    assert len({tuple(numbers) for numbers in drawn}) == 3
    assert all(((numbers >= 0) & (numbers < 1)).all() for numbers in drawn)
