"""Names of columns: other spellings, and paths to values within others."""

from fineweb_mask.models.names import alike, find, inside


def test_case_spaces_around_a_name_and_forms_of_unicode_count_for_nothing():
    assert {alike(name) for name in ("SOURCE", " source", "Source \n")} == {alike("source")}
    assert alike("cafe\u0301") == alike("CAF\u00c9")
    assert len({alike(name) for name in ("a b", "a_b", "ab", "å", "a")}) == 5


def test_a_name_itself_comes_before_its_only_other_spelling():
    assert find("source", ["Source", "source"]) == "source"
    assert find("source", ["url", "Source"]) == "Source"
    assert find("source", ["Source", "SOURCE"]) is None
    assert find("source", ["url"]) is None


def test_a_value_is_found_by_its_path():
    assert inside({"Meta": {"SOURCE": "a"}}, "meta.source") == "a"
    assert inside({"meta.source": "own", "meta": {"source": "a"}}, "meta.source") == "own"
    assert inside({"a.b": {"c": 1}, "a": {"b": {"c": 2}}}, "a.b.c") == 1
    assert [inside(record, "a.b") for record in ({"a": None}, {"a": "text"}, {})] == [None] * 3
