"""`fineweb-mask settings`: list every setting of a recipe, on the terminal, as Markdown or as a JSON schema."""

import json
from typing import TYPE_CHECKING, Annotated

import typer
from rich.padding import Padding
from rich.text import Text

from fineweb_mask.flows.commands._common import verb
from fineweb_mask.flows.display.terminal import SafeConsole, echo

if TYPE_CHECKING:
    from fineweb_mask.models.settings.reference import Setting


@verb
def settings(
    section: Annotated[
        str | None,
        typer.Argument(help="Section, such as selection, or setting, such as selection.lamb.", metavar="KEY"),
    ] = None,
    *,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print docs/settings.md.")] = False,
    schema: Annotated[
        bool, typer.Option("--schema", help="Print a JSON schema, by which editors check and complete recipes.")
    ] = False,
) -> None:
    """List the settings of a recipe, those of a section, or one: key, type, default, meaning.

    Example: fineweb-mask settings selection.lamb
    """
    from fineweb_mask.models.settings.reference import REQUIRED, recipe_schema, sections, settings_of

    if schema:
        echo(json.dumps(recipe_schema(), indent=2))
        return
    found = settings_of(section)
    if markdown:
        echo(as_markdown({name: settings_of(name) for name in sections()}).rstrip("\n"))
        return
    console = SafeConsole(highlight=False)
    for setting in found:
        note = {"": "", REQUIRED: f", {REQUIRED}"}.get(setting.default, f", default {setting.default}")
        console.print(Text.assemble((setting.key, "bold"), f"  {setting.type}{note}"))
        console.print(Padding(Text(setting.meaning), (0, 0, 0, 4)))


def as_markdown(found: "dict[str, list[Setting]]") -> str:
    """Return the settings as a page, with a table for each section."""
    from fineweb_mask.models.settings.reference import REQUIRED

    lines = [
        "# Settings",
        "",
        "Every setting of a recipe. `--set section.key=value` overrides one; `fineweb-mask settings SECTION` prints a",
        "part of this page. `workspace`, at the top of a recipe, is the folder or URL of all files.",
    ]
    for section, settings in found.items():
        lines += ["", f"## {section}", "", "| setting | type | default | meaning |", "|---|---|---|---|"]
        for setting in settings:
            default = setting.default if setting.default in {"", REQUIRED} else f"`{setting.default}`"
            cells = (f"`{setting.key}`", setting.type, default, setting.meaning)
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"
