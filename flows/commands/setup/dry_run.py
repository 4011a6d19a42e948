"""Estimate what a run would take, before it starts: `fineweb-mask run --dry-run`.

Rates are of the files that this workspace has, else measured now on the first documents, else those of
benchmarks/notebook/. They are rates of one machine, with the cores and GPUs of this one.
"""

import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel
from rich.console import Console

from fineweb_mask.flows.display.terminal import new_table, print_line, size_text, told
from fineweb_mask.flows.pipeline.fit import PretrainedModels
from fineweb_mask.flows.pipeline.inputs import find_inputs
from fineweb_mask.flows.status.inspection import StageStatus, inspect_recipe, inspect_workspace, stage_statuses
from fineweb_mask.models.documents import DocumentFilter
from fineweb_mask.models.embedding.load import load_encoder
from fineweb_mask.models.errors import SettingsError, WorkspaceError
from fineweb_mask.models.filters import load_filters
from fineweb_mask.models.quality.registry import load_scorer
from fineweb_mask.models.settings import FROM_QUALITY, STATIC, PipelineSettings
from fineweb_mask.tasks.fit.job import fitted_on_other_files
from fineweb_mask.tasks.fit.models import SAMPLE_DOCUMENTS
from fineweb_mask.tasks.processes.workers import cores
from fineweb_mask.tasks.source.discovery import SourceShard
from fineweb_mask.tasks.source.first_rows import number_of_rows
from fineweb_mask.tasks.source.inventory import Inventory, take_inventory
from fineweb_mask.tasks.source.reader import ShardReader
from fineweb_mask.tasks.workspace.job import BadShardError

MILLION = 1e6
LEAST_SECONDS = 1.0  # that a model or a filter is timed on the first documents, if they suffice
# Measured on two cores, benchmarks/notebook/: seconds for each million documents, and for each million characters.
SECONDS: dict[str, tuple[float, float]] = {
    "exact_dedup": (2.0, 0.0),
    "minhash": (0.0, 0.09),
    "fasttext": (0.0, 0.05),
    "column": (1.0, 0.0),
    "static_fit": (0.0, 0.5),
    "static": (0.0, 0.2),
    "pairwise": (90.0, 0.0),
    "metric": (600.0, 0.0),  # another metric, with the lists of neighbours that it needs
    "materialize": (20.0, 0.0),
}
SECONDS_OF_STEP = {"pairwise": 0.1, "metric": 1.2}  # of the paper's learner: 8,192 documents, 128 masks
TIMES_GREEDY, TIMES_OTHERS = 8.0, 0.1  # as long as the closed-form solver; the selectors that follow no gradient
SECONDS_OF_LABELS, SECONDS_OF_REPORT, SECONDS_OF_START = 5.0, 15.0, 10.0
MIB = 2**20
MEMORY = {"ingest": 800 * MIB, "score": 850 * MIB, "materialize": 900 * MIB, "report": 1_100 * MIB}
STATIC_MEMORY, ENCODER_MEMORY, SELECT_MEMORY, FILTER_MEMORY = 2_500 * MIB, 2_000 * MIB, 950 * MIB, 1_000 * MIB
BYTES_PER_CHARACTER, BYTES_PER_DOCUMENT = 0.5, 100  # of documents in Parquet, compressed; without their text
BYTES = {"float16": 2, "float32": 4}

Rate = Literal["", "this workspace", "measured now", "benchmarks"]


class StageEstimate(BaseModel):
    """What a stage would build, and what that takes."""

    stage: str
    done: int
    missing: int
    seconds: float = 0.0
    rate: Rate = ""  # where the rate is from


class Estimate(BaseModel):
    """What a run would take."""

    workspace: str
    another_corpus: str  # what to know of a workspace that was another's; mostly nothing
    source: Inventory
    files: int
    documents: int  # of the source; about as many if they were not counted
    characters: int  # of a document, on average
    stages: list[StageEstimate]
    seconds: float
    memory: int  # bytes, at most
    memory_stage: str
    disk: int  # bytes to be written
    disk_free: int | None  # bytes; None if the workspace is a URL


