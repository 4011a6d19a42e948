"""Let a run wait in the Prefect UI for a person who has seen its report."""

from typing import cast

from prefect.context import FlowRunContext
from prefect.flow_runs import suspend_flow_run
from prefect.input import RunInput
from prefect.input.actions import read_flow_run_input
from prefect.logging import get_run_logger
from pydantic import Field

from fineweb_mask.flows.pipeline.run import Run
from fineweb_mask.flows.summary import RunSummary
from fineweb_mask.models.errors import SettingsError
from fineweb_mask.tasks.materialize import MaterializeJob
from fineweb_mask.tasks.reporting.templating import markdown


class Approval(RunInput):
    """What the form asks for on which a run is resumed."""

    note: str = Field("", description="Why, or by whom; it is kept in the log.")


def check_approval() -> None:
    """Check that the flow that runs can wait, before any work.

    Raises
    ------
    SettingsError
        If no deployment started it, so that nothing would start it again.
    """
    context = FlowRunContext.get()
    if context is None or context.flow_run is None or context.flow_run.deployment_id is None:
        raise SettingsError("approve: only the run of a deployment can wait for a person: run one, or leave it out")


def approved(summary: RunSummary, run: Run) -> None:
    """Return when a person has resumed the run. Until then no process waits: the flow ends here, and begins again.

    Whoever cancels the run in the UI refuses. A retry asks again only if the dataset is another.
    """
    [dataset] = [file for job, file in run.found[MaterializeJob.stage.shown_as] if job.name == MaterializeJob.name]
    key = f"approve-{'' if dataset is None else dataset.fingerprint}"
    place = f"suspended-{key}-response"  # where Prefect keeps it
    answer = cast("dict[str, str] | None", read_flow_run_input(place))
    if answer is None:
        seen = (
            f"{summary.documents_kept:,} of {summary.documents_in:,} documents are selected. Read the report, among "
            f"the artifacts of this run or in {markdown(summary.report)}, before you submit: the dataset is then "
            "published. Cancel the run to refuse."
        )
        suspend_flow_run(wait_for_input=Approval.with_initial_data(description=seen), key=key)
    get_run_logger().info("a person has approved the dataset: %s", (answer or {}).get("note") or "no note")
