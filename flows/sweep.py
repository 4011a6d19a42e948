"""Sweep: one selection for each weight of quality, the frontier of both on one page, and where its knee is."""

from functools import partial
from typing import Any

from prefect import flow

from fineweb_mask.flows.engine.contenders import Contest, publish
from fineweb_mask.flows.engine.session import open_session, prepare, runner
from fineweb_mask.flows.lamb_values import DEFAULT, parse_lambs
from fineweb_mask.flows.summary import PageSummary, Quarantined
from fineweb_mask.models.settings import PipelineSettings
from fineweb_mask.tasks.selection import frontier
from fineweb_mask.tasks.selection import sweep_page as page
from fineweb_mask.tasks.selection.contenders import noted_seconds
from fineweb_mask.tasks.selection.frontier import FrontierJob
from fineweb_mask.tasks.workspace.workspace import StageFile

BASELINES = ["random", "top_quality", "semdedup", "greedy"]


class SweepSummary(PageSummary):
    """What a sweep found; `fineweb-mask sweep --json` prints it."""

    recommended_lamb: float | None
    values: list[dict[str, Any]]
    baselines: dict[str, dict[str, Any]]


@flow(name="sweep", flow_run_name="sweep {settings.workspace}", cache_result_in_memory=False)
def sweep(settings: PipelineSettings, lamb: str = DEFAULT) -> SweepSummary:
    """Select at many weights of quality and write a page on the frontier; the pipeline's own masks stay as they are.

    Parameters
    ----------
    settings
        The recipe: its documents, budget, metrics and seed are every selection's.
    lamb
        Weights of quality from 0 to 1: `0,0.3,1`, `0,0.05,...,1` or `0:1:0.1` (from:to:step).

    Raises
    ------
    LambError
        If the values cannot be read.
    BadShardError
        If there is nothing to select from.
    """
    lambs = parse_lambs(lamb)
    with open_session(settings, keep=False) as (run, curation, _shown):
        prepare(run, curation)
        contest = Contest(run, curation.selectable, settings.selection)
        contest.find_scales()
        frontiers: list[StageFile] = []
        seconds: dict[str, float] = {}

        def swept(job: FrontierJob, file: StageFile | None) -> None:
            if file is not None:
                frontiers.append(file)
                for name, spent in noted_seconds(job.seconds_path, job.key).items():
                    seconds[name] = seconds.get(name, 0.0) + spent

        run.expect("frontier", len(contest.groups))
        for group in contest.groups:
            job = frontier.plan(run.workspace, group, settings.selection, lambs, contest.scale(group))
            run.add("frontier", job, partial(swept, job))
        run.work(at_once=1)
        contest.run_selector(BASELINES)
        page_job = page.plan(
            run.workspace,
            settings=settings.selection,
            lambs=lambs,
            frontiers=frontiers,
            baselines=contest.files,
            seconds=seconds | contest.seconds,
        )
        written = run.one("sweep", page_job)
        found = written.details
        table = [{"selection": f"lamb {value['lamb']:g}", **value} for value in found["values"]]
        table += [{"selection": name, **figures} for name, figures in found["baselines"].items()]
        publish(page_job.folder, "sweep", table, "Quality against diversity at every lamb.")
        return SweepSummary(
            status="quarantined" if run.quarantined else "done",
            workspace=run.workspace.display_path(run.workspace.root),
            page=str(page_job.folder / "index.html"),
            metrics=str(page_job.folder / "metrics.json"),
            documents=found["documents"],
            quarantined=[Quarantined(shard=shard, reason=reason) for shard, reason in run.quarantined.items()],
            stages=run.in_order,
            recommended_lamb=found["recommended_lamb"],
            values=found["values"],
            baselines=found["baselines"],
        )


def run_sweep(settings: PipelineSettings, lamb: str) -> SweepSummary:
    """Run the sweep in this process with the recipe's engine."""
    return sweep.with_options(task_runner=runner(settings))(settings, lamb)
