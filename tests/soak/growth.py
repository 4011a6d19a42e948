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
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import httpx
import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from tests.soak.workspaces import RECIPE, ROOT

MIB = 2**20
MORE = {"MiB": 30, "files": 5, "threads": 5}
MORE_MEMORY = 0.05  # share
DOCUMENTS = 60
SMALL = (
    "embedding.static_dimensions=16",
    "selection.metrics=pairwise",
    "quality.scorers=[{kind: column, column: token_count}]",
    "report.sample=50",
)
ENDED = {"COMPLETED", "FAILED", "CRASHED", "CANCELLED"}


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


class Service(NamedTuple):
    """A running server and worker."""

    url: str
    state: Path

    def process(self, name: str) -> psutil.Process:
        """Return the server's or the worker's process."""
        return psutil.Process(int((self.state / f"{name}.pid").read_text()))


@contextmanager
def service(folder: Path) -> Iterator[Service]:
    """Start a server and a worker, and stop them."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    state, home = folder / "serve", folder / "home"
    home.mkdir()
    (home / "data_samples").symlink_to(ROOT / "data_samples")

    def serve(*arguments: str) -> None:
        command = [sys.executable, "-m", "deployments.serve", *arguments, f"--state={state}"]
        environment = os.environ | {"FINEWEB_MASK_HOME": str(home)}
        subprocess.run(command, cwd=ROOT, env=environment, check=True, stdout=subprocess.DEVNULL)

    serve("start", f"--port={port}")
    try:
        yield Service(f"http://127.0.0.1:{port}", state)
    finally:
        serve("stop")


def write_shards(folder: Path, count: int) -> None:
    folder.mkdir()
    sample = pa.concat_tables(pq.read_table(path) for path in sorted((ROOT / "data_samples/corpus").glob("*.parquet")))
    for number in range(count):
        rows = [(number * DOCUMENTS + row) % sample.num_rows for row in range(DOCUMENTS)]
        pq.write_table(sample.take(rows), folder / f"{number:05d}.parquet")


def run_once(corpus: Path, workspace: Path) -> None:
    from fineweb_mask.flows.curate import curate
    from fineweb_mask.flows.recipe import load_recipe

    overrides = (*SMALL, f"source.path={corpus}", f"workspace={workspace}")
    summary = curate(load_recipe(ROOT / RECIPE, overrides))
    assert summary.documents_kept > 0


def many_runs(folder: Path, served: Service, count: int) -> list[str]:
    """Run `count` times in this process."""
    write_shards(folder / "corpus", 2)
    table = Table({"runs": psutil.Process(), "server": served.process("server")}, served.state)
    for number in range(1, count + 1):
        run_once(folder / "corpus", folder / "workspace")
        shutil.rmtree(folder / "workspace")
        if number % max(1, count // 10) == 0:
            table.add(number)
    return table.grown()


def many_shards(folder: Path, served: Service, count: int) -> list[str]:
    """Run over `count` shards, and measure while they are embedded."""
    write_shards(folder / "corpus", count)
    table = Table({"run": psutil.Process(), "server": served.process("server")}, served.state)
    ended = threading.Event()

    def watch() -> None:
        done = 0
        while not ended.wait(0.2):
            found = len(list((folder / "workspace" / "embeddings").glob("*.parquet")))
            if found >= done + max(1, count // 10):
                done = found
                table.add(done)

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        run_once(folder / "corpus", folder / "workspace")
    finally:
        ended.set()
        watching.join()
    return table.grown()


def many_deployment_runs(_folder: Path, served: Service, count: int) -> list[str]:
    """Run a deployment `count` times; the worker starts a process for each."""
    found = answer_of(served, "GET", "deployments/name/curate/sample")
    table = Table({name: served.process(name) for name in ("server", "worker")}, served.state)
    for number in range(1, count + 1):
        run = answer_of(served, "POST", f"deployments/{found['id']}/create_flow_run", json={})["id"]
        while (state := answer_of(served, "GET", f"flow_runs/{run}")["state_type"]) not in ENDED:
            time.sleep(0.5)
        assert state == "COMPLETED", f"run {number} ended as {state}"
        if number % max(1, count // 10) == 0:
            table.add(number)
    return table.grown()


def answer_of(served: Service, method: str, path: str, **options: Any) -> dict[str, Any]:
    """Return the server's answer; where its database is locked, it says so, and is asked again, as by every client."""
    for _ in range(60):
        answer = httpx.request(method, f"{served.url}/api/{path}", timeout=60, **options)
        if answer.status_code != httpx.codes.SERVICE_UNAVAILABLE:
            break
        time.sleep(1)
    found: dict[str, Any] = answer.raise_for_status().json()
    return found


KINDS = {"runs": many_runs, "shards": many_shards, "deployments": many_deployment_runs}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--count", type=int, required=True)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, service(Path(name)) as served:
        os.environ["PREFECT_API_URL"] = f"{served.url}/api"
        os.environ["PREFECT_LOGGING_LEVEL"] = "ERROR"
        started = time.monotonic()
        grown = KINDS[arguments.kind](Path(name), served, arguments.count)
        print(f"{arguments.count:,} {arguments.kind} in {(time.monotonic() - started) / 60:.1f} min")
    if grown:
        sys.exit("\n".join(["grew from the first half to the second:", *grown]))


if __name__ == "__main__":
    main()
