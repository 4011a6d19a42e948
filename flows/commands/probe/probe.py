"""`fineweb-mask probe`: train small language models on several selections and compare what they learn."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from fineweb_mask.flows.commands import _common as common
from fineweb_mask.flows.display.terminal import print_losses
from fineweb_mask.models.settings.selection import Unit

if TYPE_CHECKING:
    from fineweb_mask.flows.probe.probe import ProbeSummary
    from fineweb_mask.models.probe.settings import ProbeSettings
    from fineweb_mask.models.settings import PipelineSettings


def probe(
    recipe: common.Recipe,
    *,
    arms: Annotated[
        str,
        typer.Option(
            help="What is compared, separated by commas: selectors of `compare`, with changed settings in brackets "
            r"(mean_field\[lamb=0.5], random\[shuffled=0.2]), or paths of datasets. A name may stand before each: "
            "theirs=data/other.parquet",
            metavar="ARMS",
        ),
    ] = "mean_field,random,top_quality",
    seeds: Annotated[int, typer.Option(help="Models of each arm; no verdict comes from one.")] = 3,
    from_scratch: Annotated[
        bool,
        typer.Option(
            "--from-scratch", help="Train every model from random weights, not on from a common start for each seed."
        ),
    ] = False,
    preset: Annotated[
        str, typer.Option(help="Size of the model: cpu (1.3 million parameters), or DataDecide's 20m and 150m.")
    ] = "cpu",
    heldout: Annotated[
        list[str] | None,
        typer.Option("--heldout", help="File of held-out documents of your own (repeatable).", metavar="NAME=FILE"),
    ] = None,
    by: Annotated[
        str | None, typer.Option("--by", help="Column of groups, such as topics, measured apart.", metavar="NAME")
    ] = None,
    benchmarks: Annotated[
        list[str] | None,
        typer.Option("--benchmarks", help="File of texts that no model may see (repeatable).", metavar="FILE"),
    ] = None,
    tokens: Annotated[
        int | None, typer.Option(help="Tokens of each training.", show_default="the preset's, if every arm has as many")
    ] = None,
    tokenizer: Annotated[
        str | None,
        typer.Option(help="Tokenizer instead of the preset's: tokenizer.json or hf://...", metavar="FILE"),
    ] = None,
    tasks: Annotated[
        str | None,
        typer.Option(
            help="Downstream tasks of lm-eval, separated by commas, or none.",
            show_default="for 20m and 150m, those on which small models decide as large ones do",
            metavar="NAMES",
        ),
    ] = None,
    tasks_folder: Annotated[
        str | None, typer.Option("--tasks-folder", help="Folder with lm-eval task files of your own.", metavar="DIR")
    ] = None,
    budget_by: Annotated[
        Unit, typer.Option("--budget-by", help="Give every arm the same share of the tokens, or of the documents.")
    ] = "tokens",
    overrides: common.Overrides = None,
    workspace: common.WorkspaceFolder = None,
    show: common.Open = False,
    as_json: common.AsJson = False,
) -> None:
    """Train the same small language model on several selections and compare them on held-out documents.

    Example: fineweb-mask probe deployments/recipes/sample.yaml --arms mean_field,random --heldout books=books.parquet
    """

    def check(settings: "PipelineSettings") -> "ProbeSettings":
        from fineweb_mask.flows.probe.arms import parse_arms
        from fineweb_mask.flows.probe.probe import check as check_probe
        from fineweb_mask.flows.recipe import validate
        from fineweb_mask.models.probe.settings import ProbeSettings

        content: dict[str, Any] = {
            "arms": [arm.model_dump() for arm in parse_arms(arms)],
            "seeds": seeds,
            "from_scratch": from_scratch,
            "preset": preset,
            "heldout": held_out_files(heldout),
            "by": by,
            "benchmarks": benchmarks or [],
            "tokens": tokens,
            "tokenizer": tokenizer,
            "tasks": None if tasks is None else [name for name in tasks.split(",") if name and tasks != "none"],
            "tasks_folder": tasks_folder,
        }
        models = validate(ProbeSettings, content)
        check_probe(settings, models)
        return models

    def run(settings: "PipelineSettings", models: "ProbeSettings") -> "ProbeSummary":
        from fineweb_mask.flows.probe.probe import probe as run_probe

        return run_probe(settings, models, budget_by)

    def tell(_: "PipelineSettings", found: "ProbeSummary") -> None:
        print_losses(found.bits_per_byte, found.comparisons, found)

    common.run_to_page(recipe, overrides, workspace, check=check, run=run, tell=tell, show=show, as_json=as_json)


def held_out_files(named: list[str] | None) -> dict[str, str]:
    """Return the files of `--heldout NAME=FILE` by their names.

    Raises
    ------
    RecipeError
        If one has another form.
    """
    from fineweb_mask.flows.recipe import RecipeError

    parts = [item.partition("=") for item in named or []]
    if wrong := [name + separator for name, separator, path in parts if not (name and path)]:
        raise RecipeError(f"--heldout takes NAME=FILE, received {wrong[0]!r}")
    return {name: path for name, _, path in parts}
