"""`fineweb-mask report`: what a finished run selected, and why, as a page."""

import os
import sys
from contextlib import chdir
from typing import TYPE_CHECKING, Annotated

import typer
from pydantic import BaseModel

from fineweb_mask.flows.commands._common import FAILED, WRONG_USAGE, Open, fail, open_page, run_flow, set_environment

if TYPE_CHECKING:
    from fineweb_mask.models.settings import PipelineSettings


class ReportSummary(BaseModel):
    """Where the report lies; `fineweb-mask report --json` prints it."""

    status: str = "done"
    report: str
    metrics: str
    plots: list[str]
    seconds: float


def report(
    workspace: Annotated[str, typer.Argument(help="Workspace of a finished run: a folder, or a URL such as s3://.")],
    *,
    by: Annotated[
        list[str] | None,
        typer.Option(help="Column of the source to break the selection down by, too (repeatable).", metavar="COLUMN"),
    ] = None,
    sample: Annotated[int | None, typer.Option(help="Documents whose vectors are looked at.", min=2)] = None,
    kind_of_map: Annotated[
        str | None, typer.Option("--map", help="pca, or umap where umap-learn is installed.", metavar="KIND")
    ] = None,
    show: Open = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object last on stdout.")] = False,
) -> None:
    """Write the report of a workspace anew: what went in, what came out and why. Settings given here are kept.

    Example: fineweb-mask report workspaces/sample --by language --open
    """
    set_environment()
    show_bars = sys.stderr.isatty() and not as_json
    if show_bars:
        os.environ.setdefault("PREFECT_LOGGING_LEVEL", "WARNING")
    from pydantic import ValidationError

    from fineweb_mask.flows.engine.inspection import last_run
    from fineweb_mask.flows.recipe import explain
    from fineweb_mask.tasks.reporting.breakdown import check_columns

    try:
        opened, last, begun = last_run(workspace)
        settings = _changed(
            last.settings, opened.url or str(opened.root), {"by": by, "sample": sample, "map": kind_of_map}
        )
        if opened.url is None:
            check_columns((opened.root / "documents").rglob("*.parquet"), settings.report.by)
    except ValidationError as error:
        fail("\n".join(explain(problem) for problem in error.errors()), as_json, WRONG_USAGE)
    except ValueError as error:
        fail(str(error), as_json, WRONG_USAGE)
    from fineweb_mask.flows.engine.session import check_inputs
    from fineweb_mask.flows.stages import run_stage

    with chdir(begun):
        try:
            check_inputs(settings)
        except (OSError, ValueError, ImportError) as error:
            fail(f"what the last run read is out of reach: {error}", as_json, WRONG_USAGE)
        try:
            [stage] = run_flow(lambda: run_stage("report", settings, refresh=True), show_bars=show_bars)
        except KeyboardInterrupt:
            fail("interrupted; run the same command again", as_json, 130)
        except Exception as error:  # noqa: BLE001 - the last place that can say what happened
            fail(f"{type(error).__name__}: {error}", as_json, FAILED)
    folder = opened.reports
    page = folder / "index.html"
    if as_json:
        plots = sorted(str(path) for path in (folder / "plots").glob("*.png"))
        metrics = str(folder / "metrics.json")
        summary = ReportSummary(report=str(page), metrics=metrics, plots=plots, seconds=stage.seconds)
        typer.echo(summary.model_dump_json())
    else:
        typer.echo(f"report   {page}\nmetrics  {folder / 'metrics.json'}\nplots    {folder / 'plots'}")
    if show:
        open_page(str(page))


def _changed(
    settings: "PipelineSettings", workspace: str, given: dict[str, list[str] | int | str | None]
) -> "PipelineSettings":
    from fineweb_mask.models.settings import PipelineSettings

    report = settings.report.model_dump() | {name: value for name, value in given.items() if value is not None}
    return PipelineSettings.model_validate({**settings.model_dump(), "workspace": workspace, "report": report})
