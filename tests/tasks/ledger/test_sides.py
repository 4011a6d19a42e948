"""A workspace and its dataset are read alike, and reasons are those of the stages' files."""

from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq

from fineweb_mask.tasks.dataset.verify import find_dataset, read_provenance
from fineweb_mask.tasks.ledger.decisions import NOT_SELECTED, SELECTED, SHOWN_CHARACTERS
from fineweb_mask.tasks.ledger.difference import compare
from fineweb_mask.tasks.ledger.sides import DatasetSide, WorkspaceSide


def workspace_side(ledger):
    return WorkspaceSide("workspace", *ledger)


def dataset_side(built):
    dataset = find_dataset(str(built.workspace.dataset))
    return DatasetSide("dataset", dataset, read_provenance(dataset))


def rows_of(side, by="dump"):
    return pa.concat_tables(side.fates(by)).to_pylist()


def test_every_document_of_a_workspace_has_the_fate_that_its_files_say(built, ledger):
    side = workspace_side(ledger)
    rows = rows_of(side)
    counts = Counter((row["stage"], row["reason"]) for row in rows)
    assert counts == {
        ("select", SELECTED): built.counts.selected,
        ("select", NOT_SELECTED): built.counts.not_selected,
        ("dedup", "duplicate"): 2,
    }
    assert side.drops() == {("ingest", "too_short"): 1, ("ingest", "duplicate"): 1}
    first = next(row for row in rows if row["shard"] == 0 and row["row"] == 3)
    document = pq.read_table(ledger.workspace.resolve(ledger.shards[0].documents)).slice(3, 1).to_pylist()[0]
    assert {name: first[name] for name in ("id", "url", "content_hash")} == {
        name: document[name] for name in ("id", "url", "content_hash")
    }
    assert first["by_group"] == document["dump"]
    assert side.texts([(0, 3), (0, 1)])[0, 3] == document["text"][:SHOWN_CHARACTERS]


def test_a_dataset_differs_from_its_workspace_in_nothing(built, ledger, tmp_path):
    workspace, dataset = workspace_side(ledger), dataset_side(built)
    assert dataset.scores == workspace.scores == ["quality", "space"]
    found = compare([workspace, dataset], "dump", tmp_path / "spill", 0)
    assert (found["entered"], found["left"], found["other_text"], found["is_above"]) == (0, 0, 0, False)
    assert found["a"]["tokens"] == found["b"]["tokens"] > 0
    assert [one["largest"] for one in found["scores"]] == [0, 0]
    assert {one["group"]: one["a"] for one in found["groups"]} == {one["group"]: one["b"] for one in found["groups"]}


def test_a_column_that_a_dataset_lacks_is_one_empty_group(built):
    assert {row["by_group"] for row in rows_of(dataset_side(built), "nothing")} == {""}
