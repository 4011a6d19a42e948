"""`fineweb-mask report`: write a page on what a finished run selected, and why."""

from contextlib import chdir
from functools import partial
from typing import Annotated

import typer
from pydantic import BaseModel

from fineweb_mask.flows.commands import _common as common
from fineweb_mask.flows.display.terminal import SafeConsole, print_paths
from fineweb_mask.flows.processes.environment import set_environment
from fineweb_mask.flows.recipe import validate
from fineweb_mask.models.errors import FinewebMaskError, SettingsError


class ReportSummary(BaseModel):
    """Where the report is; `fineweb-mask report --json` prints it."""

    status: str = "done"
    report: str
    metrics: str
    plots: list[str]
    seconds: float


@common.verb
def report(
    workspace: Annotated[str, typer.Argument(help="Workspace of a finished run: a folder, or a URL such as s3://.")],
    *,
    by: Annotated[
        list[str] | None,
        typer.Option(help="Also break the selection down by this column of the source (repeatable).", metavar="COLUMN"),
    ] = None,
    sample: Annotated[int | None, typer.Option(help="Number of documents whose vectors are analysed.", min=2)] = None,
    show: common.Open = False,
) -> common.Answer:
    """Rebuild the report of a workspace: what went in, what came out and why. The options are kept for later runs.

    Example: fineweb-mask report workspaces/sample --by language --open
    """
    set_environment(show_bars=common.shows_bars())
    from fineweb_mask.flows.pipeline.inputs import find_inputs
    from fineweb_mask.flows.status.inspection import last_run
    from fineweb_mask.models.settings import PipelineSettings
    from fineweb_mask.tasks.source.columns import ColumnError

    opened, last, folder = last_run(workspace)
    given = {"by": by, "sample": sample}
    report = last.settings.report.model_dump() | {name: one for name, one in given.items() if one is not None}
    within = [one for one in last.settings.report.by if "." in one]  # which the documents were made with
    report["by"] = list(dict.fromkeys([*report["by"], *within]))
    content = {**last.settings.model_dump(), "workspace": opened.address, "report": report}
    settings = validate(PipelineSettings, content)
    with chdir(folder):
        try:
            find_inputs(settings)
        except ColumnError:
            raise  # of --by
        except (FinewebMaskError, OSError) as error:
            raise SettingsError(f"the inputs of the last run are out of reach: {error}") from error
        common.begin()
        with common.flow_shown():
            from fineweb_mask.flows.report import report as write_report

            stage = write_report(settings)
    places = (opened.reports / name for name in ("index.html", "metrics.json", "plots"))
    page, metrics, plots = map(opened.display_path, places)
    files = [opened.display_path(path) for path in opened.files("reports/plots/*.png")]
    summary = ReportSummary(report=page, metrics=metrics, plots=files, seconds=stage.seconds)
    tell = partial(print_paths, SafeConsole(), report=page, metrics=metrics, plots=plots)
    return common.Answer(summary, tell, page=common.page_here(opened, page) if show else "")
