"""Turn raw documents into a selected dataset: the pipeline, stage by stage, and its Prefect flow `curate`.

Each stage below runs one job for each shard, or a few for the whole corpus; each job is a Prefect task run of the
stage's name. `Run.map` returns when the last job of the stage has ended. It takes outputs that are current from the
workspace, tries a job again whose error may pass (`RETRY_DELAYS`), and leaves out shards that a job found bad: these
are in no later stage, and are named in the summary.
"""

import logging
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from fineweb_mask.flows.pipeline.dataset import export, materialize, report
from fineweb_mask.flows.pipeline.duplicates import find_duplicates, sketch_shards
from fineweb_mask.flows.pipeline.excluded import exclude_named, ingest_without_erased
from fineweb_mask.flows.pipeline.fit import (
    Models,
    Refit,
    exclusion_lists,
    fit_models,
    score_processes,
)
from fineweb_mask.flows.pipeline.losses import watch_groups
from fineweb_mask.flows.pipeline.records import summarize
from fineweb_mask.flows.pipeline.run import Files, ReachedError, Run, Share
from fineweb_mask.flows.pipeline.selection import Prepared, SelectedShards, check_any_document, prepared, select
from fineweb_mask.flows.recipe import RecipeError, with_overrides
from fineweb_mask.flows.summary import RunSummary, StoppedSummary
from fineweb_mask.models.settings import PipelineSettings
from fineweb_mask.models.settings.base import Overrides
from fineweb_mask.models.settings.validation import meant
from fineweb_mask.tasks.embed import CHUNK_DOCUMENTS, embed
from fineweb_mask.tasks.inference.model_files import ModelFolder
from fineweb_mask.tasks.processes.workers import end_workers
from fineweb_mask.tasks.score import BATCH_ROWS, score
from fineweb_mask.tasks.source.inventory import notes_of
from fineweb_mask.tasks.workspace.references import ShardFiles

if TYPE_CHECKING:
    from prefect import Flow

logger = logging.getLogger(__name__)

Until = Literal["ingest", "dedup", "score", "embed", "select", "materialize", "export", "report"]
"""Stages that a run can stop after, in the order in which it comes to them; after the last it ends anyway."""


def pipeline(run: Run) -> tuple[SelectedShards, dict[str, Path]]:
    """Run all stages: from raw documents to the dataset, the training files and the report.

    What was selected is returned, and the folders of training files by name.

    Raises
    ------
    BadShardError
        If no shard can be read, or one cannot and `ingest.on_bad_shard` is `fail`.
    ReachedError
        After the stage that the run stops after.
    """
    ready = prepare(run)
    selection = select(run, ready)
    run.reached("select")
    dataset = materialize(run, selection)
    run.reached("materialize")
    exports = export(run, dataset)
    run.reached("export")
    report(run, selection, dataset)
    return selection, exports


def prepare(run: Run) -> Prepared:
    """Make all that a selection reads: documents, their duplicates, and scores and vectors of the others.

    Raises
    ------
    WipedGroupError
        If a step keeps nearly nothing of a group, and `ingest.on_wiped_group` is `stop`.
    """
    documents = ingest_shards(run)
    settings = run.settings  # what a step wipes out, or a column that names no groups, does not come to the next
    is_watched = settings.ingest.on_wiped_group == "stop" or settings.report.by is not None
    if is_watched:
        watch_groups(run, [ShardFiles(documents=file) for file in documents.values()])
    if run.is_share:
        sketch_shards(run, documents)
    run.reached("ingest")
    duplicates = find_duplicates(run, documents)
    if is_watched:
        watch_groups(run, [ShardFiles(documents=documents[name], duplicates=duplicates[name]) for name in documents])
    run.reached("dedup")
    models = fit_models(run, documents)
    scores = score_shards(run, documents, duplicates, models)
    run.reached("score")
    vectors = run.map(embed, **_embedding(run, documents, duplicates, models.encoder))
    run.reached("embed")
    _note(run, scores)
    ready = prepared(run, documents, models, scores, vectors, exclude_named(run, documents, duplicates))
    watch_groups(run, ready.shards)
    return ready


def ingest_shards(run: Run) -> Files:
    """Read, filter and write the documents of every source file."""
    settings, lists = run.settings, exclusion_lists(run)
    documents = ingest_without_erased(run, run.shards, source=settings.source, settings=settings.ingest, **lists)
    check_any_document(run, documents)
    _note(run, documents)
    return documents


def _note(run: Run, files: Files) -> None:
    for note in notes_of(files.values()) if run.remembers else ():
        logger.warning("%s", note)


