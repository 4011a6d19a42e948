"""`fineweb-mask run`: run the pipeline, to its end or as far as a stage."""

import shlex
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from fineweb_mask.flows.commands import _common as common
from fineweb_mask.flows.display.terminal import (
    WIDTH,
    SafeConsole,
    echo,
    new_table,
    print_line,
    print_paths,
    print_quarantined,
    step_progress,
    told,
)
from fineweb_mask.flows.processes import temporary_server
from fineweb_mask.flows.recipe import RecipeError, load_recipe, packaged_recipes

if TYPE_CHECKING:
    from fineweb_mask.flows.pipeline.run import Share
    from fineweb_mask.flows.summary import RunSummary, StageSummary, StoppedSummary
    from fineweb_mask.models.settings import PipelineSettings
    from fineweb_mask.tasks.source.inventory import Inventory


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
    refresh: Annotated[
        list[str] | None,
        typer.Option(help="Run a stage again although its files are current (repeatable).", metavar="STAGE"),
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
            "--shards",
            help="Only prepare a share of the source files, such as 2/8, for machines that fill one workspace: "
            "with --until ingest on each, then without; a run without --shards goes on from there.",
            metavar="I/N",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would be done, and about how long and how large it is.")
    ] = False,
    verbose: common.Verbose = False,
) -> common.Answer:
    """Run the whole pipeline: ingest, score, embed, select, materialize.

    Example: fineweb-mask run deployments/recipes/sample.yaml --set selection.lamb=0.3 --workspace workspaces/try
    """
    if verbose:
        common.be_verbose()
    refit, refresh = refit or [], refresh or []
    with TemporaryDirectory(prefix="fineweb-mask-") as scratch:
        file = _recipe(recipe, workspace, Path(scratch) if dry_run else None)
        with common.recipe_checked():
            settings = load_recipe(file, overrides or [], workspace)
            share, source = _check(settings, refit, refresh, until, shards)
    from fineweb_mask.models.settings.quality import quality_note

    said = [*([] if dry_run else told(source.lines)), quality_note(settings.model_dump(mode="json"))]
    for line in filter(None, said):
        echo(line, err=True)
    common.begin()
    if dry_run:
        from fineweb_mask.flows.commands.setup.dry_run import estimate, print_estimate

        with step_progress("estimating", show=common.shows_bars()):
            found = estimate(settings)
        return common.Answer(found, lambda: print_estimate(SafeConsole(), found))
    if share is not None:
        with common.flow_shown():
            from fineweb_mask.flows.share import prepare_share
            from fineweb_mask.flows.summary import ShareSummary

            stages = prepare_share(settings, share.number, share.of, "ingest" if until else None)
        return common.Answer(ShareSummary(stages=stages), lambda: _print_share(share, stages, until))
    summary: RunSummary | StoppedSummary | None = None
    is_plain = not refit and not refresh and until is None
    if is_plain and temporary_server.is_surely_used():  # else a Prefect server is to show the run
        from fineweb_mask.flows.status.inspection import finished_run

        summary = finished_run(settings)
    if summary is None:
        with common.flow_shown():
            from fineweb_mask.flows.curate import curate

            summary = curate(settings, refit, refresh, until=until)
    code = common.QUARANTINED if summary.quarantined else 0
    return common.Answer(summary, lambda: _print_summary(summary, settings), code)


def _recipe(named: str, workspace: str | None, scratch: Path | None) -> Path:
    """Return the recipe that is named, or that of the documents that are; a new one is said, and goes to `scratch`."""
    from fineweb_mask.tasks.source.discovery import are_documents

    if named in packaged_recipes() or not are_documents(named):
        return Path(named)
    from fineweb_mask.flows.commands.setup.init import recipe_of_documents

    recipe, said = recipe_of_documents(named, workspace, scratch)
    for line in said:
        echo(line, err=True)
    return recipe


def _check(
    settings: "PipelineSettings", refit: list[str], refresh: list[str], until: str | None, shards: str | None
) -> "tuple[Share | None, Inventory]":
    from fineweb_mask.flows.curate import check_stages
    from fineweb_mask.flows.pipeline.inputs import check_inputs
    from fineweb_mask.flows.pipeline.run import Share
    from fineweb_mask.tasks.source.inventory import take_inventory

    check_stages(refit, refresh, until, "--")
    if shards is not None and (refit or refresh or until not in {None, "ingest"}):
        raise RecipeError("--shards takes no --refit, no --refresh, and of --until only ingest: leave out others")
    try:
        share = None if shards is None else Share.parse(shards)
    except ValueError as error:
        raise RecipeError(f"--shards: {error}") from error
    return share, take_inventory(check_inputs(settings).source, settings.source)


def _print_stages(stages: list["StageSummary"]) -> None:
    for stage in stages:
        echo(f"{stage.stage}: {stage.files} files, {stage.cached} of them cached, {stage.seconds:.1f} s")


def _print_share(share: "Share", stages: list["StageSummary"], until: str | None) -> None:
    _print_stages(stages)
    made, left_out = ("ingested", "--until") if until else ("prepared", "--shards")
    echo(f"share {share.number} of {share.of} is {made}; when all are, run without {left_out}")


def _print_summary(summary: "RunSummary | StoppedSummary", settings: "PipelineSettings") -> None:
    from fineweb_mask.flows.summary import StoppedSummary
    from fineweb_mask.tasks.registry import amounts_through

    console = SafeConsole(width=WIDTH)
    if isinstance(summary, StoppedSummary):
        _print_stages(summary.stages)
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
    print_line(console, f"next     fineweb-mask report {folder} --open")
    print_line(console, f"         fineweb-mask explore {folder}")
