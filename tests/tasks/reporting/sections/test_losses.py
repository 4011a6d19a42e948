"""What each group loses: those that keep least come first, and the rest is in SQL."""

from fineweb_mask.models.losses import GroupLosses, Wiped
from fineweb_mask.tasks.reporting.sections.losses import group_losses


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
    assert "2 of 3 groups" in section.figures[0].caption
    assert section.figures[0].caption.endswith("Least: 1.0% (gone).")
    assert group_losses(lost[1:3], []) == []


def test_of_very_many_groups_and_columns_the_rest_is_in_sql():
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
