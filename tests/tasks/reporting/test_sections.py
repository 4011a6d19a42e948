"""Sections of the report: a column of one value is not shown, losses and gaps claim what is proved, budgets add up."""

import numpy as np
import pytest

from fineweb_mask.models.losses import GroupLosses, Wiped
from fineweb_mask.tasks.reporting.breakdown import Breakdown, SelectedShare
from fineweb_mask.tasks.reporting.sections import (
    budgets,
    certificate,
    claim,
    distributions,
    group_losses,
    shares,
    weighted_mean,
    what_was_read,
)
from fineweb_mask.tasks.source.discovery import find_source
from fineweb_mask.tasks.source.inventory import take_inventory
from fineweb_mask.tasks.workspace.references import NO_FILE, ShardFiles
from tests.tasks.source_files import settings, write_table


def test_a_column_of_one_value_is_neither_listed_nor_drawn():
    groups = {
        "dump": [SelectedShare("unknown", 90, 9)],
        "topic": [SelectedShare("a", 60, 3), SelectedShare("b", 30, 6), SelectedShare("c", 0, 0)],
    }
    same = {"n_chars": np.full(9, 7.0), "quality": np.empty(0)}
    broken_down = Breakdown(groups=groups, numbers=same, selected=same, between={}, counted="All eligible documents.")
    [table] = shares(broken_down).tables
    assert [column.label for column in table.columns] == ["topic", "documents", "selected", "share"]
    assert table.rows == [["a", 60, 3, 0.05], ["b", 30, 6, 0.2], ["c", 0, 0, 0.0]]
    assert table.note == "Of all: 10.0%."
    assert not distributions(broken_down).figures


def test_the_medians_of_quality_and_length_are_told():
    numbers = {"n_chars": np.arange(1.0, 10), "quality": np.arange(9.0)}
    kept = {"n_chars": np.array([3.0]), "quality": np.empty(0)}
    [figure] = distributions(Breakdown({}, numbers, kept, {}, "A sample of 9 eligible documents.")).figures
    assert figure.caption.startswith("A sample of 9 eligible documents. Median length: 5 before, 3 after. The outer")
    assert {row[0] for row in figure.numbers.rows} == {
        "quality (standard deviations)",
        "length (characters, logarithmic)",
    }


def test_groups_that_keep_least_come_first_and_columns_of_which_one_is_wiped_out():
    lost = [
        GroupLosses("dump", "x", 100, {"ingest": {"too_short": 5, "known": 5}}),
        GroupLosses("language", "en", 100, {}),  # nothing to say
        GroupLosses("source", "big", 900, {}),
        GroupLosses("source", "gone", 100, {"near_duplicate": {"near_duplicate": 99}}),
        GroupLosses("source", None, 10, {"ingest": {"broken_row": 10}}),
    ]
    [section] = group_losses(lost, [Wiped("source", "gone", "near_duplicate", 100, 1, {"near_duplicate": 99})])
    assert [table.title for table in section.tables] == ["Losses by source", "Losses by dump"]
    source, dump = section.tables
    assert [column.label for column in source.columns][2:4] == ["dropped by ingest", "near-duplicates"]
    assert source.rows == [["unknown", 10, 10, 0, 0, 0.0], ["gone", 100, 0, 99, 1, 0.01], ["big", 900, 0, 0, 900, 1.0]]
    assert dump.rows == [["x", 100, 10, 90, 0.9]]
    assert group_losses(lost[1:3], []) == []


def test_of_very_many_groups_and_columns_the_rest_is_in_sql():
    lost = [
        GroupLosses(f"column {place}", str(number), 30, {"duplicate": {"duplicate": 3}})
        for place in range(7)
        for number in range(201)
    ]
    [section] = group_losses(lost, [])
    assert section.text[-1] == "2 more columns are in the view losses of fineweb-mask sql."
    assert [len(table.rows) for table in section.tables] == [200] * 5
    assert section.tables[0].note == "1 more groups are in the view losses of fineweb-mask sql."


def of_group(name, documents, budget, selected, tokens_selected=0):
    counts = {"documents": documents, "budget": budget, "selected": selected, "tokens_selected": tokens_selected}
    return {"name": f"a language={name}", "group": name, **counts}


def test_groups_of_all_blocks_are_added_up_and_say_how_much_of_their_budget_is_filled():
    blocks = [
        of_group("de", 10, 19.6, 10),
        of_group("", 5, 0, 0),
        of_group("en", 90, 20, 25),
        of_group("de", 4, 8.4, 4),
    ]
    [table] = budgets(blocks, "language", "documents").tables
    assert [column.label for column in table.columns][::3] == ["language", "budget (documents)"]
    assert table.rows == [["en", 90, 25, 20, 1.25], ["de", 14, 14, 28, 0.5], ["unknown", 5, 0, 0, None]]
    blocks = [of_group("en", 9, 1000, 5, 900), of_group("de", 8, 1000, 5, 1000)]
    [table] = budgets(blocks, "language", "tokens").tables
    assert table.rows == [["en", 9, 5, 1000, 0.9], ["de", 8, 5, 1000, 1.0]]


def block(name, documents, objective, bound):
    gap = None if bound is None else bound - objective
    return {"name": name, "documents": documents, "objective": objective, "upper_bound": bound, "gap": gap}


def test_the_certificate_names_the_widest_gap_and_claims_only_what_is_proved():
    blocks = [block("a", 100, 0.5, 0.5), block("b", 300, 0.7, 0.72)]
    assert claim(blocks) == (
        "Of the way from a random selection to the best possible, at most 2% is missing, in any block."
    )
    assert weighted_mean(blocks, "objective") == pytest.approx(0.65)
    assert weighted_mean(blocks, "gap") == pytest.approx(0.015)
    blocks = [block("a", 100, 0.5, None)]
    assert claim(blocks) == "This solver gives no bound on the best possible selection."
    assert weighted_mean(blocks, "gap") is None


SOLVED = block("a", 100, 0.5, 0.6) | {"selected": 30, "random_objective": 0.1}


def test_blocks_of_which_nothing_is_selected_are_listed_and_in_no_mean():
    figures = dict.fromkeys(("objective", "random_objective", "upper_bound", "gap"))
    section = certificate([{"name": "b", "documents": 50, "selected": 0, **figures}, SOLVED])
    [table] = section.tables
    assert table.rows[0] == ["all 2 blocks, mean", 150, 30, 0.2, 0.5, 0.1, 0.6, pytest.approx(0.1)]
    assert table.rows[1] == ["b", 50, 0, 0.0, None, None, None, None]
    assert certificate([]).tables == []


def test_files_and_what_is_left_out_stand_in_a_table(tmp_path):
    write_table(tmp_path / "a.parquet", text=["a"])
    (tmp_path / "b.csv").touch()
    source = settings(tmp_path)
    shard = ShardFiles(documents=NO_FILE.model_copy(update={"name": "a", "details": {"repeated_ids": 2}}))
    section = what_was_read(take_inventory(find_source(source), source), [shard])
    [table] = section.tables
    assert [about for about, _ in table.rows] == ["reads", "columns", "left out"]
    assert "b.csv" in table.rows[2][1]
    assert section.text == ["2 rows have an id that an earlier row of their file has, in a"]