class _Measured:
    """Seconds for each document that the first documents of the source take here."""

    def __init__(self, settings: PipelineSettings, shard: SourceShard, models: PretrainedModels) -> None:
        started = time.perf_counter()
        reader = ShardReader(shard, settings.source)
        kept = DocumentFilter(settings.ingest, shard.relative)
        batches = [kept.apply(batch, problems) for batch, problems in islice(reader.batches(), 1)]
        read = max(1, kept.rows_in)
        self.ingest = (time.perf_counter() - started) / read
        self.kept = sum(batch.num_rows for batch in batches) / read
        self.texts: list[str] = [text for batch in batches for text in batch["text"].to_pylist()]
        self.characters = sum(map(len, self.texts)) / max(1, len(self.texts))
        self.text_bytes = self.characters * BYTES_PER_CHARACTER  # of a document in the workspace
        if shard.format == "parquet":
            self.text_bytes = min(self.text_bytes, shard.bytes / max(1, reader.rows))
        if settings.ingest.filters and self.texts:
            apply = load_filters(settings.ingest.filters)
            self.ingest += _seconds_each(lambda texts: [apply(text, None) for text in texts], self.texts) / cores()
        self.score = {
            model.settings.name: _seconds_each(load_scorer(model.settings, model.path).score, self.texts)
            for model in models.scorers.values()
            if model.path and self.texts
        }
        self.embed = 0.0 if settings.embedding.model == FROM_QUALITY else None  # then scoring makes the vectors
        self.dimensions = settings.embedding.static_dimensions
        if models.encoder is not None and self.texts:
            encoder = load_encoder(models.encoder.path, settings.embedding)
            self.dimensions = encoder.encode(self.texts[:1]).vectors.shape[1]
            self.embed = _seconds_each(encoder.encode, self.texts)


def _measured(settings: PipelineSettings, shards: list[SourceShard], models: PretrainedModels) -> _Measured:
    """Measure the first shard that can be read."""
    for shard in shards[:-1]:
        with suppress(BadShardError):
            return _Measured(settings, shard, models)
    return _Measured(settings, shards[-1], models)


def _seconds_each(work: Callable[[list[str]], Any], texts: list[str]) -> float:
    """Return the seconds for each text, of as many as take a second."""
    count = 4
    while True:
        started = time.perf_counter()
        work(texts[:count])
        seconds = time.perf_counter() - started
        if seconds >= LEAST_SECONDS or count >= len(texts):
            return seconds / min(count, len(texts))
        count *= 2


def estimate(settings: PipelineSettings) -> Estimate:
    """Return what a run of a recipe would take. Nothing is written to its workspace.

    Raises
    ------
    ValueError, OSError
        If something that the recipe names does not exist or cannot be read.
    """
    workspace, sources, models, source, settings = find_inputs(settings)
    shards = [shard for shard in sources if shard.bytes]
    if not shards:
        raise SettingsError(f"source.path: all files of {settings.source.path!r} are empty: give files with documents")
    measured = _measured(settings, shards, models)
    documents, _ = number_of_rows(shards)
    kept = documents * measured.kept
    found = stage_statuses(inspect_recipe(workspace, settings))
    earlier = _rates_of_last_run(settings) if any(status.missing for status in found) else {}
    stages = [_stage(status, kept, settings, measured, earlier.get(status.stage)) for status in found]
    memory_stage, memory = _memory(settings, kept / len(shards), measured)
    path = Path(settings.workspace).absolute()
    there = next(one for one in (path, *path.parents) if one.is_dir())
    return Estimate(
        workspace=workspace.display_path(workspace.root),
        another_corpus=fitted_on_other_files(workspace, {shard.name for shard in sources}),
        source=take_inventory(source, settings.source),
        files=len(shards),
        documents=documents,
        characters=round(measured.characters),
        stages=stages,
        seconds=sum(stage.seconds for stage in stages) + SECONDS_OF_START * any(stage.missing for stage in stages),
        memory=memory,
        memory_stage=memory_stage,
        disk=sum(_bytes(stage, kept, settings, measured) for stage in stages),
        disk_free=None if workspace.url is not None else shutil.disk_usage(there).free,
    )


