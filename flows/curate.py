"""The pipeline: ingest -> score -> embed -> select -> materialize, each stage cached, over all shards of a source."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from prefect import flow
from prefect.task_runners import TaskRunner, ThreadPoolTaskRunner
from pydantic import BaseModel

from flows.artifacts import Shown, shown_in_ui
from flows.curation import Curation, Given
from flows.records import describe, recorded
from flows.run import Refreshed, Run, StageSummary
from models.device import choose_devices
from models.settings import PipelineSettings
from models.stopping import allow_work, request_stop
from tasks import embed
from tasks.accounting import Counts, mean_terms
from tasks.columns import check_columns
from tasks.gpu import offer_slots
from tasks.lake import Workspace
from tasks.last_run import LastRun
from tasks.materialize import Output
from tasks.parts import discard_finished
from tasks.quality_models import check_scorers
from tasks.scoring import end_scoring_processes
from tasks.source import SourceShard, discover
from tasks.stage import BadShardError
from tasks.whole_files import removed

if TYPE_CHECKING:
    from prefect.futures import PrefectFuture

Refit = Literal["encoder", "quality"]
CATALOGUED = frozenset({"ingest", "dedup", "score", "embed", "score_embed"})
"""Stages whose files the catalog shows beside the masks that were made of them."""


class Quarantined(BaseModel):
    """A shard that was set aside."""

    shard: str
    reason: str


class RunSummary(BaseModel):
    """What a run of the pipeline did; `fineweb-mask run --json` prints it."""

    status: Literal["done", "quarantined"]
    workspace: str
    dataset: str
    card: str
    report: str
    documents_in: int
    documents_kept: int
    not_selected: int
    dropped: dict[str, int]
    quarantined: list[Quarantined]
    counts: Counts
    stages: list[StageSummary]
    busy_seconds: float  # in which at least one job was at work
    objective: float | None
    terms: dict[str, float]
    blocks: int


@flow(name="curate", flow_run_name="curate {settings.workspace}", cache_result_in_memory=False)
def curate(
    settings: PipelineSettings, refit: list[Refit] | None = None, refresh: list[Refreshed] | None = None
) -> RunSummary:
    """Turn the raw documents of a source into a selected dataset.

    Parameters
    ----------
    settings
        The recipe.
    refit
        What was fitted on the corpus earlier and is to be fitted anew on the corpus as it is now.
    refresh
        Stages that are run again although their files are current.

    Raises
    ------
    BadShardError
        If no shard can be read, or one cannot and `ingest.on_bad_shard` is `fail`.
    """
    with opened(settings, refit=refit, refresh=refresh) as (run, curation, shown):
        prepare(run, curation)
        curation.plan_selection()
        run.work()
        curation.plan_dataset()
        run.work()
        curation.plan_report(run.times)
        run.work()
        summary = _summary(run, curation)
        shown.publish(summary, run.workspace.reports)
        return summary


@contextmanager
def opened(
    settings: PipelineSettings,
    *,
    refit: Sequence[Refit] | None = None,
    refresh: Iterable[str] | None = None,
    scope: frozenset[str] | None = None,
    keep: bool = True,
) -> Iterator[tuple[Run, Curation, Shown]]:
    """Hold the workspace, with what runs jobs there and what plans them; stop what still runs if the block fails.

    At the end the run is recorded, whatever came of it. With `keep`, the recipe becomes that of the workspace's last
    run (without, it does if there was none), and the catalog shows what is there now, if the run did not fail.
    """
    shards = check_inputs(settings)
    opened_workspace = Workspace(settings.workspace, settings.engine.scratch)
    with opened_workspace.exclusive() as workspace, shown_in_ui() as shown:
        run = Run(
            workspace,
            quarantine=settings.ingest.on_bad_shard == "quarantine",
            at_once=workers(settings),
            refresh=frozenset(refresh or []),
            scope=scope,
        )
        discard_finished(workspace)
        forget_fitted(workspace, refit or [])
        if keep or not workspace.holds(LastRun.path(workspace)):
            LastRun(settings=settings, folder=str(Path.cwd())).keep(workspace)
        allow_work()
        offer_slots()
        with recorded(run, settings) as record:
            try:
                curation = Curation(run, workspace, settings, shards, Given.of(settings))
                yield run, curation, shown
            except BaseException:
                request_stop()  # Prefect waits for the tasks that still run
                raise
            finally:
                end_scoring_processes()
            describe(record, curation)
        if workspace.url is None:
            _catalogue(workspace, run, curation, keep=keep)


def _catalogue(workspace: Workspace, run: Run, curation: Curation, *, keep: bool) -> None:
    """Have the catalog show what a run leaves behind."""
    from tasks.catalog import catalog_path, write_catalog  # at the top, DuckDB complains of leaks at the process's end

    if keep:
        if curation.is_scored and not curation.masks:  # a stage was run by itself: do the masks still belong to it all?
            curation.plan_selection()
        write_catalog(workspace, curation.catalogued(run.quarantined))
    elif any(stage.cached < stage.files for stage in run.in_order if stage.stage in CATALOGUED):
        catalog_path(workspace).unlink(missing_ok=True)  # do the masks still belong? `sql` looks, and writes it anew


def prepare(run: Run, curation: Curation) -> None:
    """Ingest, score and embed all shards, and find the duplicates across them.

    Raises
    ------
    BadShardError
        If there is nothing to select from.
    """
    curation.plan_documents()
    run.work()
    end_scoring_processes()
    _check_scored(run, curation)


def _check_scored(run: Run, curation: Curation) -> None:
    reasons = "; ".join(run.quarantined.values())
    if not curation.documents:
        raise BadShardError(f"no source file could be read: {reasons}")
    if not any(file.rows for file in curation.documents.values()):
        raise BadShardError("no document passed the ingest settings: look at min_chars, languages and text_column")
    if not curation.scored:
        raise BadShardError(f"no shard could be scored and embedded: {reasons}")


def check_inputs(settings: PipelineSettings) -> list[SourceShard]:
    """Return the source's files, once it is clear that all that the settings name is there.

    Raises
    ------
    ValueError
        With the key of the setting that names something missing.
    """
    check_scorers(settings.quality.scorers)
    embed.check_model(settings.embedding)
    workspace = Workspace(settings.workspace, settings.engine.scratch)
    workspace.check()
    Output.of(workspace, settings.materialize).check()
    shards = discover(settings.source)
    check_columns(settings, shards)
    return shards


def forget_fitted(workspace: Workspace, refit: Sequence[Refit]) -> None:
    """Drop the record of what is to be fitted anew."""
    patterns = {"encoder": ["encoder.json"], "quality": ["quality-*.json"]}
    for name in refit:
        for pattern in patterns[name]:
            for manifest in workspace.files(f"fitted/{pattern}"):
                removed(manifest)


def _summary(run: Run, curation: Curation) -> RunSummary:
    counts, workspace = curation.counts, run.workspace
    objective, terms = mean_terms(curation.groups)
    dataset = curation.output.shown
    return RunSummary(
        status="quarantined" if run.quarantined else "done",
        workspace=workspace.shown(workspace.root),
        dataset=dataset,
        card=f"{dataset}/README.md",
        report=workspace.shown(workspace.reports / "index.html"),
        documents_in=counts.documents_in,
        documents_kept=counts.selected,
        not_selected=counts.not_selected,
        dropped=counts.dropped,
        quarantined=[Quarantined(shard=shard, reason=reason) for shard, reason in run.quarantined.items()],
        counts=counts,
        stages=run.in_order,
        busy_seconds=run.busy_seconds,
        objective=objective,
        terms=terms,
        blocks=len(curation.blocks),
    )


def workers(settings: PipelineSettings) -> int:
    """Return how many tasks run at the same time."""
    return settings.engine.workers or len(choose_devices("auto")) + 1  # one prepares what the others wait for


def runner(settings: PipelineSettings) -> "TaskRunner[PrefectFuture[Any]]":
    """Return what runs the tasks: the recipe's engine."""
    threads: ThreadPoolTaskRunner[Any] = ThreadPoolTaskRunner(max_workers=workers(settings))
    return cast("TaskRunner[PrefectFuture[Any]]", threads)


def run_curate(
    settings: PipelineSettings, refit: list[Refit] | None = None, refresh: list[Refreshed] | None = None
) -> RunSummary:
    """Run the pipeline in this process with the recipe's engine."""
    return curate.with_options(task_runner=runner(settings))(settings, refit, refresh)
