"""`fineweb-mask init`: look at a source and write a recipe for it that runs."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
import yaml

from fineweb_mask.flows.commands._common import Force, exit_on_error
from fineweb_mask.flows.display.terminal import echo, size_text, visible
from fineweb_mask.flows.recipe import PACKAGED
from fineweb_mask.models.urls import is_url

if TYPE_CHECKING:
    from fineweb_mask.tasks.source.first_rows import Described

SMALL = 2_000  # documents, of which a tenth would be too few to look at
ONE_LANGUAGE = 0.9  # share of the rows from which a corpus is of one language


def init(
    source: Annotated[str, typer.Argument(help="File, folder, glob or URL of Parquet or JSON Lines.")],
    *,
    output: Annotated[Path, typer.Option("--output", "-o", help="Recipe to write.")] = Path("recipe.yaml"),
    force: Force = False,
) -> None:
    """Look at a source, write a recipe for it, and say what was assumed and what to run next.

    Example: fineweb-mask init my_corpus/ --output my_corpus.yaml
    """
    from fineweb_mask.tasks.outputs import check_output
    from fineweb_mask.tasks.source.first_rows import describe
    from fineweb_mask.tasks.storage.atomic import atomic_write

    with exit_on_error(as_json=False):
        check_output(output, "--output", [source], replaces=force)
        found = describe(source)
        with atomic_write(output) as partial:
            partial.write_text(recipe_for(source, found, output), encoding="utf-8")
    for line in (*said_of(found), "", f"wrote {output}; next:", f"  fineweb-mask run {output}"):
        echo(line)


def said_of(found: "Described") -> list[str]:
    """Return what was found, in lines for a person."""
    about = "" if found.is_counted else "about "
    languages = ", ".join(f"{name} {share:.0%}" for name, share in found.languages) or "no column `language`"
    scores = ", ".join(f"{score.name} ({score.least:g} to {score.most:g})" for score in found.scores)
    files = "1 file" if found.files == 1 else f"{found.files:,} files"
    lines = [
        f"{files}, {size_text(found.bytes)}, {about}{found.rows:,} documents; looked at {found.looked_at:,} rows",
        f"text       column {found.text_column!r}, half of the texts have more than {found.median_chars:,} characters",
        f"id         {'column ' + repr(found.id_column) if found.id_column else 'made from file and row'}",
        f"languages  {languages}",
        f"quality    {scores or 'no column of scores: the recipe names a model, which is downloaded'}",
    ]
    if found.rows < SMALL:
        lines.append(
            f"few documents: a quarter is selected instead of a tenth, and of {found.rows:,} little can be said"
        )
    return lines


def recipe_for(source: str, found: "Described", output: Path) -> str:
    """Return a recipe for a source, with comments; the path in it starts from the recipe's folder."""
    path = source if is_url(source) else os.path.relpath(source, output.parent)
    ratio = 0.25 if found.rows < SMALL else 0.1
    lines = [
        f"# yaml-language-server: $schema={PACKAGED / 'recipe.schema.json'}",  # by which editors check recipes
        f"# Written by `fineweb-mask init`, from {found.looked_at:,} rows. All settings: fineweb-mask settings",
        f"workspace: {_yaml(f'workspaces/{output.stem}')} # all files of the run; `dataset` in it is the result",
        "source:",
        f"  path: {_yaml(path)}",
        *([] if found.text_column == "text" else [f"  text_column: {_yaml(found.text_column)}"]),
        *([] if found.id_column in {None, "id"} else [f"  id_column: {_yaml(str(found.id_column))}"]),
        "ingest:",
        "  min_chars: 100 # shorter texts are dropped",
        *_languages(found),
        "  exact_dedup: corpus # of equal texts, one is kept",
        "quality:",
        "  scorers:",
        *_scorers(found),
        "embedding:",
        "  model: static # fitted on your texts, with nothing to download; better: any sentence-transformers model",
        "selection:",
        "  metrics: {facility: 1, disf: 1} # a selected neighbour for every document, and all directions used evenly",
        f"  select_ratio: {ratio} # share of the documents that is kept",
        "  lamb: 0.5 # weight of quality; the rest is diversity's. `fineweb-mask sweep` shows what others would give",
        "materialize:",
        f"  layout: {'dump' if found.dumps > 1 else 'flat'} # folders of the dataset, by a column's values, or flat",
        "  # license: odc-by # of the data set; `fineweb-mask push` asks for one",
    ]
    return "\n".join(lines) + "\n"


def _languages(found: "Described") -> list[str]:
    if not found.languages:
        return []
    name, share = found.languages[0]
    if share >= ONE_LANGUAGE:
        return [f"  languages: {_yaml([name])} # {share:.0%} of the rows; leave it out to keep all"]
    return ["  # languages: [en] # keep only these"]


def _scorers(found: "Described") -> list[str]:
    if not found.scores:
        return [
            "    # No column of scores was found. FineWeb-Edu's classifier is downloaded, and slow without a GPU.",
            "    # Instead: `kind: column` with a score of your own, or `kind: fasttext` with a model",
            "    # (hf://owner/repo/file.bin) or with labels of your own.",
            "    - kind: edu",
            "      model: HuggingFaceFW/fineweb-edu-classifier",
        ]
    best, *others = found.scores
    lines = [
        "    - kind: column # your own score; larger must be better",
        f"      column: {_yaml(best.name)} # {best.least:g} to {best.most:g} in the rows looked at",
    ]
    if best.missing:
        lines.append(f"      missing: {best.least:g} # of the {best.missing:.0%} of the rows that have no number")
    return lines + [f"    # also there: {visible(score.name)} ({score.least:g} to {score.most:g})" for score in others]


def _yaml(value: str | list[str]) -> str:
    """Return a text or a list as YAML in one line, in quotes where it needs some."""
    style = None if "".join(value).isprintable() else '"'
    text = yaml.safe_dump(value, allow_unicode=True, width=float("inf"), default_flow_style=True, default_style=style)
    return text.removesuffix("\n").removesuffix("\n...").strip()