def score_shards(run: Run, documents: Files, duplicates: Files, models: Models) -> Files:
    """Score every document for quality, duplicates aside; where a scorer is the encoder, embed it in the same pass."""
    vectors = dict[str, Any]()
    if models.encoder.scorer is not None:
        vectors["vectors"] = run.jobs(embed, **_embedding(run, documents, duplicates, models.encoder))
    scores = run.map(
        score,
        documents=documents,
        duplicates=duplicates,
        settings=run.settings.quality,
        models=models.scorers,
        statistics=models.statistics,
        sidecars=models.sidecars,
        processes=score_processes(run, documents),
        **vectors,
    )
    end_workers()
    return scores


def _embedding(run: Run, documents: Files, duplicates: Files, encoder: ModelFolder) -> dict[str, Any]:
    """Return the fields of the jobs that embed every document, duplicates aside."""
    chunk = CHUNK_DOCUMENTS if encoder.scorer is None else BATCH_ROWS  # what is encoded together makes the last bits
    settings = run.settings.embedding
    return {
        "documents": documents,
        "duplicates": duplicates,
        "model": encoder,
        "settings": settings,
        "chunk_documents": chunk,
    }


def check_stages(refit: Sequence[str], until: str | None, prefix: str = "") -> None:
    """Check what `curate` is to fit again and to stop after; messages put the prefix before its option.

    Raises
    ------
    RecipeError
        If it knows one of them not; the message lists what it knows.
    """
    for option, received, allowed in (
        ("refit", refit, get_args(Refit)),
        ("until", [] if until is None else [until], get_args(Until)),
    ):
        if unknown := sorted(set(received).difference(allowed)):
            hint = meant(unknown[0], allowed)
            raise RecipeError(f"{prefix}{option} takes one of {', '.join(allowed)}, received {unknown[0]!r}{hint}")


def share_of(shards: str | None, until: str | None, prefix: str = "") -> tuple[str | None, Share | None]:
    """Return the stage that a run stops after, and the share of the shards that it works on.

    Raises
    ------
    RecipeError
        If it is no share, or no stage that a share can stop after; the message puts the prefix before its option.
    """
    if shards is None:
        return until, None
    if until not in {None, "ingest"}:
        raise RecipeError(f"{prefix}shards: of {prefix}until it takes only ingest, received {until!r}: leave it out")
    try:
        return until or "embed", Share.parse(shards)
    except ValueError as error:
        raise RecipeError(f"{prefix}shards: {error}") from error


@cache
def _flow() -> "Flow[..., RunSummary | StoppedSummary]":
    """Make the flow when it is first asked for: Prefect's import takes longer than a run with nothing to do."""
    from fineweb_mask.flows.display.prefect_ui import announce_dataset
    from fineweb_mask.flows.pipeline.start import as_flow, start_run

    @as_flow("curate")
    def curate(
        settings: PipelineSettings,
        refit: list[Refit] | None = None,
        overrides: Overrides | None = None,
        until: Until | None = None,
        shards: str | None = None,
    ) -> RunSummary | StoppedSummary:
        """Turn the raw documents of a source into a selected dataset.

        Parameters
        ----------
        settings
            The recipe.
        refit
            What is fitted again on the corpus as it is now: the encoder, the quality models, the selection's rule.
        overrides
            Settings that replace the recipe's, by key or by section: `{"selection.lamb": 0.3}`.
        until
            The last stage that is run; None runs all. A later run goes on from there.
        shards
            The share of the shards that is prepared for others to select from, such as "2/8"; None is all.

        Raises
        ------
        RecipeError
            If `shards` is no share, or does not end before the shards are compared or selected from.
        BadShardError
            If no shard can be read, or one cannot and `ingest.on_bad_shard` is `fail`.
        """
        settings = with_overrides(settings, overrides)
        last, share = share_of(shards, None if until == "report" else until)
        with start_run(settings, refit=refit, until=last, share=share, keep=share is None) as run:
            try:
                made = pipeline(run)
            except ReachedError as reached:
                return StoppedSummary.of(run.workspace, run.quarantined, run.stages, until=str(reached))
            summary = summarize(run, *made)
        announce_dataset(summary, settings, run.workspace.reports / "metrics.json")
        return summary

    return curate


def __getattr__(name: str) -> "Flow[..., RunSummary | StoppedSummary]":
    """Return the flow `curate`, which deployments name."""
    if name == "curate":
        return _flow()
    raise AttributeError(f"module {__name__} has no attribute {name!r}")
