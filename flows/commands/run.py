"""`fineweb-mask run`, and `curate` from Python and as a flow: run the pipeline, to its end or as far as a stage."""

import shlex
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fineweb_mask.flows.commands import _common as common
from fineweb_mask.flows.commands._recipe import RecipeVerb
from fineweb_mask.flows.commands.workspace import print_status
from fineweb_mask.flows.display.terminal import (
    WIDTH,
    SafeConsole,
    echo,
    new_table,
    print_line,
    print_paths,
    print_quarantined,
    told,
)
from fineweb_mask.flows.processes.environment import names_no_server
from fineweb_mask.flows.recipe import Refit, Until, load_recipe, packaged_recipes
from fineweb_mask.models.settings import PipelineSettings

if TYPE_CHECKING:
    from fineweb_mask.flows.summary import RunSummary, StoppedSummary


def _print_summary(summary: "RunSummary | StoppedSummary", settings: PipelineSettings, **_: object) -> None:
    from fineweb_mask.flows.summary import StoppedSummary
    from fineweb_mask.tasks.registry import amounts_through

    console = SafeConsole(width=WIDTH)
    if isinstance(summary, StoppedSummary):
        for stage in summary.stages:
            echo(f"{stage.stage}: {stage.files} files, {stage.cached} of them cached, {stage.seconds:.1f} s")
        print_quarantined(console, summary.quarantined)
        echo(f"stopped after {summary.until}; run without --until to go on")
        return
    counts = summary.counts
    through = amounts_through(counts)
    tokens = "tokens in (est.)" if counts.tokens_estimated else "tokens in"
    table = new_table("stage", "documents in", "kept", tokens, "kept", "files", "cached", "seconds")
    for stage in summary.stages:
        numbers = [""] * 4
        if stage.stage in through:
            before, after = through[stage.stage]
            amounts = (before.documents, after.documents, before.tokens, after.tokens)
            numbers = [f"{amount:,}" for amount in amounts]
        table.add_row(stage.stage, *numbers, str(stage.files), str(stage.cached), f"{stage.seconds:.1f}")
    console.print(table)
    if summary.dropped:
        reasons = ", ".join(f"{reason.replace('_', ' ')} {count:,}" for reason, count in summary.dropped.items())
        print_line(console, f"dropped  {reasons}")
    print_quarantined(console, summary.quarantined)
    print_paths(console, dataset=summary.dataset, **summary.exports, report=summary.report)
    folder = shlex.quote(settings.workspace)
    print_line(console, f"next     fineweb-mask report {folder} --open\n         fineweb-mask explore {folder}")


@partial(RecipeVerb, check="fineweb_mask.flows.curate:check", tell=_print_summary)
def curate(
    settings: PipelineSettings,
    refit: list[Refit] | None = None,
    until: Until | None = None,
    shards: str | None = None,
) -> "RunSummary | StoppedSummary":
    """Run the whole pipeline, from raw documents to a dataset; what is there already is not made again.

    Parameters
    ----------
    settings
        The recipe.
    refit
        What is fitted again on the corpus as it is now: "encoder", "quality", "selection".
    until
        The last stage that is run; None runs all. A later run goes on from there.
    shards
        The share of the shards that is prepared for others to select from, such as "2/8"; None is all.

    Returns
    -------
    RunSummary
        Paths of the dataset and the report, counts, and the files that were set aside.

    Raises
    ------
    RecipeError
        If the recipe cannot be read, or has a key or value that is not allowed, or a stage is unknown.
    BadShardError
        If no shard can be read, or one cannot and `ingest.on_bad_shard` is `fail`.
    FinewebMaskError
        If the run fails for a reason that its message says how to mend.

    Examples
    --------
    >>> summary = curate("sample", {"workspace": "workspaces/try", "selection": {"lamb": 0.3}})  # doctest: +SKIP
    >>> summary.documents_kept, summary.dataset  # doctest: +SKIP
    """
    from fineweb_mask.flows.curate import check, pipeline
    from fineweb_mask.flows.display.prefect_ui import announce_dataset
    from fineweb_mask.flows.pipeline.records import summarize
    from fineweb_mask.flows.pipeline.run import ReachedError
    from fineweb_mask.flows.pipeline.start import start_run
    from fineweb_mask.flows.summary import StoppedSummary

    last, share = check(settings, refit, until, shards)
    with start_run(settings, refit=refit, until=last, share=share, keep=share is None) as run:
        try:
            made = pipeline(run)
        except ReachedError as reached:
            return StoppedSummary.of(run.workspace, run.quarantined, run.stages, until=str(reached))
        summary = summarize(run, *made)
    announce_dataset(summary, settings, run.workspace.reports / "metrics.json")
    return summary


