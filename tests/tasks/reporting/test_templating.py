"""Templating: nothing from the web is read as markup."""

import pytest
from jinja2 import UndefinedError

from fineweb_mask.tasks.reporting.templating import markdown, render, shown, visible_text


def test_a_template_that_lacks_a_value_is_an_error():
    with pytest.raises(UndefinedError):
        render("card.md", title="x")


def test_every_mark_is_escaped_in_markdown_and_no_line_end_breaks_out_of_a_table():
    for text in ("<img src=x>", "[a](javascript:b)", "**a**", "a | b", "`a`", "# a", "www.a.b"):
        plain = markdown(text)
        assert plain.replace("\\", "") == text
        assert all(plain[place - 1] == "\\" for place, c in enumerate(plain) if c in "<>[]()*|`#.:" and place)
    assert markdown("a\n\n# b\r\nc") == "a \\# b c"


def test_invisible_characters_are_made_visible():
    assert visible_text("\x1b[31m\x00\u202egnp.exe\ud800\u200b") == "␛[31m␀\ufffdgnp.exe\ufffd\ufffd"
    assert visible_text("née\n\t🎉👩\u200d🚀 雪 مثال") == "née\n\t🎉👩\u200d🚀 雪 مثال"


def test_values_are_shown_as_their_column_says():
    for form, values in {
        "count": {1234567: "1,234,567", None: "\N{EN DASH}"},
        "number": {0.123456: "0.1235", 123456.7: "123,457"},
        "precise": {1 / 3: "0.333333"},
        "seconds": {1234.56: "1,234.6"},
        "share": {0.12345: "12.3%", -0.0001: "0.0%"},
        "gap": {0.0001234: "0.0123%", 0.01234: "1.23%", 1.06928: "107%"},
    }.items():
        assert {value: shown(value, form) for value in values} == values