def _rates_of_last_run(settings: PipelineSettings) -> dict[str, float]:
    """Return, by stage, the ingested documents for each second that the files of the workspace's last run took.

    Only of stages that would do the same work: a changed budget leaves the rate of a solver as it is.
    """
    with suppress(WorkspaceError, OSError):
        last = inspect_workspace(settings.workspace)
        found = {one.stage: one for one in stage_statuses(last)}
        return {
            stage: found["ingest"].rows / one.seconds
            for stage, one in found.items()
            if one.seconds and not one.missing and _work_of(stage, last.settings) == _work_of(stage, settings)
        }
    return {}


def _work_of(stage: str, settings: PipelineSettings) -> object:
    """Return the settings that the time of a stage mostly depends on."""
    chosen = settings.selection
    if stage == "ingest":
        return settings.ingest.filters
    if stage == "score":
        return [(one.kind, getattr(one, "model", None)) for one in settings.quality.scorers]
    if stage == "embed":
        return settings.embedding.model
    return (chosen.solver, chosen.by_likeness, sorted(chosen.metric_weights)) if stage == "select" else None


def _stage(
    status: StageStatus, kept: float, settings: PipelineSettings, measured: _Measured, earlier: float | None
) -> StageEstimate:
    found = StageEstimate(stage=status.stage, done=status.done, missing=status.missing)
    left = status.missing / max(1, status.done + status.missing)
    if status.missing and (rate := status.documents_per_second if status.done else earlier):
        found.seconds, found.rate = kept * left / rate, "this workspace"
    elif status.missing:
        found.seconds = _seconds(status.stage, kept, settings, measured) * left
        is_scored, is_embedded = bool(measured.score), measured.embed is not None
        is_measured = {"ingest": True, "score": is_scored, "embed": is_embedded}
        found.rate = "measured now" if is_measured.get(status.stage) else "benchmarks"
    return found


def _seconds(stage: str, kept: float, settings: PipelineSettings, measured: _Measured) -> float:
    """Return the seconds that a whole stage takes."""

    def by(rate: str, documents: float = kept) -> float:
        for_each, for_characters = SECONDS[rate]
        return documents / MILLION * (for_each + for_characters * measured.characters)

    ingest, scorers = settings.ingest, settings.quality.scorers
    fitted = min(kept, SAMPLE_DOCUMENTS)
    scored = sum(
        kept * measured.score[scorer.name]
        if scorer.name in measured.score
        else by("fasttext" if scorer.kind == "fasttext" else "column")
        for scorer in scorers
    )
    seconds: dict[str, float] = {
        "ingest": kept / max(measured.kept, 1e-3) * measured.ingest,
        "dedup": (by("exact_dedup") if ingest.exact_dedup == "corpus" else 0.0)
        + (by(ingest.near_dedup) if ingest.near_dedup != "off" else 0.0),
        "fit": sum(SECONDS_OF_LABELS for scorer in scorers if scorer.kind == "fasttext")
        + (by("static_fit", fitted) if settings.embedding.model == STATIC else 0.0),
        "score": scored,
        "embed": by("static") if measured.embed is None else kept * measured.embed,
        "select": _selecting(settings, kept),
        "materialize": by("materialize"),
        "export": by("materialize"),
        "report": SECONDS_OF_REPORT,
    }
    return seconds[stage]


