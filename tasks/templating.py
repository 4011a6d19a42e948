"""Jinja templates of the card and the report. What comes from the web is escaped in HTML, always."""

from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("tasks"),
        autoescape=select_autoescape(["html"]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["thousands"] = lambda value: f"{value:,}"
    environment.filters["percent"] = lambda share: f"{share:.1%}"
    environment.filters["markdown_cell"] = markdown_cell
    return environment


def markdown_cell(text: object) -> str:
    """Return a text as inline code in a Markdown table: nothing in it is read as markup."""
    one_line = " ".join(str(text).split())
    plain = "".join(character for character in one_line if character.isprintable())
    return "`" + plain.replace("`", "'").replace("|", "\\|") + "`"


def render(template: str, **values: object) -> str:
    """Return a template of this package filled in."""
    return _environment().get_template(template).render(values)
