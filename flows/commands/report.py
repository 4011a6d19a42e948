"""`fineweb-mask report`: write the page on what a finished run selected again, and open it."""

import webbrowser
from contextlib import chdir
from pathlib import Path
from typing import Annotated

import typer
from pydantic import BaseModel

from fineweb_mask.flows.commands import _common as common
from fineweb_mask.flows.display.terminal import SafeConsole, echo, print_paths
from fineweb_mask.flows.recipe import validate
from fineweb_mask.models.errors import FinewebMaskError, SettingsError


class ReportSummary(BaseModel):
    """Where the report is; `fineweb-mask report --json` prints it."""

    status: str = "done"
    report: str
    metrics: str
    plots: list[str]


@common.verb
def report(
    workspace: Annotated[str, typer.Argument(help="Workspace of a finished run: a folder, or a URL such as s3://.")],
    *,
    by: Annotated[
        list[str] | None,
        typer.Option(
            help="Break the selection and what steps drop down by this column (repeatable).", metavar="COLUMN"
        ),
    ] = None,
    show: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
) -> common.Result:
    """Write the report of a workspace: what went in, what came out and why. The columns are kept for later runs.

    It is a run of the last recipe, in which nothing else has to be built.

    Example: fineweb-mask report workspaces/sample --by language --open
    """
    from fineweb_mask.flows.pipeline.inputs import find_inputs
    from fineweb_mask.flows.status.inspection import finished_run, last_run
    from fineweb_mask.models.settings import PipelineSettings
    from fineweb_mask.tasks.source.columns import ColumnError

    opened, last, folder = last_run(workspace)
    content = {**last.settings.model_dump(), "workspace": opened.address}
    if by is not None:
        within = [one for one in last.settings.report.by or [] if "." in one]  # which the documents were made with
        content["report"] = {"by": list(dict.fromkeys([*by, *within]))}
    settings = validate(PipelineSettings, content)
    with chdir(folder):
        try:
            find_inputs(settings)
        except ColumnError:
            raise  # of --by
        except (FinewebMaskError, OSError) as error:
            raise SettingsError(f"the inputs of the last run are out of reach: {error}") from error
        common.begin()
        if finished_run(settings) is None:
            with common.flow_shown():
                from fineweb_mask.flows.curate import curate

                curate(settings)
    page, metrics, plots = (
        opened.display_path(opened.reports / name) for name in ("index.html", "metrics.json", "plots")
    )
    files = [opened.display_path(path) for path in opened.files("reports/plots/*.png")]
    if show and (opened.url is not None or not webbrowser.open(Path(page).absolute().as_uri())):
        echo(f"fineweb-mask: no browser can open it from here; open {page} yourself", err=True)
    summary = ReportSummary(report=page, metrics=metrics, plots=files)
    return common.Result(summary, lambda: print_paths(SafeConsole(), report=page, metrics=metrics, plots=plots))
