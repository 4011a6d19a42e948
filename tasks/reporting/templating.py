"""Jinja templates of the card and the pages. What comes from the web is escaped in HTML and Markdown, always."""

import re
from base64 import b64encode
from collections.abc import Callable
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import Any, Literal

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

Form = Literal["text", "count", "number", "precise", "rate", "seconds", "share", "gap"]
FORMS: dict[Form, Callable[[Any], str]] = {
    "text": str,
    "count": "{:,}".format,
    "number": lambda value: f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:,.4g}",
    "seconds": "{:,.1f}".format,
    "share": "{:.1%}".format,
    "gap": "{:.4%}".format,
    "precise": "{:.6f}".format,
    "rate": "{:,.0f}".format,
}
"""How the values of a table's column are shown."""

PUNCTUATION = re.compile(r"([!-/:-@\[-`{-~])")
CONTROLS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff\ufff9-\ufffb]"
)
"""What no page shows but a reader is misled by: terminal codes, marks of direction, halves of characters."""


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("fineweb_mask.tasks.reporting"),
        autoescape=select_autoescape(["html"]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_visible,
    )
    environment.filters["thousands"] = lambda value: f"{value:,}"
    environment.filters["percent"] = lambda share: f"{share:.1%}"
    environment.filters["shown"] = shown
    environment.filters["markdown_cell"] = markdown_cell
    environment.filters["markdown"] = markdown
    environment.filters["base64"] = lambda content: b64encode(content).decode()
    environment.filters["zip"] = lambda left, right: zip(left, right, strict=True)
    return environment


def _visible(value: object) -> object:
    return value if not isinstance(value, str) or hasattr(value, "__html__") else visible(value)


def visible(text: str) -> str:
    """Return a text in which what a reader cannot see is a picture of it: `␛` for an escape, else `�`."""
    return CONTROLS.sub(lambda found: chr(0x2400 + ord(found[0])) if found[0] < " " else "\ufffd", text)


def shown(value: Any, form: Form) -> str:  # noqa: ANN401 - a number or a text, as the form says
    """Return a value as a table shows it; a dash where there is none."""
    return "–" if value is None else FORMS[form](value)  # noqa: RUF001 - an en dash


def markdown(text: object) -> str:
    """Return a text in one line, in which Markdown sees no markup."""
    return PUNCTUATION.sub(r"\\\1", visible(" ".join(str(text).split())))


def markdown_cell(text: object) -> str:
    """Return a text as inline code in a Markdown table: nothing in it is read as markup."""
    one_line = " ".join(str(text).split())
    plain = "".join(character for character in one_line if character.isprintable())
    return "`" + plain.replace("`", "'").replace("|", "\\|") + "`"


@cache
def static(name: str) -> tuple[str, str]:
    """Return a template file as it is, and its hash as a Content-Security-Policy names it."""
    source = files("fineweb_mask.tasks.reporting").joinpath("templates", name).read_text(encoding="utf-8")
    return source, b64encode(sha256(source.encode()).digest()).decode()


def render(template: str, **values: object) -> str:
    """Return a template of this package filled in."""
    return _environment().get_template(template).render(values)
