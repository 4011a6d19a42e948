"""Measure what a Ray cluster costs per job, and what stages run at with one node and with two of this machine.

    python -m benchmarks.cluster orchestration FOLDER --jobs 2000 20000
    python -m benchmarks.cluster stages FOLDER --nodes 1 2 --documents 200000 --shards 16

`orchestration`: jobs whose output is there already, so that a process of the cluster only finds it: the time is that of
Prefect, Ray and this process. The memory is this process's, at each tenth of the jobs. `stages`: synthetic
documents of 1 kB, stage by stage, with the recipe of `benchmarks.million`; each node has one core.
"""

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from prefect import flow
from prefect.task_runners import ThreadPoolTaskRunner

from benchmarks.million import SETTINGS, SHOWN_WITH, STAGES, make_corpus
from benchmarks.tables import show
from fineweb_mask.flows.cluster.cluster import RayCluster
from fineweb_mask.flows.deployed import curate
from fineweb_mask.flows.display.prefect_ui import PrefectUi
from fineweb_mask.flows.pipeline.fit import PretrainedModels
from fineweb_mask.flows.pipeline.run import Run
from fineweb_mask.flows.pipeline.start import MOST_TASK_RUNS, MOST_THREADS
from fineweb_mask.flows.pipeline.task_runs import TaskRuns
from fineweb_mask.flows.recipe import load_recipe
from fineweb_mask.models.schemas import FINEWEB
from fineweb_mask.models.settings import PipelineSettings
from fineweb_mask.tasks.ingest import IngestJob, ingest
from fineweb_mask.tasks.source.discovery import find_source
from fineweb_mask.tasks.workspace.records.runs import LastRun
from fineweb_mask.tasks.workspace.workspace import Workspace

ROOT = Path(__file__).resolve().parents[1]
BLOCK = 25_000  # documents that are selected together, so that two nodes have blocks to share


@contextmanager
def ray_nodes(count: int) -> Iterator[str]:
    """Start so many nodes with one core each, and yield the cluster's address."""
    from ray.cluster_utils import Cluster as Nodes

    node = {"num_cpus": 1, "object_store_memory": 80 * 2**20}
    nodes = Nodes(initialize_head=True, head_node_args={**node, "include_dashboard": False})
    for _ in range(count - 1):
        nodes.add_node(**node)
    try:
        yield nodes.address
    finally:
        nodes.shutdown()


def settings_of(folder: Path, address: str, *overrides: str) -> PipelineSettings:
    os.environ["RAY_ADDRESS"] = address
    return load_recipe(
        ROOT / "deployments/recipes/sample.yaml", ["engine.kind=ray", *overrides], str(folder / "workspace")
    )