def _selecting(settings: PipelineSettings, kept: float) -> float:
    """Return the seconds that the selection takes by its solver."""
    chosen, options = settings.selection, settings.selection.policy_gradient
    kinds = ["pairwise" if name == "pairwise" else "metric" for name in chosen.metric_weights]
    if chosen.solver == "policy_gradient":  # steps of a batch, in every block
        block = min(kept, chosen.block_size)
        batch = min(block, max(options.min_batch, options.partial * block))
        step = sum(SECONDS_OF_STEP[kind] for kind in kinds) * batch / 8_192 * options.n_rollout / 128
        return max(1.0, kept / max(1.0, block)) * options.n_epochs * step
    seconds = kept / MILLION * sum(SECONDS[kind][0] for kind in kinds)
    return seconds * {"mean_field": 1.0, "greedy": TIMES_GREEDY}.get(chosen.solver, TIMES_OTHERS)


def _memory(settings: PipelineSettings, shard: float, measured: _Measured) -> tuple[str, int]:
    """Return the stage that needs the most memory, and bytes."""
    block = min(settings.selection.block_size, shard)
    vectors = block * measured.dimensions * BYTES[settings.embedding.precision]
    filters = FILTER_MEMORY * cores() if settings.ingest.filters else 0
    needed = {
        **MEMORY,
        "ingest": MEMORY["ingest"] + filters,
        "embed": STATIC_MEMORY if settings.embedding.model == STATIC else ENCODER_MEMORY,
        "select": SELECT_MEMORY + round(1.3 * vectors),
    }
    return max(needed.items(), key=lambda pair: pair[1])


def _bytes(stage: StageEstimate, kept: float, settings: PipelineSettings, measured: _Measured) -> int:
    """Return the bytes that a stage would leave in the workspace."""
    left = stage.missing / max(1, stage.done + stage.missing)
    vector = measured.dimensions * BYTES[settings.embedding.precision]
    dataset = settings.selection.select_ratio * (measured.text_bytes + BYTES_PER_DOCUMENT)
    each: dict[str, float] = {
        "ingest": BYTES_PER_DOCUMENT + measured.text_bytes,
        "score": 8 * len(settings.quality.scorers),
        "embed": vector,
        "select": 1,
        "materialize": dataset,
        "export": dataset * len(settings.materialize.export),
    }
    return round(kept * left * each.get(stage.stage, 0))


def print_estimate(console: Console, found: Estimate) -> None:
    """Print what is read, the table of the stages and the sums."""
    for line in told(found.source.lines()):
        print_line(console, line)
    for line in told(found.source.worries()):
        print_line(console, line, "yellow")
    files = "1 source file" if found.files == 1 else f"{found.files:,} source files"
    print_line(
        console,
        f"{found.workspace}: {files}, about {found.documents:,} documents of {found.characters:,} characters",
    )
    if found.another_corpus:
        print_line(console, found.another_corpus, "bold red")
    table = new_table("stage", "done", "missing", "about", "rate", no_wrap=True)
    for stage in found.stages:
        about = duration_text(stage.seconds) if stage.missing else "-"
        table.add_row(stage.stage, f"{stage.done:,}", f"{stage.missing:,}", about, stage.rate)
    console.print(table)
    print_line(console, f"time     about {duration_text(found.seconds)}")
    print_line(console, f"memory   about {size_text(found.memory)}, in {found.memory_stage}")
    free = "" if found.disk_free is None else f", {size_text(found.disk_free)} are free"
    is_short = found.disk_free is not None and found.disk > found.disk_free
    short = ": too few" if is_short else ""
    print_line(console, f"disk     about {size_text(found.disk)}{free}{short}", "bold red" if is_short else None)


def duration_text(seconds: float) -> str:
    """Return a time in seconds, minutes, hours or days.

    Examples
    --------
    >>> duration_text(0.2), duration_text(90), duration_text(5_000), duration_text(200_000)
    ('1 s', '90 s', '83 min', '56 h')
    """
    for size, unit in ((1, "s"), (60, "min"), (3_600, "h")):
        if seconds < 120 * size:
            return f"{max(1, round(seconds / size))} {unit}"
    return f"{round(seconds / 3_600)} h" if seconds < 3 * 86_400 else f"{round(seconds / 86_400):,} days"
