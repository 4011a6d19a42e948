"""`fineweb-mask init`: look at a source and write a recipe for it that runs; `run` makes the same for documents."""

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
import yaml

from fineweb_mask.flows.commands._common import Force, verb
from fineweb_mask.flows.display.terminal import echo, told, visible
from fineweb_mask.flows.recipe import PACKAGED, RecipeError, load_recipe
from fineweb_mask.models.urls import is_url, shown

if TYPE_CHECKING:
    from fineweb_mask.tasks.source.inventory import Described

LAMB = 0.3  # the default of the settings, which are not imported for it
SMALL = 2_000  # documents, of which a tenth would be too few to look at
ONE_LANGUAGE = 0.9  # share of the rows from which a corpus is of one language
CLASSIFIER = "HuggingFaceFW/fineweb-edu-classifier"


@verb
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
    from fineweb_mask.tasks.source.inventory import describe
    from fineweb_mask.tasks.storage.atomic import atomic_write

    check_output(output, "--output", [source], replaces=force)
    found = describe(source)
    for line in [*told(found.source.lines), *told(found.source.worries), *said_of(found)]:
        echo(line)
    if not found.scores:
        echo("quality    no column of scores: diversity and near-duplicates alone decide what is selected")
    recipe = recipe_for(source, found, output, f"workspaces/{output.stem}")
    with atomic_write(output) as partial:
        partial.write_text(recipe, encoding="utf-8")
    for line in ("", f"wrote {output}; next:", f"  fineweb-mask run {output}"):
        echo(line)


def recipe_of_documents(source: str, workspace: str | None) -> tuple[Path, list[str]]:
    """Return the recipe of documents and what to say of it; it is in their workspace, or made as `init` would.

    Parameters
    ----------
    source
        File, folder, glob or URL of documents.
    workspace
        Folder of this machine; None: one below `workspaces`, named after the source.

    Raises
    ------
    FinewebMaskError
        If the source cannot be read, or the workspace is at a URL or has a recipe for another source.
    """
    from fineweb_mask.tasks.source.inventory import describe
    from fineweb_mask.tasks.storage.atomic import atomic_write
    from fineweb_mask.tasks.workspace.workspace import RECIPE, Workspace, is_workspace

    if not is_url(source) and is_workspace(Path(source)):
        raise RecipeError(f"received {shown(source)}, which is a workspace and no documents: name its recipe instead")
    folder = workspace or f"workspaces/{_name_of(source)}"
    if is_url(folder):
        raise RecipeError(
            f"--workspace: a recipe is made in a folder of this machine, received {shown(folder)}: write one with "
            "`fineweb-mask init`, and run that"
        )
    path = Path(folder) / RECIPE
    if path.is_file():
        if _whole(load_recipe(path).source.path) != _whole(source):
            raise RecipeError(
                f"--workspace: {path} is the recipe of other documents than {shown(source)}: name another"
            )
        return path, [f"recipe     {path}, of an earlier run; without it a new one is made"]
    found = describe(source)
    Workspace(folder).check_is_ours()
    with atomic_write(path) as partial:
        partial.write_text(recipe_for(source, found, path, folder), encoding="utf-8")
    kept = f"{_ratio(found):.0%} of the documents, lamb {LAMB}, vectors of a model fitted on these texts"
    return path, [*said_of(found), f"recipe     {path}: {kept}"]


def _name_of(source: str) -> str:
    """Return a name for the workspace of documents.

    >>> [_name_of(source) for source in ("/data/my corpus.jsonl.gz", "s3://bucket/web/*.parquet", "/")]
    ['my corpus', 'web', 'documents']
    """
    from fineweb_mask.tasks.source.discovery import GLOB_CHARACTERS, stem_of

    parts = (source.partition("://")[2] if is_url(source) else _whole(source)).split("/")
    name = next((part for part in reversed(parts) if part and not GLOB_CHARACTERS & set(part)), "")
    return re.sub(r"[^\w. -]+", "-", stem_of(name)).strip(" .-") or "documents"


def _whole(source: str) -> str:
    return source if is_url(source) else os.path.normpath(Path(source).absolute())


def said_of(found: "Described") -> list[str]:
    """Return what was found, in lines for a person."""
    about = "" if found.is_counted else "about "
    languages = ", ".join(f"{name} {share:.0%}" for name, share in found.languages)
    repeated = f"column 'id', which repeats in {found.repeated_ids:,} rows"
    made = repeated if found.repeated_ids else "made from file and row"
    identifier = f"column {found.id_column!r}" if found.id_column else made
    scores = ", ".join(f"{score.name} ({score.least:g} to {score.most:g})" for score in found.scores)
    lines = [
        f"documents  {about}{found.rows:,}; looked at {found.looked_at:,} rows",
        f"text       column {found.text_column!r}, half of the texts have more than {found.median_chars:,} characters; "
        f"id {identifier}",
        *([f"languages  {languages}"] if languages else []),
        *([f"quality    {scores}"] if scores else []),
    ]
    if found.rows < SMALL:
        lines.append(
            f"few documents: a quarter is selected instead of a tenth, and of {found.rows:,} little can be said"
        )
    return lines


def recipe_for(source: str, found: "Described", output: Path, workspace: str) -> str:
    """Return a recipe for a source, with comments; a relative path in it starts from the recipe's folder."""
    path = source if is_url(source) or Path(source).is_absolute() else os.path.relpath(source, output.parent)
    weight = "weight of quality, as soon as one is scored"
    if found.scores:
        weight = "weight of quality; the rest is diversity's: `fineweb-mask compare --lambs` shows what others give"
    lines = [
        f"# yaml-language-server: $schema={PACKAGED / 'recipe.schema.json'}",  # by which editors check recipes
        f"# Written by `fineweb-mask init`, from {found.looked_at:,} rows. All settings: fineweb-mask settings",
        f"workspace: {_yaml(workspace)} # all files of the run; `dataset` in it is the result",
        "source:",
        f"  path: {_yaml(path)}",
        *([] if found.text_column == "text" else [f"  text_column: {_yaml(found.text_column)}"]),
        *([] if found.id_column in {None, "id"} else [f"  id_column: {_yaml(str(found.id_column))}"]),
        "ingest:",
        "  min_chars: 100 # shorter texts are dropped",
        *_languages(found),
        "  exact_dedup: corpus # of equal texts, one is kept",
        "quality:",
        *_scorers(found),
        "embedding:",
        "  model: static # fitted on your texts, with nothing to download; better: any sentence-transformers model",
        "selection:",
        "  metrics: facility # every document has a selected one that is like it",
        f"  select_ratio: {_ratio(found)} # share of the documents that is kept",
        f"  lamb: {LAMB} # {weight}",
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


def _ratio(found: "Described") -> float:
    return 0.25 if found.rows < SMALL else 0.1


def _scorers(found: "Described") -> list[str]:
    if not found.scores:
        return [
            "  scorers: [] # no column of scores was found: diversity and near-duplicates alone decide",
            "  # Better: `- kind: column` with a score of yours, `- kind: fasttext` with labels of yours or a model",
            f"  # (hf://owner/repo/file.bin), or `- kind: edu`, {CLASSIFIER}, slow without a GPU.",
        ]
    best, *others = found.scores
    lines = [
        "  scorers:",
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
