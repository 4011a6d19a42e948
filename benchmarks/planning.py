"""Measure how long a run of a finished corpus takes to find that nothing is to do, and its memory.

    python -m benchmarks.planning FOLDER --shards 25000

Makes a workspace in FOLDER (and finds it there the next time) in which every shard has a file of one row for each of
six stages. Planning runs in its own process: it lists the files, makes the job of every shard and stage, and finds
its output. Without an index, it also reads the footer of every file.
"""

import argparse
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks.measuring import status_mib
from benchmarks.tables import show
from fineweb_mask.flows.curate import prepare
from fineweb_mask.flows.pipeline.fit import PretrainedModels
from fineweb_mask.flows.pipeline.run import Run
from fineweb_mask.flows.pipeline.selection import select
from fineweb_mask.flows.pipeline.task_runs import TaskRuns
from fineweb_mask.models.settings import EmbeddingSettings, PipelineSelectionSettings, PipelineSettings, SourceSettings
from fineweb_mask.models.settings.quality import ColumnScorerSettings, QualitySettings
from fineweb_mask.tasks.dedup.duplicates import DedupJob, dedup
from fineweb_mask.tasks.fit import FitJob
from fineweb_mask.tasks.source.discovery import find_source
from fineweb_mask.tasks.workspace.job import StageJob
from fineweb_mask.tasks.workspace.listing import Listing, update_index
from fineweb_mask.tasks.workspace.manifest import write_manifest
from fineweb_mask.tasks.workspace.references import StageFile
from fineweb_mask.tasks.workspace.stage_parquet import stage_file_writer
from fineweb_mask.tasks.workspace.workspace import Workspace

ROW = pa.record_batch([pa.array([0], pa.uint32()), pa.array([bytes(16)], pa.binary(16))], names=["row", "content_hash"])
DETAILS: dict[str, dict[str, Any]] = {  # what jobs that come later read of a footer
    "ingest": {"texts": False, "rows_in": 1, "dropped": {}, "tokens_in": 9, "tokens": 9, "tokens_estimated": 0},
    "embed": {"bad_vectors": 0, "dimensions": 256},
    "fit_statistics": {"statistics": {}},
}
BLOCK = {
    "name": "a",
    "documents": 1,
    "selected": 1,
    "tokens": 9,
    "tokens_selected": 9,
    "objective": 0.5,
    "random_objective": 0.4,
    "upper_bound": 0.6,
    "gap": 0.1,
    "terms": {"quality": 0.5, "diversity": 0.5},
}


class _Written(TaskRuns):
    """Writes a small file instead of each output."""

    def show_current(self, current: Sequence[tuple[StageJob, StageFile]]) -> None:
        """Show nothing."""

    def built(
        self,
        jobs: Sequence[tuple[int, StageJob]],
        at_once: int | None = None,  # noqa: ARG002
    ) -> Iterator[tuple[int, StageFile]]:
        for place, job in jobs:
            _write(job)
            file = job.current()
            assert file is not None
            yield place, file


def _write(job: StageJob) -> None:
    details = DETAILS.get(job.stage.name, {})
    if isinstance(job, FitJob):
        write_manifest(job.manifest_path, job.key, [], details)
    elif isinstance(job, DedupJob):
        dedup(job)
    else:
        if job.stage.name == "select":
            details = {"blocks": [BLOCK], "excluded": {}}
        for path in job.paths():
            with stage_file_writer(path, ROW.schema, job.key) as writer:
                writer.write(ROW)
                writer.details = details


def settings_of(folder: Path, workspace: str) -> PipelineSettings:
    return PipelineSettings(
        workspace=workspace,
        source=SourceSettings(path=str(folder / "corpus")),
        quality=QualitySettings(scorers=[ColumnScorerSettings(column="language_score")]),
        embedding=EmbeddingSettings(model="static"),
        selection=PipelineSelectionSettings(select_ratio=0.1, block_size=1, blocks="order"),
    )


def make(folder: Path, shards: int) -> Path:
    """Write the corpus and the workspace, unless they are there."""
    workspace = folder / f"workspace-{shards}"
    if (workspace / "index.parquet").is_file():
        return workspace
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "corpus").mkdir(parents=True)
    for number in range(shards):
        (folder / "corpus" / f"{number:05d}.jsonl").write_text("{}\n")
    settings, opened = settings_of(folder, str(workspace)), Workspace(workspace)
    shards, models = find_source(settings.source).shards, PretrainedModels.of(settings)
    run = Run(opened, settings, shards, models, task_runs=_Written(workers=1))
    with opened.in_use():
        select(run, prepare(run))
        update_index(opened)
    return workspace


def plan_again(folder: Path, address: str) -> None:
    """Print how many seconds it takes to plan, the memory in MiB before and after, and the jobs."""
    settings = settings_of(folder, address)
    before = status_mib("VmHWM")
    started = time.perf_counter()
    workspace = Workspace(address)
    with workspace.in_use():
        Listing(workspace)
        listed, started = time.perf_counter() - started, time.perf_counter()
        run = Run(workspace, settings, find_source(settings.source).shards, PretrainedModels.of(settings))
        select(run, prepare(run))
    seconds, after = time.perf_counter() - started, status_mib("VmHWM")
    print(listed, seconds, before, after, sum(stage.files for stage in run.stages))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--shards", type=int, default=25_000)
    parser.add_argument("--plan", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    folder = arguments.folder.absolute()
    if arguments.plan:
        plan_again(folder, arguments.plan)
        return
    workspace = make(folder, arguments.shards)
    command = [sys.executable, "-m", "benchmarks.planning", str(folder), "--plan", str(workspace)]
    found = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    listed, seconds, before, after = (float(number) for number in found[:4])
    show(
        f"{arguments.shards:,} shards, all done",
        ["jobs", "s to list", "s in all", "MiB before", "MiB at most"],
        [[found[4], f"{listed:.1f}", f"{seconds:.1f}", f"{before:,.0f}", f"{after:,.0f}"]],
    )


if __name__ == "__main__":
    main()
