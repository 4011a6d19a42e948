"""Write the report of a workspace again, as a flow that builds nothing else."""

from fineweb_mask.flows.curate import prepare
from fineweb_mask.flows.display.prefect_ui import artifact_key, publish_page
from fineweb_mask.flows.pipeline.dataset import materialize
from fineweb_mask.flows.pipeline.dataset import report as write_report
from fineweb_mask.flows.pipeline.selection import select
from fineweb_mask.flows.pipeline.start import as_flow, start_run
from fineweb_mask.flows.summary import StageSummary
from fineweb_mask.models.settings import PipelineSettings
from fineweb_mask.tasks.registry import stages_shown_as

REPORT = "report"


@as_flow(REPORT)
def report(settings: PipelineSettings) -> StageSummary:
    """Write the report on what a workspace's last run selected.

    Parameters
    ----------
    settings
        The recipe of that run; another `report` section is kept for later runs.

    Raises
    ------
    MissingInputError
        If the run did not come to the dataset.
    """
    scope = frozenset(stage.name for stage in stages_shown_as(REPORT))
    with start_run(settings, refresh=[REPORT], scope=scope) as run:
        selection = select(run, prepare(run))
        write_report(run, selection, materialize(run, selection))
        publish_page(run.workspace.reports, artifact_key(REPORT, settings.workspace), "What was selected, and why.")
        [stage] = run.stages
        return stage
