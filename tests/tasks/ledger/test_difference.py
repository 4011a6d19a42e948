"""What changed between two sides, against plain Python on random sides; a workspace and its dataset are read alike."""

import json
import random
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest

from fineweb_mask.models.errors import DataError
from fineweb_mask.tasks.catalog.fates import NOT_SELECTED, SELECTED
from fineweb_mask.tasks.dataset.verify import find_dataset, read_provenance
from fineweb_mask.tasks.ledger import difference
from fineweb_mask.tasks.ledger.difference import DatasetSide, WorkspaceSide, compare


class Drawn:
    """A side made of rows."""

    def __init__(self, name, rows, scores=("quality",)):
        self.name, self.rows, self.scores = name, rows, list(scores)

    def load(self, connection, by, scores):  # noqa: ARG002 - the rows have their groups
        texts = ("id", "url", "by_group", "stage", "reason")
        kinds = {**dict.fromkeys(texts, pa.string()), "content_hash": pa.binary(), "selected": pa.bool_()}
        kinds |= {"tokens": pa.int64(), **dict.fromkeys(scores, pa.float64())}
        connection.from_arrow(pa.Table.from_pylist(self.rows, schema=pa.schema(kinds))).create("loaded")


FATE = [("select", SELECTED), ("select", NOT_SELECTED), ("dedup", "duplicate"), None]


def draw(name, seed, ids=300):
    dice, rows = random.Random(seed), []
    for number in range(ids):
        if (fate := dice.choice(FATE)) is not None:
            row = {"id": f"id {number:03}", "url": f"u{number}", "by_group": f"dump {number % 3}", "stage": fate[0]}
            row |= {"reason": fate[1], "selected": fate[1] == SELECTED, "tokens": dice.randrange(9)}
            row |= {"content_hash": bytes([dice.randrange(2)]) * 16, "quality": dice.gauss(0, 1)}
            rows.append(row)
    dice.shuffle(rows)
    return Drawn(name, rows)


@pytest.mark.parametrize("seed", range(2))
def test_changes_are_those_of_plain_python(tmp_path, seed):
    a, b = draw("a", 2 * seed), draw("b", 2 * seed + 1)
    found = compare([a, b], "dump", tmp_path / "spill", 0.5)
    of_a, of_b = ({row["id"]: row for row in side.rows} for side in (a, b))
    chosen_a, chosen_b = ({name for name, row in of.items() if row["selected"]} for of in (of_a, of_b))
    assert (found["a"]["selected"], found["b"]["selected"]) == (len(chosen_a), len(chosen_b))
    assert found["a"]["tokens"] == sum(of_a[name]["tokens"] for name in chosen_a)
    assert (found["entered"], found["left"]) == (len(chosen_b - chosen_a), len(chosen_a - chosen_b))
    assert found["changed"] == pytest.approx(1 - len(chosen_a & chosen_b) / len(chosen_a | chosen_b))
    assert found["is_above"] == (found["changed"] > 0.5)
    for kind, names, other in (("entered", chosen_b - chosen_a, of_a), ("left", chosen_a - chosen_b, of_b)):
        fates = {
            name: (other[name]["stage"], other[name]["reason"]) if name in other else ("source", "not in it")
            for name in names
        }
        told = {(one["stage"], one["reason"]): one for one in found[f"{kind}_by"]}
        assert {fate: one["documents"] for fate, one in told.items()} == Counter(fates.values())
        for fate, one in told.items():
            shown = [fates[f"id {int(url[1:]):03}"] for url in one["examples"]]
            assert shown == [fate] * min(3, one["documents"])
    groups = {one["group"]: one["entered"] for one in found["groups"]}
    assert groups == Counter(f"dump {int(name[3:]) % 3}" for name in chosen_b - chosen_a)
    both = sorted(of_a.keys() & of_b.keys())
    one, other = (np.array([of[name]["quality"] for name in both]) for of in (of_a, of_b))
    [moved] = found["scores"]
    assert moved["documents"] == len(both)
    assert (moved["a"], moved["b"]) == (pytest.approx(one.mean()), pytest.approx(other.mean()))
    assert moved["largest"] == abs(other - one).max()
    assert moved["correlation"] == pytest.approx(np.corrcoef(one, other)[0, 1])
    rewritten = [name for name in chosen_a & chosen_b if of_a[name]["content_hash"] != of_b[name]["content_hash"]]
    assert found["other_text"] == len(rewritten)
    steps = {(one["stage"], one["reason"]): (one["a"], one["b"]) for one in found["steps"]}
    assert steps == {
        fate: tuple(sum((row["stage"], row["reason"]) == fate for row in side.rows) for side in (a, b))
        for fate in FATE[1:3]
    }
    assert not (tmp_path / "spill").exists()
    json.dumps(found, allow_nan=False)


