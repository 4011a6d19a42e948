"""Check that what a recipe names exists and can be used, before any work begins; nothing here needs Prefect."""

from typing import NamedTuple

from fineweb_mask.flows.display.terminal import told
from fineweb_mask.flows.pipeline.fit import PretrainedModels
from fineweb_mask.flows.recipe import inputs_of
from fineweb_mask.models.dedup.minhash import load_rensa
from fineweb_mask.models.filters import load_filters
from fineweb_mask.models.pages import check_extraction
from fineweb_mask.models.settings import PipelineSettings
from fineweb_mask.tasks.dataset.output import Output
from fineweb_mask.tasks.dedup.excluded import find_lists
from fineweb_mask.tasks.exclusion import check_benchmarks
from fineweb_mask.tasks.export import check_format
from fineweb_mask.tasks.fit import fitted_on_other_files
from fineweb_mask.tasks.outputs import check_apart, check_output
from fineweb_mask.tasks.source.columns import (
    check_columns,
    check_text_column,
    columns_of,
    remembered_columns,
    settle,
)
from fineweb_mask.tasks.source.discovery import Source, SourceShard, find_files, find_source
from fineweb_mask.tasks.source.inventory import Inventory
from fineweb_mask.tasks.storage.atomic import check_can_write
from fineweb_mask.tasks.workspace.workspace import Workspace

LOOKED_AT = 16
"""Files of another corpus, or of examples, that are opened before the work."""


class Inputs(NamedTuple):
    """What a recipe reads, found and checked."""

    workspace: Workspace
    shards: list[SourceShard]  # the source's files, by name
    models: PretrainedModels  # fetched from the hub if they were not on this machine
    source: Source  # the same files, and those of it that are left out


def check_inputs(settings: PipelineSettings) -> Inputs:
    """Find what a recipe reads, and check that this machine can run it: its GPUs, packages, and folders to write to.

    Raises
    ------
    FinewebMaskError
        With the key of the setting that is to be changed.
    """
    found = find_inputs(settings)
    workspace = found.workspace
    if workspace.url is None:
        check_output(workspace.root, "workspace", replaces=True, folder=True)
    output = Output.of(workspace, settings.materialize)
    output.check([workspace.address, *inputs_of(settings)])
    check_can_write(output.folder, "materialize.output")
    for index, export in enumerate(settings.materialize.export):
        check_format(export, f"materialize.export.{index}")
    if settings.engine.kind == "ray":
        from fineweb_mask.flows.cluster.cluster import check_engine

        check_engine()
    elif settings.selection.device.startswith("cuda"):
        from fineweb_mask.models.forward.device import check_device  # and torch, whose import takes seconds

        check_device(settings.selection.device, "selection.device")
    return found


def find_inputs(settings: PipelineSettings) -> Inputs:
    """Find what a recipe reads, and check that it exists and can be read.

    Raises
    ------
    FinewebMaskError
        With the key of the setting that names something that does not exist.
    """
    load_filters(settings.ingest.filters)
    if settings.ingest.near_dedup == "minhash":
        load_rensa()
    workspace = Workspace(settings.workspace)
    workspace.check_is_ours()
    find_lists(settings.ingest.exclude)
    written = {"workspace": workspace.address}
    if settings.materialize.output is not None:
        written["materialize.output"] = settings.materialize.output
    for setting in ("against", "decontaminate"):
        for path in getattr(settings.ingest, setting):
            files = find_files(path, f"ingest.{setting}")
            check_apart(written, [path, *(file.url for file in files)])  # else every run would have another answer
            if setting == "against":
                _check_readable(files, "ingest.against")
                check_text_column(files, "ingest.against")
            else:
                check_benchmarks(files)
    if (targets := settings.selection.targets) is not None:
        files = find_files(targets.path, "selection.targets.path")
        _check_readable(files, "selection.targets.path")
        check_text_column(files, "selection.targets.path")
    check_apart(written, [settings.source.path])  # a folder around the workspace may take long to list
    source = find_source(settings.source)
    shards = _with_columns(workspace, source.shards, settings)
    check_apart(written, [shard.url for shard in shards])
    if any(shard.format == "warc" for shard in shards):
        check_extraction()
    check_columns(settings, shards)
    models = PretrainedModels.of(settings)  # last: it may take long
    return Inputs(workspace, shards, models, source._replace(shards=shards))


def _check_readable(files: list[SourceShard], setting: str) -> None:
    """Check that the first files can be read: of all, it would take long."""
    for file in files[:LOOKED_AT]:
        if file.bytes:
            columns_of(file, setting)


def doubts(found: Inputs, settings: PipelineSettings, source: Inventory) -> list[str]:
    """Return what of a recipe and its source a person may not have meant, in lines."""
    lines = [fitted_on_other_files(found.workspace, {shard.name for shard in found.shards})]
    lines += told(source.worries)
    targets = settings.selection.targets
    if targets is not None and targets.path not in settings.ingest.decontaminate:
        lines.append(
            "documents that repeat an example of selection.targets are selected with it: if it is of a benchmark, "
            f"name {targets.path} in ingest.decontaminate, too"
        )
    return list(filter(None, lines))


def _with_columns(workspace: Workspace, shards: list[SourceShard], settings: PipelineSettings) -> list[SourceShard]:
    """Return the files with the columns that all documents have: those of an earlier run, while the corpus grows."""
    if (columns := remembered_columns(workspace, settings, shards)) is not None:
        return [shard.model_copy(update={"columns": columns}) for shard in shards]
    return settle(shards, settings.source, list(settings.named_columns.values()))