def own_mib() -> float:
    """Return this process's MiB (proportional set size), without its children."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("Pss:"))


class Counting(PrefectUi):
    """Counts jobs, without printing a line for each, and notes the memory at every tenth."""

    def __init__(self, jobs: int, workspace: str) -> None:
        super().__init__(workspace)
        self.done, self.every, self.memory = 0, jobs // 10, list[float]()

    def on_job_end(self, *_: object) -> None:
        """Count a job."""
        self.done += 1
        if self.done % self.every == 0:
            self.memory.append(own_mib())


def tiny_corpus(folder: Path, files: int) -> Path:
    corpus = folder / f"tiny-{files}"
    if not corpus.is_dir():
        partial = Path(shutil.rmtree(folder / "partial", ignore_errors=True) or folder / "partial")
        partial.mkdir(parents=True)
        row = {field.name: None for field in FINEWEB} | {"text": "some words of a page " * 10}
        table = pa.Table.from_pylist([row], schema=FINEWEB)
        for number in range(files):
            pq.write_table(table, partial / f"{number:05d}.parquet")
        partial.rename(corpus)
    return corpus


def orchestration(folder: Path, jobs: int, address: str) -> list[Any]:
    settings = settings_of(folder, address, f"source.path={tiny_corpus(folder, jobs)}", "ingest.min_chars=1")
    workspace = Workspace(settings.workspace)
    workspace.root.mkdir(parents=True, exist_ok=True)
    LastRun(settings=settings, folder=str(ROOT)).save(workspace)
    todo = [
        IngestJob(root=workspace.address, shard=shard, source=settings.source, settings=settings.ingest)
        for shard in find_source(settings.source).shards
    ]
    for job in todo:
        ingest(job)
    counting = Counting(jobs, settings.workspace)
    measured: list[float] = []

    @flow(name="tiny jobs", task_runner=ThreadPoolTaskRunner(MOST_THREADS))
    def run() -> None:
        cluster = RayCluster()
        group = -(-jobs // MOST_TASK_RUNS)
        task_runs = TaskRuns(1, cluster, group)
        models = PretrainedModels.of(settings)
        jobs_run = Run(workspace, settings, [], models, task_runs=task_runs, ui=counting)
        jobs_run.listing.clear()  # so that no job is known to be done
        jobs_run.one(todo[0])  # the cluster's processes have imported what they need
        for _ in range(2):
            cluster.submit(todo[0]).result()
        started, before = time.perf_counter(), time.process_time()
        jobs_run.all(todo)
        measured.extend((time.perf_counter() - started, time.process_time() - before))
        cluster.close()

    run()
    seconds, own = measured
    parts = [counting.memory[place] for place in (0, 4, 9)]
    return [f"{jobs:,}", f"{seconds:.1f}", f"{jobs / seconds:,.0f}", f"{1000 * own / jobs:.1f}"] + [
        f"{part:,.0f}" for part in parts
    ]


def stages(folder: Path, nodes: int, documents: int, shards: int) -> list[list[str]]:
    rows = []
    corpus = make_corpus(folder, documents, shards)
    shutil.rmtree(folder / "workspace", ignore_errors=True)
    selection = [f"{name}={value}" for name, value in (SETTINGS | {"selection.block_size": BLOCK}).items()]
    with ray_nodes(nodes) as address:
        settings = settings_of(folder, address, f"source.path={corpus}", *selection)
        for stage in STAGES:
            started = time.perf_counter()
            done = {one.stage: one for one in curate(settings, until=stage).stages}
            seconds = time.perf_counter() - started
            busy = sum(done[name].seconds for name in SHOWN_WITH.get(stage, (stage,)))
            rates = [f"{documents / seconds:,.0f}", f"{documents / busy:,.0f}"]
            rows.append([str(nodes), stage, f"{seconds:.1f}", f"{busy:.1f}", *rates])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["orchestration", "stages"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--jobs", type=int, nargs="+", default=[2_000, 20_000])
    parser.add_argument("--nodes", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--documents", type=int, default=200_000)
    parser.add_argument("--shards", type=int, default=16)
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    folder = arguments.folder.absolute()
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), str(ROOT)])  # of the cluster's processes
    if arguments.what == "stages":
        size = (arguments.documents, arguments.shards)
        rows = [row for nodes in arguments.nodes for row in stages(folder, nodes, *size)]
        columns = ["nodes", "stage", "s", "s of its jobs", "documents/s", "documents/s of a job"]
        show("{:,} documents of 1 kB in {} shards on a cluster".format(*size), columns, rows)
        return
    if not arguments.one and len(arguments.jobs) > 1:  # each in its own process: memory is compared
        for jobs in arguments.jobs:
            command = [sys.executable, "-m", "benchmarks.cluster", "orchestration", str(folder), "--jobs", str(jobs)]
            subprocess.run(command, check=True)
        return
    with ray_nodes(1) as address:
        rows = [orchestration(folder / str(jobs), jobs, address) for jobs in arguments.jobs]
    columns = ["jobs", "s", "jobs/s", "ms of this process per job", "MiB at a tenth", "half", "the end"]
    show("Jobs that find their output", columns, rows)


if __name__ == "__main__":
    main()
