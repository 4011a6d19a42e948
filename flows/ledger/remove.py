"""Remove documents from a workspace on request, have the next best take their place, and write a receipt."""

from prefect.artifacts import create_table_artifact

from fineweb_mask.flows.curate import prepare
from fineweb_mask.flows.display.prefect_ui import artifact_key, or_warn
from fineweb_mask.flows.pipeline.dataset import export, materialize, report
from fineweb_mask.flows.pipeline.records import summarize
from fineweb_mask.flows.pipeline.selection import select
from fineweb_mask.flows.pipeline.start import as_flow, start_run
from fineweb_mask.flows.status.removal import (
    MOST,
    Requested,
    asked_in,
    check_asked,
    finish,
    request,
    rewrite,
    standing_exports,
)
from fineweb_mask.flows.summary import StageSummary, Summary
from fineweb_mask.models.settings import PipelineSettings
from fineweb_mask.tasks.workspace.records.runs import QuarantinedShard
from fineweb_mask.tasks.workspace.removals import Removals, is_pending
from fineweb_mask.tasks.workspace.workspace import Workspace


class RemovalSummary(Summary):
    """What was removed; `fineweb-mask remove --json` prints it."""

    requested: Requested | None = None  # of the list; None if an interrupted removal was finished
    documents: int = 0
    copies: int = 0
    twins: int = 0
    twins_left: int | None = 0  # None: the recipe looks for none
    selected: int = 0
    added: int = 0  # documents of the dataset that took their place
    dataset_files: int = 0
    rewritten: int = 0  # of these
    deleted: tuple[str, ...] = ()  # folders of pages, maps and exports, to be made again
    receipt: str | None = None
    quarantined: list[QuarantinedShard]
    stages: list[StageSummary]


@as_flow("remove")
def remove(
    settings: PipelineSettings,
    urls: str | None = None,
    ids: str | None = None,
    domains: str | None = None,
    texts: str | None = None,
    twins: bool = False,
    most: float = MOST,
    yes: bool = False,
) -> RemovalSummary:
    """Remove the documents of a list from a workspace; without a list, finish what was interrupted.

    Parameters
    ----------
    settings
        The recipe of the workspace, which was run to the end.
    urls, ids, domains, texts
        A file with one on each line; of texts, a file of documents, or one text.
    twins
        Remove near-duplicates of the documents, too.
    most
        Share of the documents of the dataset that may be removed without `yes`.
    yes
        Remove as much as the list asks for.

    Raises
    ------
    SettingsError
        If there is not one list, it cannot be read, or too much would be removed.
    WorkspaceError
        If a run uses the workspace, or its recipe was not run to the end.
    """
    workspace = Workspace(settings.workspace, settings.engine.scratch)
    summary = RemovalSummary.of(workspace, {}, [])
    asked, goes_on = asked_in(urls, ids, domains, texts), is_pending(workspace)
    check_asked(asked, goes_on=goes_on)
    if goes_on:
        summary = _finished(workspace, settings)
    if asked is not None:
        kind, path = asked
        requested = request(settings, kind, path, twins=twins, most=most, yes=yes)
        if is_pending(workspace):
            summary = _finished(workspace, settings)
        summary = summary.model_copy(update={"requested": requested})
    return summary


def _finished(workspace: Workspace, settings: PipelineSettings) -> RemovalSummary:
    """Do what is still to be done of the removal that the list names."""
    before = rewrite(workspace, settings, Removals.read(workspace))
    standing = standing_exports(workspace, settings)
    with start_run(settings) as run:
        selection = select(run, prepare(run), before.shards)
        dataset = materialize(run, selection, before.partitions)
        exports = export(run, dataset, standing)
        report(run, selection, dataset)
        made = summarize(run, selection, exports)
    receipt, path = finish(workspace, settings)
    summary = RemovalSummary(
        **made.model_dump(include={"status", "workspace", "quarantined", "stages"}),
        **receipt.model_dump(
            include={"documents", "copies", "twins", "twins_left", "selected", "dataset_files", "deleted"}
        ),
        added=receipt.rows["after"] - receipt.rows["before"] + receipt.selected,
        rewritten=sum(after is not None for _, after in receipt.dataset.values()),
        receipt=workspace.display_path(workspace.root / path),
    )
    shown = {"documents", "copies", "twins", "twins_left", "selected", "added", "rewritten", "receipt"}
    table = [{"what": name.replace("_", " "), "": value} for name, value in summary.model_dump(include=shown).items()]
    key = artifact_key("removal", settings.workspace)
    or_warn(create_table_artifact, table, key=key, description="What was removed on request.")
    return summary
