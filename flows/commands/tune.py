"""`fineweb-mask tune`: search the settings of a recipe's selection by what it teaches a small language model."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
import yaml

from fineweb_mask.flows.commands import _common as common
from fineweb_mask.flows.display.terminal import echo, visible

if TYPE_CHECKING:
    from fineweb_mask.flows.tune import TuneSummary
    from fineweb_mask.models.settings import PipelineSettings

Targets = Annotated[
    list[str] | None,
    typer.Option(
        "--target",
        help="File of texts that should be predicted well (repeatable); a name may stand before it: NAME=FILE.",
        show_default="documents of the corpus",
        metavar="FILE",
    ),
]


def tune(
    recipe: common.Recipe,
    *,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Recipe to write, the tuned settings in it.", metavar="FILE")
    ],
    target: Targets = None,
    trials: Annotated[int, typer.Option(help="Settings that are tried, the recipe's own included.")] = 64,
    minutes: Annotated[float, typer.Option(help="After which no further trial begins.")] = 30.0,
    force: common.Force = False,
    overrides: common.Overrides = None,
    workspace: common.WorkspaceFolder = None,
    show: common.Open = False,
    as_json: common.AsJson = False,
) -> None:
    """Search lamb, the weights of metrics and of scores, and shares of groups, and write a recipe with the best.

    A language model of n-grams reads what every trial selects and predicts held-out texts. The recipe says what was
    gained on texts that the search did not see.

    Example: fineweb-mask tune mine.yaml --target books.parquet --output tuned.yaml
    """

    def check(settings: "PipelineSettings") -> dict[str, str]:
        from fineweb_mask.flows.recipe import inputs_of
        from fineweb_mask.flows.tune import check as check_tune
        from fineweb_mask.tasks.outputs import check_output

        files = dict(map(named, target or []))
        read: list[str | Path] = [recipe, *inputs_of(settings), *files.values(), settings.workspace]
        check_output(output, "--output", read, replaces=force)
        check_tune(settings, files, trials)
        return files

    def run(settings: "PipelineSettings", files: dict[str, str]) -> "TuneSummary":
        from fineweb_mask.flows.tune import tune as run_tune
        from fineweb_mask.tasks.storage.atomic import atomic_write

        found = run_tune(settings, files, trials, minutes)
        with atomic_write(output) as partial:
            partial.write_text(recipe_text(settings, found), encoding="utf-8")
        return found

    def tell(_: "PipelineSettings", found: "TuneSummary") -> None:
        for name in found.sets:
            echo(f"{name}: {_sentence(found, name)}")
        for remark in found.final.get("remarks", ()):
            echo(remark)
        echo(f"recipe  {output}")
        echo(f"page    {found.page}")

    common.run_to_page(recipe, overrides, workspace, check=check, run=run, tell=tell, show=show, as_json=as_json)


def recipe_text(settings: "PipelineSettings", found: "TuneSummary") -> str:
    """Return the recipe with what was found, and in its first lines what was gained."""
    from fineweb_mask.flows.recipe import change

    content = settings.model_dump(mode="json", exclude_unset=True)
    change(content, found.overrides.items())
    head = [f"# Tuned by `fineweb-mask tune`, the best of {found.trials} trials."]
    head += [visible(f"# {name}: {_sentence(found, name)}") for name in found.sets]  # a line break would end it
    head += [visible(f"# {remark}") for remark in found.final.get("remarks", ())]
    return "\n".join(head) + "\n" + yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=10_000)


def _sentence(found: "TuneSummary", name: str) -> str:
    from fineweb_mask.tasks.witness.section import teaching_sentence
    from fineweb_mask.tasks.witness.tune import TUNED

    return teaching_sentence(found.final, TUNED, name)


def named(text: str) -> tuple[str, str]:
    """Return the name and the path of a target: its file's name unless another stands before it."""
    name, separator, path = text.partition("=")
    return (name, path) if separator and "/" not in name else (Path(text.rstrip("/")).name.split(".")[0], text)
