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
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel
from rich.console import Console

from fineweb_mask.flows.display.terminal import new_table, print_line, size_text, told
from fineweb_mask.flows.pipeline.fit import PretrainedModels
from fineweb_mask.flows.pipeline.inputs import find_inputs
from fineweb_mask.flows.status.inspection import StageStatus, inspect_recipe, stage_statuses
from fineweb_mask.models.documents import DocumentFilter
from fineweb_mask.models.embedding.load import load_encoder
from fineweb_mask.models.errors import SettingsError
from fineweb_mask.models.filters import load_filters
from fineweb_mask.models.quality.registry import load_scorer
from fineweb_mask.models.settings import STATIC, PipelineSettings
from fineweb_mask.models.settings.embedding import FROM_QUALITY
from fineweb_mask.tasks.fit.job import fitted_on_other_files
from fineweb_mask.tasks.fit.models import SAMPLE_DOCUMENTS
from fineweb_mask.tasks.processes.workers import cores
from fineweb_mask.tasks.source.columns import number_of_rows
from fineweb_mask.tasks.source.discovery import SourceShard
from fineweb_mask.tasks.source.inventory import Inventory, take_inventory
from fineweb_mask.tasks.source.reader import ShardReader
from fineweb_mask.tasks.workspace.job import BadShardError

MILLION = 1e6
LEAST_SECONDS = 1.0  # that a model or a filter is timed on the first documents, if they suffice
SECONDS = {"pairwise": 90.0, "metric": 600.0}  # of a million documents; another metric needs lists of neighbours
SECONDS_OF_STEP = {"pairwise": 0.1, "metric": 1.2}  # of the paper's learner: 8,192 documents, 128 masks
TIMES_GREEDY, TIMES_OTHERS = 8.0, 0.1  # as long as the closed-form solver; the selectors that follow no gradient
SECONDS_OF_START = 10.0
MIB = 2**20
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

    @property
    def missing_share(self) -> float:
        """Share of its files that are missing."""
        return self.missing / max(1, self.done + self.missing)


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
    workspace, sources, models, source = find_inputs(settings)
    shards = [shard for shard in sources if shard.bytes]
    if not shards:
        raise SettingsError(f"source.path: all files of {settings.source.path!r} are empty: give files with documents")
    measured = _measured(settings, shards, models)
    documents, _ = number_of_rows(shards)
    kept = documents * measured.kept
    found = stage_statuses(inspect_recipe(workspace, settings))
    costs = _costs(settings, kept, kept / len(shards), measured)
    stages = [_stage(status, kept, costs[status.stage]) for status in found]
    memory_stage = max(costs, key=lambda stage: costs[stage].memory)
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
        memory=costs[memory_stage].memory,
        memory_stage=memory_stage,
        disk=sum(round(kept * one.missing_share * costs[one.stage].bytes_each) for one in stages),
        disk_free=None if workspace.url is not None else shutil.disk_usage(there).free,
    )


def _stage(status: StageStatus, kept: float, cost: "_Cost") -> StageEstimate:
    found = StageEstimate(stage=status.stage, done=status.done, missing=status.missing)
    if status.missing and (rate := status.documents_per_second):
        found.seconds, found.rate = kept * found.missing_share / rate, "this workspace"
    elif status.missing:
        found.seconds = cost.seconds * found.missing_share
        found.rate = "measured now" if cost.is_measured else "benchmarks"
    return found


class _Cost(NamedTuple):
    """What a whole stage takes."""

    seconds: float
    is_measured: bool = False  # else it is of two cores, benchmarks/notebook/
    bytes_each: float = 0.0  # that it leaves in the workspace for a document
    memory: int = 0  # bytes, at most


def _costs(settings: PipelineSettings, kept: float, shard: float, measured: _Measured) -> dict[str, _Cost]:
    """Return what every stage takes for `kept` documents, of which `shard` are in a file."""
    ingest, scorers, embedding = settings.ingest, settings.quality.scorers, settings.embedding
    million, characters = kept / MILLION, kept * measured.characters / MILLION
    is_static, fitted = embedding.model == STATIC, min(kept, SAMPLE_DOCUMENTS) * measured.characters / MILLION
    compared = 2.0 * million * (ingest.exact_dedup == "corpus") + 0.09 * characters * (ingest.near_dedup != "off")
    usual = {one.name: 0.05 * characters if one.kind == "fasttext" else million for one in scorers}  # seconds
    scored = sum((usual | {name: kept * seconds for name, seconds in measured.score.items()}).values())
    embedded = 0.2 * characters if measured.embed is None else kept * measured.embed
    document, vector = BYTES_PER_DOCUMENT + measured.text_bytes, measured.dimensions * BYTES[embedding.precision]
    dataset, exports = settings.selection.select_ratio * document, len(settings.materialize.export)
    filters = 1_000 * MIB * cores() if ingest.filters else 0
    block = min(settings.selection.block_size, shard)
    return {
        "ingest": _Cost(kept / max(measured.kept, 1e-3) * measured.ingest, True, document, 800 * MIB + filters),
        "dedup": _Cost(compared),
        "fit": _Cost(5.0 * sum(one.kind == "fasttext" for one in scorers) + 0.5 * fitted * is_static),
        "score": _Cost(scored, bool(measured.score), 8 * len(scorers), 850 * MIB),
        "embed": _Cost(embedded, measured.embed is not None, vector, (2_500 if is_static else 2_000) * MIB),
        "select": _Cost(_selecting(settings, kept), False, 1, 950 * MIB + round(1.3 * block * vector)),
        "materialize": _Cost(20 * million, False, dataset, 900 * MIB),
        "export": _Cost(20 * million, False, dataset * exports),
        "report": _Cost(15.0, memory=1_100 * MIB),
    }


def _selecting(settings: PipelineSettings, kept: float) -> float:
    """Return the seconds that the selection takes by its solver."""
    chosen, options = settings.selection, settings.selection.policy_gradient
    kinds = ["pairwise" if name == "pairwise" else "metric" for name in chosen.metric_weights]
    if chosen.solver == "policy_gradient":  # steps of a batch, in every block
        block = min(kept, chosen.block_size)
        batch = min(block, max(options.min_batch, options.partial * block))
        step = sum(SECONDS_OF_STEP[kind] for kind in kinds) * batch / 8_192 * options.n_rollout / 128
        return max(1.0, kept / max(1.0, block)) * options.n_epochs * step
    seconds = kept / MILLION * sum(SECONDS[kind] for kind in kinds)
    return seconds * {"mean_field": 1.0, "greedy": TIMES_GREEDY}.get(chosen.solver, TIMES_OTHERS)


def print_estimate(console: Console, found: Estimate) -> None:
    """Print what is read, the table of the stages and the sums."""
    for line in told(found.source.lines):
        print_line(console, line)
    for line in told(found.source.worries):
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
