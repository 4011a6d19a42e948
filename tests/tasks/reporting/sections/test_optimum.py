"""How near to the optimum: the certificate claims only what is proved, means are weighted, budgets add up."""

import pytest

from fineweb_mask.tasks.reporting.sections.optimum import certificate, claim, groups, weighted_mean


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
    [table] = groups(blocks, "language", "documents").tables
    assert [column.label for column in table.columns][::3] == ["language", "budget (documents)"]
    assert table.rows == [["en", 90, 25, 20, 1.25], ["de", 14, 14, 28, 0.5], ["unknown", 5, 0, 0, None]]
    blocks = [of_group("en", 9, 1000, 5, 900), of_group("de", 8, 1000, 5, 1000)]
    [table] = groups(blocks, "language", "tokens").tables
    assert table.rows == [["en", 9, 5, 1000, 0.9], ["de", 8, 5, 1000, 1.0]]


def test_blocks_of_which_nothing_is_selected_are_listed_and_in_no_mean():
    figures = dict.fromkeys(("objective", "random_objective", "upper_bound", "gap"))
    empty = {"name": "b", "documents": 50, "selected": 0, **figures}
    one = block("a", 100, 0.5, 0.6) | {"selected": 30, "random_objective": 0.1}
    [table] = certificate([empty, one]).tables
    assert table.rows[0] == ["all 2 blocks, mean", 150, 30, 0.2, 0.5, 0.1, 0.6, pytest.approx(0.1)]
    assert table.rows[1] == ["b", 50, 0, 0.0, None, None, None, None]
    assert len(certificate([one]).tables[0].rows) == 1
    assert certificate([]).tables == []
