"""What changed between two sides, against plain Python on random ones."""

import json
import random
from collections import Counter

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from fineweb_mask.models.errors import DataError
from fineweb_mask.tasks.catalog.fates import NOT_SELECTED, SELECTED
from fineweb_mask.tasks.ledger import difference
from fineweb_mask.tasks.ledger.difference import compare, compared


def compare_rows(a, b, tolerance=None, scores=("quality",)):
    """Compare two sides made of rows."""
    texts = ("id", "url", "by_group", "stage", "reason")
    kinds = {**dict.fromkeys(texts, pa.string()), "content_hash": pa.binary(), "selected": pa.bool_()}
    kinds |= {"tokens": pa.int64(), **dict.fromkeys(scores, pa.float64())}
    with duckdb.connect() as connection:
        for table, rows in (("a", a), ("b", b)):
            connection.from_arrow(pa.Table.from_pylist(rows, schema=pa.schema(kinds))).create(table)
        return compared(connection, ("a", "b"), "dump", list(scores), tolerance).model_dump()


FATE = [("select", SELECTED), ("select", NOT_SELECTED), ("dedup", "duplicate"), None]


def draw(seed, ids=300):
    dice, rows = random.Random(seed), []
    for number in range(ids):
        if (fate := dice.choice(FATE)) is not None:
            row = {"id": f"id {number:03}", "url": f"u{number}", "by_group": f"dump {number % 3}", "stage": fate[0]}
            row |= {"reason": fate[1], "selected": fate[1] == SELECTED, "tokens": dice.randrange(9)}
            row |= {"content_hash": bytes([dice.randrange(2)]) * 16, "quality": dice.gauss(0, 1)}
            rows.append(row)
    dice.shuffle(rows)
    return rows


@pytest.mark.parametrize("seed", range(2))
def test_changes_are_those_of_plain_python(seed):
    a, b = draw(2 * seed), draw(2 * seed + 1)
    found = compare_rows(a, b, 0.5)
    of_a, of_b = ({row["id"]: row for row in side} for side in (a, b))
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
        fate: tuple(sum((row["stage"], row["reason"]) == fate for row in side) for side in (a, b)) for fate in FATE[1:3]
    }
    json.dumps(found, allow_nan=False)


def test_a_side_does_not_differ_from_itself_nor_do_empty_ones_and_repeated_ids_are_paired():
    rows = draw(5)
    rows.append({**rows[0], "content_hash": b"x" * 16})
    found = compare_rows(rows, rows[::-1], 0)
    assert (found["entered"], found["left"], found["changed"], found["other_text"]) == (0, 0, 0.0, 0)
    assert (found["a"]["selected"], found["is_above"]) == (sum(row["selected"] for row in rows), False)
    nothing = compare_rows([], [])
    assert (nothing["changed"], nothing["scores"][0]["documents"]) == (0, 0)


def test_scores_may_have_any_name():
    rows = draw(1)
    a, b = ([row | {"my 'own'": value} for row in rows] for value in (1.0, 3.0))
    [_, found] = compare_rows(a, b, scores=("quality", "my 'own'"))["scores"]
    assert (found["score"], found["a"], found["b"], found["correlation"]) == ("my 'own'", 1, 3, None)  # all are equal


def test_a_workspace_differs_from_itself_in_nothing(built, ledger):
    found = compare([("a", ledger), ("b", ledger)], "Dump", 0)  # however the column is spelled
    assert (found.entered, found.left, found.other_text, found.is_above, found.status) == (0, 0, 0, False, "done")
    assert found.a["selected"] == found.b["selected"] == built.counts.selected
    assert found.a["tokens"] == found.b["tokens"] == built.counts.tokens_selected
    assert [one["score"] for one in found.scores] == ["quality", "space"]
    assert {(one["stage"], one["reason"]): (one["a"], one["b"]) for one in found.steps} == {
        ("ingest", "too_short"): (1, 1),
        ("ingest", "duplicate"): (1, 1),
        ("dedup", "duplicate"): (2, 2),
        ("select", NOT_SELECTED): (built.counts.not_selected,) * 2,
    }


@pytest.mark.parametrize(
    ("by", "message"),
    [
        ("nosuch", "--by nosuch: no document has a group there: name one of dump, url, date, file_path, language"),
        ("text", "--by text: "),
        ("id", "--by id: it has 66 values, which are no groups"),
    ],
)
def test_columns_that_have_no_groups_are_refused(ledger, monkeypatch, by, message):
    monkeypatch.setattr(difference, "MOST_GROUPS", 30)
    with pytest.raises(DataError, match=message):
        compare([("a", ledger), ("b", ledger)], by)
