"""What changed between two sides, against plain Python on random sides, and the page."""

import json
import random
from collections import Counter
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest

from fineweb_mask.tasks.ledger.decisions import SELECTED
from fineweb_mask.tasks.ledger.difference import NOT_THERE, compare, difference_page
from fineweb_mask.tasks.ledger.sides import FATES


class Drawn:
    """A side made of rows; its texts are read only when they are asked for."""

    def __init__(self, name, rows, scores=("quality",)):
        self.name, self.rows, self.scores, self.fingerprint = name, rows, list(scores), name

    def fates(self, by):  # noqa: ARG002 - the rows have their groups
        schema = pa.schema([*FATES, *((score, pa.float64()) for score in self.scores)])
        for first, last in pairwise([0, len(self.rows) // 3, len(self.rows)]):
            yield pa.Table.from_pylist(self.rows[first:last], schema=schema)

    def drops(self):
        return Counter({("ingest", "too_short"): 3})

    def texts(self, places):
        return {place: f"text of {place}" for place in places}


FATE = [("select", SELECTED), ("select", "not selected"), ("dedup", "duplicate"), None]


def draw(name, seed, ids=300):
    dice, rows = random.Random(seed), []
    for number in range(ids):
        if (fate := dice.choice(FATE)) is not None:
            row = {"id": f"id {number:03}", "url": f"u{number}", "by_group": f"dump {number % 3}", "stage": fate[0]}
            row |= {"reason": fate[1], "tokens": dice.randrange(9), "shard": number % 2, "row": number // 2}
            row |= {"content_hash": bytes([dice.randrange(2)]) * 16, "quality": dice.gauss(0, 1)}
            rows.append(row)
    dice.shuffle(rows)
    return Drawn(name, rows)


@pytest.mark.parametrize("seed", range(2))
def test_changes_are_those_of_plain_python(tmp_path, seed):
    a, b = draw("a", 2 * seed), draw("b", 2 * seed + 1)
    found = compare([a, b], "dump", tmp_path / "spill", 0.5)
    of_a, of_b = ({row["id"]: row for row in side.rows} for side in (a, b))
    chosen_a, chosen_b = ({name for name, row in of.items() if row["reason"] == SELECTED} for of in (of_a, of_b))
    assert (found["a"]["selected"], found["b"]["selected"]) == (len(chosen_a), len(chosen_b))
    assert found["a"]["tokens"] == sum(of_a[name]["tokens"] for name in chosen_a)
    assert (found["entered"], found["left"]) == (len(chosen_b - chosen_a), len(chosen_a - chosen_b))
    assert found["changed"] == pytest.approx(1 - len(chosen_a & chosen_b) / len(chosen_a | chosen_b))
    assert found["is_above"] == (found["changed"] > 0.5)
    for kind, names, other in (("entered", chosen_b - chosen_a, of_a), ("left", chosen_a - chosen_b, of_b)):
        expected = Counter(
            (other[name]["stage"], other[name]["reason"]) if name in other else ("source", NOT_THERE) for name in names
        )
        assert {(one["stage"], one["reason"]): one["documents"] for one in found[f"{kind}_by"]} == expected
        shown = Counter((one["stage"], one["reason"]) for one in found["examples"] if one["kind"] == kind)
        assert shown == {key: min(10, count) for key, count in expected.items()}
        assert all(one["id"] in names for one in found["examples"] if one["kind"] == kind)
    groups = {one["group"]: one for one in found["groups"]}
    for group, one in groups.items():
        names = {f"id {number:03}" for number in range(300) if f"dump {number % 3}" == group}
        assert one["a"] == len(names & chosen_a)
        assert one["left"] == len(names & (chosen_a - chosen_b))
    both = sorted(of_a.keys() & of_b.keys())
    one, other = (np.array([of[name]["quality"] for name in both]) for of in (of_a, of_b))
    [drift] = found["scores"]
    assert drift["documents"] == len(both)
    assert drift["difference"] == pytest.approx((other - one).mean())
    assert drift["deviation"] == pytest.approx((other - one).std())
    ranks = [np.argsort(np.argsort(values)) for values in (one, other)]
    assert drift["rank_correlation"] == pytest.approx(np.corrcoef(*ranks)[0, 1])
    drifted = [row["id"] for row in found["examples"] if row["kind"] == "drifted"]
    assert set(drifted) == set(np.array(both)[np.argsort(-np.abs(other - one))[:10]])
    rewritten = [name for name in chosen_a & chosen_b if of_a[name]["content_hash"] != of_b[name]["content_hash"]]
    assert found["other_text"] == len(rewritten)
    steps = {(one["stage"], one["reason"]): (one["a"], one["b"]) for one in found["steps"]}
    assert steps["ingest", "too_short"] == (3, 3)
    assert steps["dedup", "duplicate"] == tuple(
        sum(row["reason"] == "duplicate" for row in side.rows) for side in (a, b)
    )
    assert not (tmp_path / "spill").exists()
    json.dumps(found, allow_nan=False)


def test_a_side_does_not_differ_from_itself_nor_do_empty_ones_and_repeated_ids_are_paired(tmp_path):
    side = draw("a", 5)
    again = {**side.rows[0], "content_hash": b"x" * 16, "row": 10_000}
    side.rows.append(again)
    found = compare([side, Drawn("b", side.rows[::-1])], "dump", tmp_path / "spill", 0)
    assert (found["entered"], found["left"], found["changed"], found["other_text"]) == (0, 0, 0.0, 0)
    assert not found["is_above"]
    assert found["examples"] == []
    nothing = compare([Drawn("a", []), Drawn("b", [])], "dump", tmp_path / "spill")
    assert (nothing["changed"], nothing["scores"][0]["documents"]) == (0, 0)
    assert "not in both" in difference_page(nothing).html()


def test_only_scores_that_both_have_are_compared_whatever_their_names(tmp_path):
    rows = draw("a", 1).rows
    more = [row | {"occurrence": 1.0, "mine": 2.0} for row in rows]
    a = Drawn("a", more, ["quality", "occurrence", "mine"])
    b = Drawn("b", [row | {"occurrence": 3.0} for row in rows], ["quality", "occurrence"])
    found = compare([a, b], "dump", tmp_path / "spill")
    assert [one["score"] for one in found["scores"]] == ["quality", "occurrence"]
    assert found["scores"][1]["difference"] == 2.0
    assert found["scores"][1]["rank_correlation"] is None  # all are equal


def test_the_page_shows_examples_and_escapes_what_comes_from_the_web(tmp_path):
    a, b = draw("a <b>", 2), draw("b", 3)
    for row in (*a.rows, *b.rows):
        row["url"] = "<script>alert(1)</script>"
    page = difference_page(compare([a, b], "dump", tmp_path / "spill", 0.1))
    html, markdown = page.html(), page.markdown()
    assert "<script>alert(1)</script>" not in html
    assert "more than the tolerance" in html
    assert "text of (" in html
    assert "duplicate" in markdown
