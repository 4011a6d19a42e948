"""Sections: the certificate claims only what is proved, means are weighted, a stage without time has no rate."""

from typing import Any

import pytest

from fineweb_mask.models.losses import GroupLosses, wiped_out
from fineweb_mask.tasks.reporting.sections import (
    StageTime,
    certificate,
    claim,
    funnel,
    group_losses,
    groups,
    time_by_stage,
    weighted_mean,
)
from fineweb_mask.tasks.workspace.records.counts import Counts
from fineweb_mask.tasks.workspace.shard_files import NO_FILE, ShardFiles


def block(name: str, documents: int, objective: float, bound: float | None) -> dict[str, Any]:
    gap = None if bound is None else bound - objective
    return {"name": name, "documents": documents, "objective": objective, "upper_bound": bound, "gap": gap}


def test_the_certificate_names_the_widest_gap_and_weighs_the_mean() -> None:
    blocks = [block("a", 100, 0.5, 0.5), block("b", 300, 0.7, 0.72)]
    assert claim(blocks) == "No selection of this size can be more than 2% better, in any block."
    assert weighted_mean(blocks, "objective") == pytest.approx(0.65)
    assert weighted_mean(blocks, "gap") == pytest.approx(0.015)


def test_the_table_of_blocks_says_what_share_each_gave() -> None:
    blocks = [
        block(name, documents, 0.5, 0.5) | {"selected": selected, "random_objective": 0.0, "history": []}
        for name, documents, selected in (("a", 100, 30), ("b", 300, 10))
    ]
    [table] = certificate(blocks).tables
    assert [row[:4] for row in table.rows] == [
        ["all 2 blocks, mean", 400, 40, 0.1],
        ["a", 100, 30, 0.3],
        ["b", 300, 10, 10 / 300],
    ]


def test_a_bound_that_is_estimated_says_so() -> None:
    blocks = [{"gap": 0.01, "bound_assumes": None}, {"gap": 0.005, "bound_assumes": "lists hold 98%"}]
    expected = "No selection of this size can be more than 1% better, in any block. "
    assert claim(blocks) == expected + "This is estimated, not proven (lists hold 98%)."


def test_a_selection_that_was_filled_up_after_a_removal_says_so() -> None:
    blocks = [
        block(name, 100, 0.5, 0.5) | {"selected": 9, "random_objective": 0.0, "history": []} | more
        for name, more in (("a", {"filled_up": 2}), ("b", {"filled_up": 3}), ("c", {}))
    ]
    assert certificate(blocks).text[1].startswith("After a removal on request, the 5 next best documents took")
    assert len(certificate(blocks[2:]).text) == 1


def test_a_solver_without_a_bound_claims_nothing() -> None:
    blocks = [block("a", 100, 0.5, None)]
    assert claim(blocks) == "This solver gives no bound on the best possible selection."
    assert weighted_mean(blocks, "gap") is None


def test_a_stage_without_time_has_no_rate() -> None:
    stage = StageTime(stage="ingest", files=1, documents=5)
    assert time_by_stage([stage]).tables[0].rows == [["ingest", 1, 0, 0.0, 0.0, 5, None]]


def of_group(name: str, documents: int, budget: int, selected: int, repeated: int, **more: int) -> dict[str, Any]:
    counts = {"documents": documents, "budget": budget, "selected": selected, "repeated": repeated}
    return {"group": name, **counts, **more}


def test_groups_of_all_blocks_are_added_up_and_say_how_much_of_their_budget_is_filled() -> None:
    blocks = [
        {"groups": [of_group("de", 10, 20, 10, 20), of_group("", 5, 0, 0, 0)]},
        {"groups": [of_group("en", 90, 20, 20, 20), of_group("de", 4, 20, 4, 10)]},
    ]
    [table] = groups(blocks, "language", "documents").tables
    assert [column.label for column in table.columns][::4] == ["language", "budget (documents)"]
    assert table.rows == [["en", 90, 20, 20, 20, 1.0], ["de", 14, 14, 30, 40, 0.75], ["unknown", 5, 0, 0, 0, None]]


def test_a_budget_of_tokens_is_filled_by_tokens() -> None:
    blocks = [{"groups": [of_group("en", 9, 1000, 5, 6, spent=900), of_group("de", 8, 1000, 5, 6)]}]
    [table] = groups(blocks, "language", "tokens").tables
    assert table.rows == [["en", 9, 5, 6, 1000, 0.9], ["de", 8, 5, 6, 1000, None]]


def test_columns_whose_types_differ_are_named_with_their_types() -> None:
    def shard(name: str, **types: str) -> ShardFiles:
        file = NO_FILE.model_copy(update={"name": name, "details": {"as_text": types} if types else {}})
        return ShardFiles(documents=file)

    shards = [shard("a", meta="struct<a: int64>"), shard("b"), shard("c", meta="list<item: string>", n="binary")]
    documents = dict.fromkeys(Counts.model_fields, 0) | {"dropped": {}}
    meta, n = funnel(Counts.model_validate(documents), shards).text
    assert meta.startswith("The column 'meta' is kept as text")
    assert meta.endswith("list<item: string> in 1, struct<a: int64> in 1.")
    assert n.endswith("binary in 1.")
    assert not funnel(Counts.model_validate(documents), [shard("b")]).text


def test_groups_that_keep_least_come_first_and_columns_of_which_one_is_wiped_out() -> None:
    lost = [
        GroupLosses("dump", "x", 100, {"ingest": {"too_short": 5, "known": 5}}),
        GroupLosses("language", "en", 100, {}),  # nothing to say
        GroupLosses("source", "big", 900, {}),
        GroupLosses("source", "gone", 100, {"near_duplicate": {"near_duplicate": 99}}),
        GroupLosses("source", None, 10, {"ingest": {"broken_row": 10}}),
    ]
    [section] = group_losses(lost, wiped_out(lost, 0.05))
    assert [table.title for table in section.tables] == ["Losses by source", "Losses by dump"]
    source, dump = section.tables
    assert [column.label for column in source.columns][2:4] == ["dropped by ingest", "near-duplicates"]
    assert source.rows == [
        ["unknown", 10, 10, 0, 0, 0.0],
        ["gone", 100, 0, 99, 1, 0.01],
        ["big", 900, 0, 0, 900, 1.0],
    ]
    assert dump.rows == [["x", 100, 10, 90, 0.9]]
    assert "2 of 3 groups" in section.figures[0].caption
    assert section.figures[0].caption.endswith("Least: 1.0% (gone).")
    assert group_losses(lost[1:3], []) == []


def test_of_very_many_groups_and_columns_the_rest_is_in_sql() -> None:
    lost = [
        GroupLosses(f"column {place}", str(number), 30, {"duplicate": {"duplicate": 3}})
        for place in range(7)
        for number in range(201)
    ]
    [section] = group_losses(lost, [])
    assert section.text[-1] == "2 more columns are in the view losses of fineweb-mask sql."
    assert len(section.tables) == len(section.figures) == 5
    assert [len(table.rows) for table in section.tables] == [200] * 5
    assert section.tables[0].note == "1 more groups are in the view losses of fineweb-mask sql."
