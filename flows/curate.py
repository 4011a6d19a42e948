"""Turn raw documents into a selected dataset: the pipeline, stage by stage, and its Prefect flow `curate`.

Each stage below runs one job for each shard, or a few for the whole corpus; each job is a Prefect task run of the
stage's name. `Run.map` returns when the last job of the stage has ended. It takes outputs that are current from the
workspace, tries a job again whose error may pass (`RETRY_DELAYS`), and leaves out shards that a job found bad: these
are in no later stage, and are named in the summary.
"""

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fineweb_mask.flows.pipeline.dataset import export, materialize, report
from fineweb_mask.flows.pipeline.duplicates import find_duplicates
from fineweb_mask.flows.pipeline.fit import (
    Models,
    Quality,
    Refit,
    exclusion_lists,
    fit_encoder,
    fit_quality,
    score_processes,
)
from fineweb_mask.flows.pipeline.losses import watch_groups
from fineweb_mask.flows.pipeline.records import summarize
from fineweb_mask.flows.pipeline.run import Files, PerShard, Run
from fineweb_mask.flows.pipeline.selection import Prepared, Selection, check_any_document, prepared, select
from fineweb_mask.flows.recipe import with_overrides
from fineweb_mask.flows.summary import RunSummary
from fineweb_mask.models.settings import FIRST_IN_FORM, FROM_QUALITY, Overrides, PipelineSettings
from fineweb_mask.tasks.embed import embed
from fineweb_mask.tasks.inference.model_files import ModelFolder
from fineweb_mask.tasks.ingest import ingest
from fineweb_mask.tasks.processes.workers import end_workers
from fineweb_mask.tasks.registry import Refreshed
from fineweb_mask.tasks.score import score
from fineweb_mask.tasks.score_embed import ScoreEmbedJob
from fineweb_mask.tasks.workspace.references import ShardFiles

if TYPE_CHECKING:
    from prefect import Flow


def pipeline(run: Run) -> tuple[Selection, dict[str, Path]]:
    """Run all stages: from raw documents to the dataset, the training files and the report.

    What was selected is returned, and the folders of training files by name.

    Raises
    ------
    BadShardError
        If no shard can be read, or one cannot and `ingest.on_bad_shard` is `fail`.
    """
    ready = prepare(run)
    selection = select(run, ready)
    dataset = materialize(run, selection)
    exports = export(run, dataset)
    report(run, selection, dataset)
    return selection, exports


def prepare(run: Run) -> Prepared:
    """Make all that a selection reads: documents, scores, vectors and the duplicates of every shard.

    Raises
    ------
    WipedGroupError
        If a step keeps nearly nothing of a group, and `ingest.on_wiped_group` is `stop`.
    """
    documents = ingest_shards(run)
    if run.settings.ingest.on_wiped_group == "stop":  # what ingest wipes out is not scored
        watch_groups(run, [ShardFiles(documents=file) for file in documents.values()])
    models = Models(fit_quality(run, documents), fit_encoder(run, documents))
    if run.settings.embedding.model == FROM_QUALITY:
        scores, vectors = score_and_embed_shards(run, documents, models.quality)
    else:
        scores = score_shards(run, documents, models.quality)
        vectors = embed_shards(run, documents, models.encoder)
    duplicates = find_duplicates(run, documents)
    ready = prepared(run, documents, models, scores, vectors, duplicates)
    watch_groups(run, ready.shards)
    return ready


def ingest_shards(run: Run) -> Files:
    """Read, filter and write the documents of every source file."""
    settings, shards = run.settings, run.to_ingest
    lists = exclusion_lists(run)
    removed = PerShard({name: run.removed.get(name) for name in shards})
    documents = run.map(
        ingest, shard=shards, source=settings.source, settings=settings.ingest, removed=removed, **lists
    )
    check_any_document(run, documents)
    return documents


def score_shards(run: Run, documents: Files, quality: Quality) -> Files:
    """Score every document for quality."""
    processes = score_processes(run, documents)
    scores = run.map(score, **_scoring(run, documents, quality), processes=processes)
    end_workers()
    return scores


def embed_shards(run: Run, documents: Files, encoder: ModelFolder | None) -> Files:
    """Embed every document."""
    return run.map(embed, documents=documents, model=encoder, settings=run.settings.embedding)


def score_and_embed_shards(run: Run, documents: Files, quality: Quality) -> tuple[Files, Files]:
    """Score and embed every document in one pass, by the scorer that also makes vectors."""
    scoring = run.jobs(score, **_scoring(run, documents, quality))
    jobs = PerShard({name: ScoreEmbedJob.of(job, run.settings.embedding) for name, job in scoring.items()})
    made = {name: jobs[name].files(run.listing) or jobs[name].files() for name in run.map(jobs)}
    scores, vectors = ({name: files[place] for name, files in made.items() if files} for place in (0, 1))
    return PerShard(scores), PerShard(vectors)


def _scoring(run: Run, documents: Files, quality: Quality) -> dict[str, Any]:
    return {
        "documents": documents,
        "settings": run.settings.quality,
        "models": quality.scorers,
        "statistics": quality.statistics,
        "sidecars": quality.sidecars,
    }


@cache
def _flow() -> "Flow[..., RunSummary]":
    """Make the flow when it is first asked for: Prefect's import takes longer than a run with nothing to do."""
    from fineweb_mask.flows.display.events import Limits, announce_dataset
    from fineweb_mask.flows.pipeline.approval import approved, check_approval
    from fineweb_mask.flows.pipeline.start import as_flow, start_run

    @as_flow("curate")
    def curate(
        settings: PipelineSettings,
        refit: list[Refit] | None = None,
        refresh: list[Refreshed] | None = None,
        overrides: Overrides = FIRST_IN_FORM,
        approve: bool = False,
        limits: Limits | None = None,
    ) -> RunSummary:
        """Turn the raw documents of a source into a selected dataset.

        Parameters
        ----------
        settings
            The recipe.
        refit
            What is fitted again on the corpus as it is now: the encoder, the quality models, the selection's rule.
        refresh
            Stages that run again although their files are current.
        overrides
            Settings that replace the recipe's, by key or by section: `{"selection.lamb": 0.3}`.
        approve
            Wait for a person who has seen the report. Until the run is resumed in the UI, the dataset is in the
            workspace alone: nothing is written to `materialize.output` or exported, and its event is not emitted.
        limits
            Above what of the selection an event is emitted.

        Raises
        ------
        BadShardError
            If no shard can be read, or one cannot and `ingest.on_bad_shard` is `fail`.
        SettingsError
            If a run that no deployment started is to wait.
        """
        settings = with_overrides(settings, overrides)
        if approve:
            check_approval()
            held = with_overrides(settings, {"materialize.output": None, "materialize.export": []})
            with start_run(held, refit=refit, refresh=refresh) as run:
                summary = summarize(run, *pipeline(run))
            approved(summary, run)
            refit = refresh = None
        with start_run(settings, refit=refit, refresh=refresh) as run:
            summary = summarize(run, *pipeline(run))
        announce_dataset(
            summary, settings, run.workspace.reports / "metrics.json", limits or Limits(), is_approved=approve
        )
        return summary

    return curate


def __getattr__(name: str) -> "Flow[..., RunSummary]":
    """Return the flow `curate`, which deployments name."""
    if name == "curate":
        return _flow()
    raise AttributeError(f"module {__name__} has no attribute {name!r}")
