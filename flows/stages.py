"""One flow per stage: run, scheduled or run again by itself, over all shards that have what it reads."""

from typing import Literal

from prefect import flow
from prefect.flows import Flow

from fineweb_mask.flows.display.prefect_ui import publish_page
from fineweb_mask.flows.engine.plan import Curation
from fineweb_mask.flows.engine.scheduler import MissingInputError, Run
from fineweb_mask.flows.engine.session import open_session, runner
from fineweb_mask.flows.summary import StageSummary
from fineweb_mask.models.settings import FROM_QUALITY, PipelineSettings

StageFlow = Literal["ingest", "score", "embed", "select", "materialize", "report"]
SCOPES: dict[StageFlow, set[str]] = {
    "ingest": {"ingest"},
    "score": {"fit_classifier", "fit_statistics", "score"},
    "embed": {"fit_encoder", "embed"},
    "select": {"dedup", "select"},
    "materialize": {"materialize"},
    "report": {"report"},
}
"""What each flow runs, by the stage in a job's key; everything else must be there."""


def stage_flow(stage: StageFlow) -> Flow[..., list[StageSummary]]:
    """Return the flow that runs one stage."""

    @flow(name=stage, flow_run_name=stage + " {settings.workspace}", cache_result_in_memory=False)
    def run_stage(settings: PipelineSettings, refresh: bool = False) -> list[StageSummary]:
        """Run one stage over all shards that have what it reads.

        Parameters
        ----------
        settings
            The recipe.
        refresh
            Run it again although its files are current.

        Raises
        ------
        MissingInputError
            If what it reads is not there; what could be done is done.
        """
        scope = SCOPES[stage]
        if settings.embedding.model == FROM_QUALITY and stage in {"score", "embed"}:
            scope = SCOPES["score"] | SCOPES["embed"] | {"score_embed"}
        again = scope.difference({"fit_classifier", "fit_statistics", "fit_encoder"}) if refresh else set()
        with open_session(settings, refresh=again, scope=frozenset(scope)) as (run, curation, _shown):
            curation.plan_documents()
            run.work()
            if stage != "report" or not curation.documents:
                _check_ingested(run)
            if stage in {"select", "materialize", "report"}:
                _finish(stage, run, curation)
            if stage == "report":
                publish_page(run.workspace.reports, "report", "What was selected, and why.")
            return run.in_order

    return run_stage


def _finish(stage: StageFlow, run: Run, curation: Curation) -> None:
    without = set(curation.documents).difference(shard.documents.name for shard in curation.scored)
    _check(sorted(without), "have no current scores or vectors", "score and embed")
    curation.plan_selection()
    run.work()
    _check(run.missing.get("select", []), "are not selected from", "select")
    if stage in {"materialize", "report"}:
        curation.plan_dataset()
        run.work()
        _check(run.missing.get("materialize", []), "is not written", "materialize")
    if stage == "report":
        curation.plan_report(run.times)
        run.work()


def _check_ingested(run: Run) -> None:
    _check(run.missing.get("ingest", []), "are not ingested", "ingest")


def _check(names: list[str], state: str, first: str) -> None:
    if names:
        some = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
        raise MissingInputError(f"{len(names)} {state} ({some}): run {first} first, or the whole pipeline")


ingest_flow = stage_flow("ingest")
score_flow = stage_flow("score")
embed_flow = stage_flow("embed")
select_flow = stage_flow("select")
materialize_flow = stage_flow("materialize")
report_flow = stage_flow("report")
FLOWS: dict[StageFlow, Flow[..., list[StageSummary]]] = {
    "ingest": ingest_flow,
    "score": score_flow,
    "embed": embed_flow,
    "select": select_flow,
    "materialize": materialize_flow,
    "report": report_flow,
}


ONLY = tuple(FLOWS)


def run_stage(stage: StageFlow, settings: PipelineSettings, *, refresh: bool = False) -> list[StageSummary]:
    """Run one stage in this process with the recipe's engine."""
    return FLOWS[stage].with_options(task_runner=runner(settings))(settings, refresh)
