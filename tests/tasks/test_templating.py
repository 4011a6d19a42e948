"""Templates: nothing from the web is read as markup."""

import pytest
from jinja2 import UndefinedError

from tasks.templating import markdown_cell, render


@pytest.mark.parametrize(
    ("text", "cell"),
    [
        ("CC-MAIN-2024-10", "`CC-MAIN-2024-10`"),
        ("a|b", r"`a\|b`"),
        ("`x` | <b>", r"`'x' \| <b>`"),
        ("two\nlines\r\n| x |", r"`two lines \| x \|`"),
        ("nul\x00bell\x07 right\u202eleft", "`nulbell rightleft`"),
        ("née 🎉", "`née 🎉`"),
        (7, "`7`"),
    ],
)
def test_a_markdown_cell_holds_no_markup(text: object, cell: str) -> None:
    assert markdown_cell(text) == cell


def test_a_template_that_lacks_a_value_is_an_error() -> None:
    with pytest.raises(UndefinedError):
        render("card.md", title="x")
