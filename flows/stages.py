"""Run or schedule a stage by itself, one flow for each stage, or prepare a share of the shards.

Every machine prepares one share, at the same time or not, so that several fill one workspace without any engine; a run
of the whole pipeline then selects and writes the dataset.
"""

from prefect import Flow

from fineweb_mask.flows.curate import embed_shards, ingest_shards, prepare, score_and_embed_shards, score_shards
from fineweb_mask.flows.display.prefect_ui import artifact_key, publish_page
from fineweb_mask.flows.pipeline.dataset import export, materialize, report
from fineweb_mask.flows.pipeline.duplicates import sort_shards
from fineweb_mask.flows.pipeline.fit import fit_encoder, fit_quality
from fineweb_mask.flows.pipeline.run import Run, Share
from fineweb_mask.flows.pipeline.selection import select
from fineweb_mask.flows.pipeline.start import as_flow, start_run
from fineweb_mask.flows.summary import StageSummary
from fineweb_mask.models.settings import FROM_QUALITY, PipelineSettings
from fineweb_mask.tasks.registry import REFRESHED, STAGE_FLOWS, run_by


def stage_flow(stage: str) -> Flow[..., list[StageSummary]]:
    """Return the flow that runs one stage."""

    @as_flow(stage)
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
        with start_run(settings, refresh=again, scope=scope) as run:
            _run(run, stage)
            if stage == "report":
                key = artifact_key("report", settings.workspace)
                publish_page(run.workspace.reports, key, "What was selected, and why.")
            return run.stages

    return run_stage


def _run(run: Run, stage: str) -> None:
    """Run the stages up to this one, of which only those of the run's scope build anything."""
    if stage in {"ingest", "score", "embed"}:
        documents = ingest_shards(run)
        if stage == "ingest":
            return
        if run.settings.embedding.model == FROM_QUALITY:
            score_and_embed_shards(run, documents, fit_quality(run, documents))
        elif stage == "score":
            score_shards(run, documents, fit_quality(run, documents))
        else:
            embed_shards(run, documents, fit_encoder(run, documents))
        run.require_all(documents, "ingest")
        return
    selection = select(run, prepare(run))
    if stage != "select":
        dataset = materialize(run, selection)
        if stage == "export":
            export(run, dataset)
        elif stage == "report":
            report(run, selection, dataset)


FLOWS = {stage: stage_flow(stage) for stage in STAGE_FLOWS}
"""The flow of every stage that has one, by its name."""
globals().update({f"{stage}_flow": found for stage, found in FLOWS.items()})  # entrypoints of deployments: score_flow


@as_flow("share", "share {number} of {of} {settings.workspace}")
def prepare_share(settings: PipelineSettings, number: int, of: int) -> list[StageSummary]:
    """Ingest, score and embed every `of`-th shard, from the `number`-th on.

    Each machine also ingests the sample that is fitted on, unless it is there; the first one to fit it is followed by
    the others.

    Parameters
    ----------
    settings
        The recipe.
    number
        Which share, from 1.
    of
        Number of shares.
    """
    with start_run(settings, share=Share(number, of), keep=False) as run:
        documents = ingest_shards(run)
        quality, encoder, own = fit_quality(run, documents), fit_encoder(run, documents), run.own(documents)
        if settings.embedding.model == FROM_QUALITY:
            score_and_embed_shards(run, own, quality)
        else:
            score_shards(run, own, quality)
            embed_shards(run, own, encoder)
        sort_shards(run, own)
        return run.stages
