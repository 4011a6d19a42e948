"""Render the Jinja templates of the pages and the card; text from the web is always escaped."""

import re
from base64 import b64encode
from collections.abc import Callable
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import Any, Literal

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

Form = Literal["text", "count", "number", "precise", "bits", "seconds", "share", "gap"]
FORMS: dict[Form, Callable[[Any], str]] = {
    "text": str,
    "count": "{:,}".format,
    "number": lambda value: f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:,.4g}",
    "seconds": "{:,.1f}".format,
    "share": "{:z.1%}".format,  # never -0.0%
    "gap": lambda gap: f"{gap:.{0 if gap >= 0.1 else 2 if gap >= 0.001 else 4}%}",
    "precise": "{:.6f}".format,
    "bits": "{:.4f}".format,
}
"""How to format the values of a table's column."""

PUNCTUATION = re.compile(r"([!-/:-@\[-`{-~])")
CONTROLS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff\ufff9-\ufffb]"
)
"""Invisible or misleading characters: control codes, bidi marks, lone surrogates."""


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("fineweb_mask.tasks.reporting"),
        autoescape=select_autoescape(["html"]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_finalize,
    )
    environment.filters |= {
        "thousands": "{:,}".format,
        "percent": "{:.1%}".format,
        "shown": shown,
        "markdown": markdown,
        "anchor": anchor_of,
        "base64": lambda content: b64encode(content).decode(),
        "zip": lambda left, right: zip(left, right, strict=True),
    }
    environment.globals["static"] = static
    return environment


def _finalize(value: object) -> object:
    return value if not isinstance(value, str) or hasattr(value, "__html__") else visible_text(value)


def visible_text(text: str) -> str:
    r"""Replace invisible characters: an ASCII control code by its picture, such as `␛`, others by `�`.

    >>> visible_text("\x1b[31mred \u202egnp.exe")
    '␛[31mred �gnp.exe'
    """
    return CONTROLS.sub(lambda found: chr(0x2400 + ord(found[0])) if found[0] < " " else "\ufffd", text)


def anchor_of(title: str) -> str:
    """Return the fragment of links to the section of this title."""
    return "-".join(re.findall(r"[a-z0-9]+", title.lower()))


def shown(value: Any, form: Form) -> str:  # noqa: ANN401 - a number or a text, depending on the form
    """Format a value for a table; None is a dash."""
    return "–" if value is None else FORMS[form](value)  # noqa: RUF001 - an en dash


def markdown(text: object) -> str:
    """Return a text as one line of Markdown without markup."""
    return PUNCTUATION.sub(r"\\\1", visible_text(" ".join(str(text).split())))


@cache
def static(name: str) -> tuple[str, str]:
    """Return the content of a file in `templates`, and its hash for the Content-Security-Policy."""
    source = files("fineweb_mask.tasks.reporting").joinpath("templates", name).read_text(encoding="utf-8")
    return source, b64encode(sha256(source.encode()).digest()).decode()


def render(template: str, **values: object) -> str:
    """Render a template of this package."""
    return _environment().get_template(template).render(values)
