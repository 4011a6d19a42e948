"""Run or schedule a stage on its own: one flow per stage."""

from prefect import flow
from prefect.flows import Flow

from fineweb_mask.flows.display.prefect_ui import artifact_key, publish_page
from fineweb_mask.flows.display.run_names import named
from fineweb_mask.flows.engine.scheduler import MissingInputError
from fineweb_mask.flows.engine.session import Session, open_session, rebuilds_damaged, runner
from fineweb_mask.flows.summary import StageSummary
from fineweb_mask.models.settings import FROM_QUALITY, PipelineSettings
from fineweb_mask.tasks.registry import REFRESHED, STAGE_FLOWS, StageFlow, run_by


def stage_flow(stage: str) -> Flow[..., list[StageSummary]]:
    """Return the flow that runs one stage."""

    @flow(name=stage, flow_run_name=named(stage), cache_result_in_memory=False)
    @rebuilds_damaged
    def run_stage(settings: PipelineSettings, refresh: bool = False) -> list[StageSummary]:
        """Run one stage over all shards whose inputs exist.

        Parameters
        ----------
        settings
            The recipe.
        refresh
            Run it again although its files are current.

        Raises
        ------
        MissingInputError
            If an input does not exist; what could be done is done.
        """
        together = {"score", "embed"} if settings.embedding.model == FROM_QUALITY else {stage}
        scope = run_by(together if stage in together else {stage})
        again = scope.intersection(REFRESHED) if refresh else None
        with open_session(settings, refresh=again, scope=scope) as session:
            session.plan.prepare()
            if stage != "report" or not session.plan.documents:
                _check(session.scheduler.missing.get("ingest", []), "are not ingested", "ingest")
            if stage in {"select", "materialize", "export", "report"}:
                _select_and_follow(stage, session)
            if stage == "report":
                key = artifact_key("report", settings.workspace)
                publish_page(session.scheduler.workspace.reports, key, "What was selected, and why.")
            return session.scheduler.in_order

    return run_stage


def _select_and_follow(stage: str, session: Session) -> None:
    scheduler, plan = session.scheduler, session.plan
    without = set(plan.documents).difference(shard.name for shard in plan.selectable)
    _check(sorted(without), "have no current scores or vectors", "score and embed")
    plan.select()
    scheduler.finish()
    _check(scheduler.missing.get("embed", []), "have no current vectors", "select")
    _check(scheduler.missing.get("select", []), "are not selected from", "select")
    if stage in {"materialize", "export", "report"}:
        plan.materialize()
        _check(scheduler.missing.get("materialize", []), "is not written", "materialize")
    if stage == "export":
        plan.export()
    if stage == "report":
        plan.report()
    scheduler.finish()


def _check(names: list[str], state: str, first: str) -> None:
    if names:
        some = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
        raise MissingInputError(f"{len(names)} {state} ({some}): run {first} first, or the whole pipeline")


FLOWS = {stage: stage_flow(stage) for stage in STAGE_FLOWS}
"""The flow of every stage that has one, by its name."""
globals().update({f"{stage}_flow": found for stage, found in FLOWS.items()})  # entrypoints of deployments: score_flow


def run_stage(stage: StageFlow, settings: PipelineSettings, *, refresh: bool = False) -> list[StageSummary]:
    """Run one stage in this process with the recipe's engine."""
    return FLOWS[stage].with_options(task_runner=runner(settings))(settings, refresh)
