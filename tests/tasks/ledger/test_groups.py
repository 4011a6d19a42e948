"""Columns by which two sides are compared: those that have groups, not too many of them."""

import pytest

from fineweb_mask.models.errors import DataError
from fineweb_mask.tasks.ledger import groups
from fineweb_mask.tasks.ledger.groups import check_groups


@pytest.mark.parametrize(
    ("by", "message"),
    [
        ("nosuch", "--by nosuch: no document has a group there: name one of dump, url, date, file_path, language"),
        ("text", "--by text: "),
        ("id", "--by id: it has 48 values in 48 documents, which are no groups"),
    ],
)
def test_columns_that_have_no_groups_are_refused(built, monkeypatch, by, message):
    monkeypatch.setattr(groups, "MOST_GROUPS", 30)
    check_groups(built.workspace, built.selection_shards, "dump")
    with pytest.raises(DataError, match=message):
        check_groups(built.workspace, built.selection_shards, by)
