"""Measure what grows over many runs: memory, open files, threads, the server's database; `make soak`, no part of tests.

`python -m tests.soak.growth runs --count 500`: small runs in one process, one after the other.
`python -m tests.soak.growth shards --count 300`: one run over so many shards.
`python -m tests.soak.growth deployments --count 100`: runs of a deployment on one server and worker.

Each starts a server of its own, and prints a table of what the processes hold after every tenth. Exit status 1 if the
median of the second half is above that of the first, in memory by more than a twentieth and 30 MB, in open files or
threads by more than five; else 0. (Single rows of a process that holds 900 MB differ by 80.) The database keeps every
run, so it grows; the table says how much for each.
"""

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from deployments.serve import running_server, running_worker
from tests.s3 import free_port
from tests.soak.workspaces import RECIPE, ROOT

MIB = 2**20
MORE = {"MiB": 30, "files": 5, "threads": 5}
MORE_MEMORY = 0.05  # share
DOCUMENTS = 60
SMALL = (
    "embedding.static_dimensions=16",
    "selection.metrics=pairwise",
    "quality.scorers=[{kind: column, column: token_count}]",
)


class Table:
    """Rows of what processes hold, printed as they are added."""

    def __init__(self, processes: dict[str, psutil.Process], database: Path) -> None:
        self._processes = processes
        self._database = database
        self._rows: dict[str, list[tuple[float, ...]]] = {name: [] for name in processes}
        heads = " | ".join(f"{name}: {', '.join(MORE)}" for name in processes)
        print(f"| done | {heads} | database, MiB |\n|---|{'---|' * (len(processes) + 1)}", flush=True)

    def add(self, done: int) -> None:
        """Measure, and print a row."""
        for name, process in self._processes.items():
            self._rows[name].append((process.memory_info().rss / MIB, process.num_fds(), process.num_threads()))
        cells = [", ".join(f"{number:,.0f}" for number in rows[-1]) for rows in self._rows.values()]
        size = sum(path.stat().st_size for path in self._database.rglob("*.db*"))
        print(f"| {done:,} | {' | '.join(cells)} | {size / MIB:,.1f} |", flush=True)

    def grown(self) -> list[str]:
        """Return what grew from the first half to the second."""
        found = []
        for name, rows in self._rows.items():
            half = (len(rows) + 1) // 2
            for (what, more), numbers in zip(MORE.items(), zip(*rows, strict=True), strict=True):
                before, after = median(numbers[:half]), median(numbers[-half:])
                if after - before > max(more, MORE_MEMORY * before if what == "MiB" else 0):
                    found.append(f"{name}: {what} from {before:,.0f} to {after:,.0f}")
        return found


@contextmanager
def service(folder: Path) -> Iterator[tuple[str, dict[str, psutil.Process]]]:
    """Run a server and a worker in the block; yield the server's address and the processes."""
    state, port, home = folder / "serve", free_port(), folder / "home"
    home.mkdir()
    (home / "data_samples").symlink_to(ROOT / "data_samples")
    os.environ["FINEWEB_MASK_HOME"] = str(home)
    with running_server(state, port) as server, running_worker(state, port) as worker:
        yield f"http://127.0.0.1:{port}/api", {one.name: psutil.Process(one.pid) for one in (server, worker)}


def write_shards(folder: Path, count: int) -> None:
    folder.mkdir()
    sample = pa.concat_tables(pq.read_table(path) for path in sorted((ROOT / "data_samples/corpus").glob("*.parquet")))
    for number in range(count):
        rows = [(number * DOCUMENTS + row) % sample.num_rows for row in range(DOCUMENTS)]
        pq.write_table(sample.take(rows), folder / f"{number:05d}.parquet")


def run_once(corpus: Path, workspace: Path) -> None:
    from fineweb_mask.flows.deployed import curate
    from fineweb_mask.flows.recipe import load_recipe

    overrides = (*SMALL, f"source.path={corpus}", f"workspace={workspace}")
    summary = curate(load_recipe(ROOT / RECIPE, overrides))
    assert summary.documents_kept > 0


def many_runs(folder: Path, count: int) -> Iterator[int]:
    """Run `count` times in this process."""
    write_shards(folder / "corpus", 2)
    for number in range(1, count + 1):
        run_once(folder / "corpus", folder / "workspace")
        shutil.rmtree(folder / "workspace")
        yield number


def many_shards(folder: Path, count: int) -> Iterator[int]:
    """Run over `count` shards, of which so many are embedded."""
    write_shards(folder / "corpus", count)
    with ThreadPoolExecutor(1) as pool:
        running, done = pool.submit(run_once, folder / "corpus", folder / "workspace"), 0
        while not running.done():
            found = len(list((folder / "workspace" / "embeddings").glob("*.parquet")))
            yield from range(done + 1, found + 1)
            done = found
            time.sleep(0.2)
        running.result()


def many_deployment_runs(_folder: Path, count: int) -> Iterator[int]:
    """Run a deployment `count` times; the worker starts a process for each."""
    from prefect.deployments import run_deployment

    for number in range(1, count + 1):
        run = run_deployment("curate/sample", poll_interval=0.5, as_subflow=False)
        assert run.state.is_completed(), f"run {number} ended as {run.state}"
        yield number


KINDS = {
    "runs": (many_runs, ("server",)),
    "shards": (many_shards, ("server",)),
    "deployments": (many_deployment_runs, ("server", "worker")),
}
"""What is done many times, and which processes are measured beside this one."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--count", type=int, required=True)
    options = parser.parse_args()
    act, names = KINDS[options.kind]
    with tempfile.TemporaryDirectory() as name, service(Path(name)) as (url, running):
        os.environ |= {"PREFECT_API_URL": url, "PREFECT_LOGGING_LEVEL": "ERROR"}
        started, state = time.monotonic(), Path(name, "serve")
        table = Table({"this": psutil.Process()} | {one: running[one] for one in names}, state)
        for done in act(Path(name), options.count):
            if done % max(1, options.count // 10) == 0:
                table.add(done)
    print(f"{options.count:,} {options.kind} in {(time.monotonic() - started) / 60:.1f} min")
    if grown := table.grown():
        sys.exit("\n".join(["grew from the first half to the second:", *grown]))


if __name__ == "__main__":
    main()