@common.verb
def run(
    recipe: Annotated[
        str,
        typer.Argument(
            help="Recipe file, or the name of a packaged recipe such as fineweb; or documents (file, folder, glob, "
            "URL), for which a recipe is made in their workspace."
        ),
    ],
    *,
    overrides: common.Overrides = None,
    workspace: common.WorkspaceFolder = None,
    refit: Annotated[
        list[str] | None,
        typer.Option(help="Fit again on the present corpus: encoder, quality, selection (repeatable).", metavar="WHAT"),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option(
            help="Stop after a stage: ingest, score, embed, dedup, select, materialize, export, report; a run without "
            "it goes on from there.",
            metavar="STAGE",
        ),
    ] = None,
    shards: Annotated[
        str | None,
        typer.Option(
            help="Only prepare a share of the source files, such as 2/8, for machines that fill one workspace: "
            "with --until ingest on each, then without; a run without --shards goes on from there.",
            metavar="I/N",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what is read, what is done already and what would be built.")
    ] = False,
) -> common.Result:
    """Run the whole pipeline: ingest, score, embed, select, materialize.

    Example: fineweb-mask run deployments/recipes/sample.yaml --set selection.lamb=0.3 --workspace workspaces/try
    """
    file = _recipe(recipe, workspace)
    with common.recipe_checked():
        settings = load_recipe(file, overrides or [], workspace)
        from fineweb_mask.flows.curate import check
        from fineweb_mask.flows.pipeline.inputs import check_inputs
        from fineweb_mask.models.settings.quality import quality_note
        from fineweb_mask.tasks.source.inventory import take_inventory

        check(settings, refit, until, shards, prefix="--")
        inputs = check_inputs(settings)
    source = take_inventory(inputs.source, settings.source)
    for line in filter(None, [*told(source.lines), quality_note(settings.model_dump(mode="json"))]):
        echo(line, err=True)
    common.begin()
    if dry_run:
        from fineweb_mask.flows.pipeline.inputs import doubts
        from fineweb_mask.flows.status.inspection import inspect_recipe, status_of

        for line in doubts(inputs, settings, source):
            echo(line, err=True)
        found = status_of(inspect_recipe(inputs.workspace, settings))
        return common.Result(found, lambda: print_status(found))
    summary: RunSummary | StoppedSummary | None = None
    if not (refit or until or shards) and names_no_server():  # else a Prefect server is to show the run
        from fineweb_mask.flows.status.inspection import finished_run

        summary = finished_run(settings)
    if summary is None:
        with common.flow_shown():
            summary = curate.flow(settings, refit, until, shards)
    code = common.QUARANTINED if summary.quarantined else 0
    return common.Result(summary, lambda: _print_summary(summary, settings), code)


def _recipe(named: str, workspace: str | None) -> Path:
    """Return the recipe that is named, or that of the documents that are, of which it is said what was found."""
    from fineweb_mask.tasks.source.discovery import are_documents

    if named in packaged_recipes() or not are_documents(named):
        return Path(named)
    from fineweb_mask.flows.commands.init import recipe_of_documents

    recipe, said = recipe_of_documents(named, workspace)
    for line in said:
        echo(line, err=True)
    return recipe
