"""Breakdown: documents are counted exactly by group, for any number of groups and shards."""

import numpy as np
import pyarrow as pa
import pytest

from fineweb_mask.models.analysis.groups import between_share
from fineweb_mask.tasks.reporting import breakdown
from fineweb_mask.tasks.reporting.breakdown import SelectedShare, break_down
from fineweb_mask.tasks.workspace.references import ShardFiles
from fineweb_mask.tasks.workspace.workspace import Workspace
from tests.tasks.stage_files import KEY, write_table

DICE = np.random.default_rng(0)
STAGES = {"scores": ["row", "quality"], "masks": ["row", "selected", "block"]}


@pytest.fixture
def corpus(tmp_path):
    """Return the function that makes two shards and returns the workspace, the shards and all eligible documents.

    The second lacks the column `kind` and the url of a third of its documents.
    """

    def make(quality=lambda _: DICE.normal()):
        workspace, shards, eligible = Workspace(tmp_path), [], []
        for name, n in (("a", 400), ("b", 300)):
            rows = [
                {"row": row, "dump": "x" if row % 4 else "", "n_chars": DICE.integers(100, 9_000)} for row in range(n)
            ]
            for place, row in enumerate(rows):
                has_url, in_block = name == "a" or place % 3, DICE.random() < 0.8
                row.update(url=f"https://www.site{place % 50}.org/{place}" if has_url else None)
                row.update({"kind": place % 3} if name == "a" else {})
                row.update(block="block" if in_block else None, selected=bool(in_block and DICE.random() < 0.3))
                row["quality"] = quality(row)
            table = pa.Table.from_pylist(rows)
            own = ["row", *(one for one in table.column_names if one not in {*STAGES["scores"], *STAGES["masks"]})]
            columns = {"documents": own, **STAGES}
            files = {stage: write_table(workspace, stage, name, table.select(of), KEY) for stage, of in columns.items()}
            shards.append(ShardFiles(**files))
            eligible += [row for row in rows if row["block"]]
        return workspace, shards, eligible

    return make


def test_every_group_is_counted(corpus):
    workspace, shards, rows = corpus()
    found = break_down(workspace, shards, ["kind"])

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


def test_every_document_is_in_a_tenth_or_of_unknown_quality(corpus):
    workspace, shards, rows = corpus(lambda row: DICE.normal() if "kind" in row else 1.5 if row["row"] % 3 else np.nan)
    found = break_down(workspace, shards)
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


def test_the_quality_is_compared_between_the_values_of_columns(corpus, monkeypatch):
    """Over all shards, in which a document without a value is of one of its own; of many small groups nothing."""
    workspace, shards, rows = corpus(
        lambda row: np.nan if row["row"] == 5 else DICE.normal() + 2 * (row["dump"] == "x")
    )
    monkeypatch.setattr(breakdown, "LEAST", 20)
    found = break_down(workspace, shards, ["kind"]).between
    rows = [row for row in rows if np.isfinite(row["quality"])]
    assert found.keys() == {"dump", "kind"}
    for column, share in found.items():
        values = {row.get(column) for row in rows}
        groups = [[row["quality"] for row in rows if row.get(column) == value] for value in values]
        sums = [np.array([sum(x**power for x in group) for group in groups]) for power in (0, 1, 2)]
        assert share == pytest.approx(between_share(*sums), abs=1e-9)
    assert found["dump"] > 0.3
    assert found["kind"] < 0.1
    monkeypatch.setattr(breakdown, "LEAST", 400)
    assert break_down(workspace, shards).between == {"dump": 0}


def test_of_a_large_corpus_a_sample_is_counted_and_said_to_be_one(corpus, monkeypatch):
    workspace, shards, _ = corpus()
    exact = break_down(workspace, shards)
    assert exact.counted == "All eligible documents."
    monkeypatch.setattr(breakdown, "MOST_DOCUMENTS", 140)
    found = break_down(workspace, shards)
    total = sum(one.documents for one in found.groups["dump"])
    assert total == len(found.numbers["quality"]) < 140 < len(exact.numbers["quality"])
    assert found.counted == f"A sample of {total} eligible documents."
    assert set(found.numbers["quality"]) < set(exact.numbers["quality"])
    monkeypatch.setattr(breakdown, "MOST_SHARDS", 1)
    assert sum(one.documents for one in break_down(workspace, shards).groups["dump"]) < 140


def test_columns_are_shown_once_in_their_order_and_may_be_missing(corpus):
    workspace, shards, _ = corpus()
    asked = break_down(workspace, shards, ["n_chars", "dump", "kind", "nowhere"]).groups
    assert list(asked) == ["dump", "domain", "kind", "nowhere", "n_chars", "quality"]
