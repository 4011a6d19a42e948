"""Run or schedule a stage by itself: one flow for each stage."""

from prefect import flow
from prefect.flows import Flow

from fineweb_mask.flows.curate import (
    RETRY_DELAYS,
    embed_shards,
    ingest_shards,
    prepare,
    score_and_embed_shards,
    score_shards,
)
from fineweb_mask.flows.display.prefect_ui import artifact_key, publish_page
from fineweb_mask.flows.display.run_names import named
from fineweb_mask.flows.pipeline.dataset import export, materialize, report
from fineweb_mask.flows.pipeline.failures import fails_in_one_line
from fineweb_mask.flows.pipeline.fit import fit_encoder, fit_quality
from fineweb_mask.flows.pipeline.run import Run
from fineweb_mask.flows.pipeline.selection import select
from fineweb_mask.flows.pipeline.start import runner, start_run
from fineweb_mask.flows.summary import StageSummary
from fineweb_mask.models.settings import FROM_QUALITY, PipelineSettings
from fineweb_mask.tasks.registry import REFRESHED, STAGE_FLOWS, StageFlow, run_by


def stage_flow(stage: str) -> Flow[..., list[StageSummary]]:
    """Return the flow that runs one stage."""

    @flow(name=stage, flow_run_name=named(stage), cache_result_in_memory=False)
    @fails_in_one_line
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
        is_together = settings.embedding.model == FROM_QUALITY and stage in {"score", "embed"}
        scope = run_by({"score", "embed"} if is_together else {stage})
        again = scope.intersection(REFRESHED) if refresh else None
        with start_run(settings, retry_delays=RETRY_DELAYS, refresh=again, scope=scope) as run:
            _run(run, stage)
            if stage == "report":
                key = artifact_key("report", settings.workspace)
                publish_page(run.workspace.reports, key, "What was selected, and why.")
            return run.stages

    return run_stage


def _run(run: Run, stage: str) -> None:
    """Run the stages up to this one, of which only those of the run's scope build anything."""
    if stage == "ingest":
        ingest_shards(run)
    elif stage in {"score", "embed"}:
        documents = ingest_shards(run)
        if run.settings.embedding.model == FROM_QUALITY:
            score_and_embed_shards(run, documents, fit_quality(run, documents))
        elif stage == "score":
            score_shards(run, documents, fit_quality(run, documents))
        else:
            embed_shards(run, documents, fit_encoder(run, documents))
        run.require_all(documents, "ingest")
    else:
        _select_and_follow(run, stage)


def _select_and_follow(run: Run, stage: str) -> None:
    selection = select(run, prepare(run))
    if stage == "select":
        return
    dataset = materialize(run, selection)
    if stage == "export":
        export(run, dataset)
    if stage == "report":
        report(run, selection, dataset)


FLOWS = {stage: stage_flow(stage) for stage in STAGE_FLOWS}
"""The flow of every stage that has one, by its name."""
globals().update({f"{stage}_flow": found for stage, found in FLOWS.items()})  # entrypoints of deployments: score_flow


def run_stage(stage: StageFlow, settings: PipelineSettings, *, refresh: bool = False) -> list[StageSummary]:
    """Run one stage in this process with the recipe's engine."""
    return FLOWS[stage].with_options(task_runner=runner(settings))(settings, refresh)
