"""Names of columns: other spellings, and paths to values within others."""

import pytest

from fineweb_mask.models.names import alike, find, inside


def test_case_spaces_around_a_name_and_forms_of_unicode_count_for_nothing():
    assert {alike(name) for name in ("SOURCE", " source", "Source \n")} == {alike("source")}
    assert alike("cafe\u0301") == alike("CAF\u00c9")
    assert len({alike(name) for name in ("a b", "a_b", "ab", "å", "a")}) == 5


@pytest.mark.parametrize(
    ("name", "names", "found"),
    [
        ("source", ["Source", "source"], "source"),
        ("source", ["url", "Source"], "Source"),
        ("source", ["Source", "SOURCE"], None),
        ("source", ["url"], None),
    ],
)
def test_a_name_itself_comes_before_its_only_other_spelling(name, names, found):
    assert find(name, names) == found


@pytest.mark.parametrize(
    ("record", "path", "value"),
    [
        ({"meta": {"source": "a"}}, "meta.source", "a"),
        ({"Meta": {"SOURCE": "a"}}, "meta.source", "a"),
        ({"meta.source": "own", "meta": {"source": "a"}}, "meta.source", "own"),
        ({"a.b": {"c": 1}, "a": {"b": {"c": 2}}}, "a.b.c", 1),
        ({"a": None}, "a.b", None),
        ({"a": "text"}, "a.b", None),
        ({}, "a.b", None),
    ],
)
def test_a_value_is_found_by_its_path(record, path, value):
    assert inside(record, path) == value
