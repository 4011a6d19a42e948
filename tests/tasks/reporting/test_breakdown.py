"""Breakdown: documents are counted exactly by group, for any number of groups and shards."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fineweb_mask.models.analysis.groups import between_share
from fineweb_mask.tasks.reporting import breakdown
from fineweb_mask.tasks.reporting.breakdown import SelectedShare, break_down
from fineweb_mask.tasks.workspace.references import ShardFiles, StageFile
from fineweb_mask.tasks.workspace.workspace import Workspace

DICE = np.random.default_rng(0)


def shard(folder, name, documents, selected, eligible):
    n = len(selected)
    block = pa.array(np.where(eligible, "block", None), pa.string())
    tables = {
        "documents": pa.table({"row": pa.array(range(n), pa.uint32()), **documents}),
        "scores": pa.table({"row": pa.array(range(n), pa.uint32()), "quality": DICE.normal(size=n).astype(np.float32)}),
        "masks": pa.table({"row": pa.array(range(n), pa.uint32()), "selected": selected & eligible, "block": block}),
    }
    files = {}
    for stage, table in tables.items():
        path = folder / stage / f"{name}.parquet"
        path.parent.mkdir(exist_ok=True)
        pq.write_table(table, path)
        files[stage] = StageFile(
            stage=stage, name=name, path=f"{stage}/{name}.parquet", rows=n, bytes=1, fingerprint=""
        )
    return ShardFiles(**files, embeddings=files["masks"])


@pytest.fixture
def shards(tmp_path):
    """Two shards; the second lacks the column `kind` and the url of a third of its documents."""
    made = []
    for name, n in (("a", 400), ("b", 300)):
        urls = [f"https://www.site{row % 50}.org/{row}" if name == "a" or row % 3 else None for row in range(n)]
        documents = {
            "n_chars": pa.array(DICE.integers(100, 9_000, n), pa.uint32()),
            "dump": ["x" if row % 4 else "" for row in range(n)],
            "url": urls,
        }
        if name == "a":
            documents["kind"] = pa.array(np.arange(n) % 3)
        made.append(shard(tmp_path, name, documents, DICE.random(n) < 0.3, DICE.random(n) < 0.8))
    return made


def eligible_rows(tmp_path, shards):
    rows = []
    for one in shards:
        parts = [pq.read_table(tmp_path / file.path) for file in (one.documents, one.scores, one.masks)]
        for document, score, mask in zip(*(part.to_pylist() for part in parts), strict=True):
            if mask["block"]:
                rows.append({**document, **score, "selected": mask["selected"]})
    return rows


def test_every_group_is_counted(tmp_path, shards):
    found = break_down(Workspace(tmp_path), shards, ["kind"])
    rows = eligible_rows(tmp_path, shards)

    def share(label, of):
        members = [row for row in rows if of(row)]
        return SelectedShare(label, len(members), sum(row["selected"] for row in members))

    dumps = {"x": "x", "unknown": ""}
    assert found.groups["dump"] == [
        share(name, lambda row, dump=dump: row["dump"] == dump) for name, dump in dumps.items()
    ]
    domains = found.groups["domain"]
    assert len(domains) == 17
    assert [one.label for one in domains[15:]] == ["no url", "35 others"]
    assert domains[15] == share("no url", lambda row: row["url"] is None)
    assert sum(one.documents for one in domains) == len(rows)
    label = domains[0].label
    assert domains[0] == share(label, lambda row: f"www.{label}/" in (row["url"] or ""))
    kinds = {"0": 0, "1": 1, "2": 2, "unknown": None}
    assert sorted(found.groups["kind"]) == [
        share(name, lambda row, kind=kind: row.get("kind") == kind) for name, kind in kinds.items()
    ]


def test_every_document_is_in_a_tenth_or_of_unknown_quality(tmp_path, shards):
    path = tmp_path / shards[1].scores.path
    unknown = pa.array(np.where(np.arange(300) % 3, 1.5, np.nan), pa.float32())
    pq.write_table(pq.read_table(path).set_column(1, "quality", unknown), path)
    found = break_down(Workspace(tmp_path), shards)
    rows = eligible_rows(tmp_path, shards)
    lengths, kept, quality = (np.array([row[name] for row in rows]) for name in ("n_chars", "selected", "quality"))
    tenths = found.groups["n_chars"]
    assert [one.documents for one in tenths] == pytest.approx([len(rows) / 10] * 10, abs=2)
    low, high = np.quantile(lengths, [0.9, 1])
    assert tenths[9][1:] == ((lengths >= low).sum(), kept[lengths >= low].sum())
    assert tenths[9].label.endswith(f" to {high:,.0f}")
    none = np.isnan(quality)
    assert found.groups["quality"][-1] == SelectedShare("unknown", none.sum(), kept[none].sum())
    assert sum(one.documents for one in found.groups["quality"]) == len(rows)
    for name, values in (("n_chars", lengths), ("quality", quality)):
        assert (found.numbers[name] == np.sort(values[np.isfinite(values)])).all()
        assert (found.selected[name] == np.sort(values[np.isfinite(values) & kept])).all()


def test_the_quality_is_compared_between_the_values_of_columns(tmp_path, shards, monkeypatch):
    """Over all shards, in which a document without a value is of one of its own; of many small groups nothing."""
    for one in shards:
        path = tmp_path / one.scores.path
        dumps = np.array(pq.read_table(tmp_path / one.documents.path)["dump"])
        quality = (DICE.normal(size=len(dumps)) + 2 * (dumps == "x")).astype(np.float32)
        quality[5] = np.nan
        pq.write_table(pa.table({"row": pa.array(range(len(dumps)), pa.uint32()), "quality": quality}), path)
    monkeypatch.setattr(breakdown, "LEAST", 20)
    found = break_down(Workspace(tmp_path), shards, ["kind"]).between
    rows = [row for row in eligible_rows(tmp_path, shards) if np.isfinite(row["quality"])]
    assert found.keys() == {"dump", "kind"}
    for column, share in found.items():
        values = {row.get(column) for row in rows}
        groups = [[row["quality"] for row in rows if row.get(column) == value] for value in values]
        sums = [np.array([sum(x**power for x in group) for group in groups]) for power in (0, 1, 2)]
        assert share == pytest.approx(between_share(*sums), abs=1e-9)
    assert found["dump"] > 0.3
    assert found["kind"] < 0.1
    monkeypatch.setattr(breakdown, "LEAST", 400)
    assert break_down(Workspace(tmp_path), shards).between == {"dump": 0}


def test_of_a_large_corpus_a_sample_is_counted_and_said_to_be_one(tmp_path, shards, monkeypatch):
    exact = break_down(Workspace(tmp_path), shards)
    assert exact.counted == "All eligible documents."
    monkeypatch.setattr(breakdown, "MOST_DOCUMENTS", 140)
    found = break_down(Workspace(tmp_path), shards)
    total = sum(one.documents for one in found.groups["dump"])
    assert total == len(found.numbers["quality"]) < 140 < len(exact.numbers["quality"])
    assert found.counted == f"A sample of {total} eligible documents."
    assert set(found.numbers["quality"]) < set(exact.numbers["quality"])
    monkeypatch.setattr(breakdown, "MOST_SHARDS", 1)
    assert sum(one.documents for one in break_down(Workspace(tmp_path), shards).groups["dump"]) < 140


def test_a_list_cannot_be_broken_down_by(tmp_path, shards):
    path = tmp_path / shards[0].documents.path
    pq.write_table(pq.read_table(path).append_column("tags", pa.array([["a"]] * 400)), path)
    for column, message in (
        ("tags", r"report\.by: a column of type list<.*> cannot be broken down by"),
        ("tag", "no document has a column 'tag'"),
    ):
        with pytest.raises(ValueError, match=message):
            break_down(Workspace(tmp_path), shards, [column])
    asked = break_down(Workspace(tmp_path), shards, ["n_chars", "dump", "Kind"], ["nowhere"]).groups
    assert list(asked) == ["dump", "domain", "kind", "nowhere", "n_chars", "quality"]
