"""Check that what a recipe names exists and can be read, before any work begins; nothing here needs Prefect."""

from fineweb_mask.models.dedup.minhash import load_rensa
from fineweb_mask.models.errors import SettingsError
from fineweb_mask.models.filters import load_filters
from fineweb_mask.models.runtime.stopping import clear_stop_request
from fineweb_mask.models.settings import PipelineSettings
from fineweb_mask.tasks import embed
from fineweb_mask.tasks.dataset.output import Output
from fineweb_mask.tasks.inference.scorers import check_folder, check_scorers
from fineweb_mask.tasks.selection.given import EarlierSelection
from fineweb_mask.tasks.source.column_checks import check_columns
from fineweb_mask.tasks.source.column_types import settle
from fineweb_mask.tasks.source.discovery import SourceShard, check_apart, discover, find_files
from fineweb_mask.tasks.source.texts import check_can_be_read_again
from fineweb_mask.tasks.workspace.workspace import Workspace


def workspace_of(settings: PipelineSettings) -> Workspace:
    """Return the workspace of a recipe, with the room that it has on this machine."""
    return Workspace(settings.workspace, settings.engine.scratch, settings.engine.scratch_bytes)


def check_inputs(settings: PipelineSettings) -> list[SourceShard]:
    """Check that everything the settings name exists, and return the source's files.

    Raises
    ------
    ValueError
        With the key of the setting that names something that does not exist.
    """
    clear_stop_request()  # of a run of this process that failed: what follows reads files
    check_scorers(settings.quality.scorers)
    load_filters(settings.ingest.filters)
    if settings.ingest.near_dedup == "minhash":
        load_rensa()
    embed.check_model(settings.embedding)
    workspace = workspace_of(settings)
    workspace.check_reachable()
    workspace.check_is_ours()
    Output.of(workspace, settings.materialize).check()
    for path in settings.ingest.against:
        find_files(path, "ingest.against")
    for path in settings.ingest.decontaminate:
        find_files(path, "ingest.decontaminate")
    if settings.selection.targets is not None:
        find_files(settings.selection.targets.path, "selection.targets.path")
    if settings.selection.quad.scorer is not None:
        check_folder(settings.selection.quad.scorer.model, "selection.quad.scorer")
    EarlierSelection.of(settings)
    shards = settle(discover(settings.source), settings.source)
    check_apart(settings.source.path, shards, {"workspace": workspace.address, **_output(settings)})
    check_columns(settings, shards)
    if settings.engine.kind == "ray":
        from fineweb_mask.flows.engine.cluster import check_engine

        check_engine(settings.engine)
    if not settings.ingest.copy_text:
        check_can_be_read_again(shards)
    return shards


def _output(settings: PipelineSettings) -> dict[str, str]:
    output = settings.materialize.output
    return {} if output is None else {"materialize.output": output}


def check_vectors_are_kept(settings: PipelineSettings, why: str) -> None:
    """Check that a recipe stores the vectors.

    Raises
    ------
    SettingsError
        If it does not; the message says why they are needed.
    """
    if not settings.embedding.keep:
        raise SettingsError(
            f"embedding.keep: {why}, and this recipe keeps none: add --set embedding.keep=true, which stores them all"
        )