def test_a_side_does_not_differ_from_itself_nor_do_empty_ones_and_repeated_ids_are_paired(tmp_path):
    side = draw("a", 5)
    side.rows.append({**side.rows[0], "content_hash": b"x" * 16})
    found = compare([side, Drawn("b", side.rows[::-1])], "dump", tmp_path / "spill", 0)
    assert (found["entered"], found["left"], found["changed"], found["other_text"]) == (0, 0, 0.0, 0)
    assert (found["a"]["selected"], found["is_above"]) == (sum(row["selected"] for row in side.rows), False)
    nothing = compare([Drawn("a", []), Drawn("b", [])], "dump", tmp_path / "spill")
    assert (nothing["changed"], nothing["scores"][0]["documents"]) == (0, 0)


def test_only_scores_that_both_have_are_compared_whatever_their_names(tmp_path):
    rows = draw("a", 1).rows
    a = Drawn("a", [row | {"my 'own'": 1.0, "mine": 2.0} for row in rows], ["quality", "my 'own'", "mine"])
    b = Drawn("b", [row | {"my 'own'": 3.0} for row in rows], ["quality", "my 'own'"])
    found = compare([a, b], "dump", tmp_path / "spill")["scores"]
    assert [(one["score"], one["a"], one["b"]) for one in found[1:]] == [("my 'own'", 1.0, 3.0)]
    assert found[1]["correlation"] is None  # all are equal


def dataset_side(built):
    dataset = find_dataset(str(built.workspace.dataset))
    return DatasetSide("dataset", dataset, read_provenance(dataset))


def test_a_dataset_differs_from_its_workspace_in_nothing(built, ledger, tmp_path):
    workspace, dataset = WorkspaceSide("workspace", ledger), dataset_side(built)
    assert dataset.scores == workspace.scores == ["quality", "space"]
    found = compare([workspace, dataset], "Dump", tmp_path / "spill", 0)  # however the column is spelled
    assert (found["entered"], found["left"], found["other_text"], found["is_above"]) == (0, 0, 0, False)
    assert found["a"]["selected"] == found["b"]["selected"] == built.counts.selected
    assert found["a"]["tokens"] == found["b"]["tokens"] > 0
    assert [one["largest"] for one in found["scores"]] == [0, 0]
    assert {(one["stage"], one["reason"]): (one["a"], one["b"]) for one in found["steps"]} == {
        ("ingest", "too_short"): (1, 0),
        ("ingest", "duplicate"): (1, 0),
        ("dedup", "duplicate"): (2, 0),
        ("select", NOT_SELECTED): (built.counts.not_selected, 0),
    }
    alone = compare([dataset, dataset], "nothing", tmp_path / "spill")
    assert [one["group"] for one in alone["groups"]] == [""]  # a column that it lacks


@pytest.mark.parametrize(
    ("by", "message"),
    [
        ("nosuch", "--by nosuch: no document has a group there: name one of dump, url, date, file_path, language"),
        ("text", "--by text: "),
        ("id", "--by id: it has 66 values, which are no groups"),
    ],
)
def test_columns_that_have_no_groups_are_refused(ledger, tmp_path, monkeypatch, by, message):
    monkeypatch.setattr(difference, "MOST_GROUPS", 30)
    side = WorkspaceSide("workspace", ledger)
    with pytest.raises(DataError, match=message):
        compare([side, side], by, tmp_path / "spill")
