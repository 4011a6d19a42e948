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

ROOT = Path(__file__).resolve().parents[2]
MIB = 2**20
MORE_MEMORY, MORE_BYTES, MORE_THINGS = 0.05, 30 * MIB, 5
DOCUMENTS = 60
SMALL = (
    "embedding.static_dimensions=16",
    "selection.metrics=pairwise",
    "quality.scorers=[{kind: column, column: token_count}]",
    "report.sample=50",
)


class Held(NamedTuple):
    """What a process holds, or the median of several."""

    memory: float  # bytes
    files: float
    threads: float

    @classmethod
    def by(cls, process: psutil.Process) -> "Held":
        """Return what a process holds now."""
        return cls(process.memory_info().rss, process.num_fds(), process.num_threads())


class Table:
    """Rows of what processes hold, printed as they are added."""

    def __init__(self, processes: dict[str, psutil.Process], database: Path) -> None:
        self._processes = processes
        self._database = database
        self._rows: dict[str, list[Held]] = {name: [] for name in processes}
        heads = " | ".join(f"{name}: MiB, files, threads" for name in processes)
        print(f"| done | {heads} | database, MiB |\n|---|{'---|' * (len(processes) + 1)}", flush=True)

    def add(self, done: int) -> None:
        """Measure, and print a row."""
        cells = []
        for name, process in self._processes.items():
            held = Held.by(process)
            self._rows[name].append(held)
            cells.append(f"{held.memory / MIB:,.0f}, {held.files}, {held.threads}")
        size = sum(path.stat().st_size for path in self._database.rglob("*.db*"))
        print(f"| {done:,} | {' | '.join(cells)} | {size / MIB:,.1f} |", flush=True)

    def grown(self) -> list[str]:
        """Return what grew from the first half to the second."""
        found = []
        for name, rows in self._rows.items():
            half = (len(rows) + 1) // 2
            before, after = (Held(*map(median, zip(*part, strict=True))) for part in (rows[:half], rows[-half:]))
            if after.memory - before.memory > max(MORE_BYTES, MORE_MEMORY * before.memory):
                found.append(f"{name}: memory from {before.memory / MIB:,.0f} to {after.memory / MIB:,.0f} MiB")
            if after.files - before.files > MORE_THINGS:
                found.append(f"{name}: files from {before.files:g} to {after.files:g}")
            if after.threads - before.threads > MORE_THINGS:
                found.append(f"{name}: threads from {before.threads:g} to {after.threads:g}")
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
    command = [sys.executable, "-m", "deployments.serve"]
    environment = os.environ | {"FINEWEB_MASK_HOME": str(home)}
    start = [*command, "start", "--port", str(port), "--state", str(state)]
    subprocess.run(start, cwd=ROOT, env=environment, check=True, stdout=subprocess.DEVNULL)
    try:
        yield Service(f"http://127.0.0.1:{port}", state)
    finally:
        stop = [*command, "stop", "--state", str(state)]
        subprocess.run(stop, cwd=ROOT, env=environment, check=True, stdout=subprocess.DEVNULL)


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
    summary = curate(load_recipe(ROOT / "deployments/recipes/sample.yaml", overrides))
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
        while (state := answer_of(served, "GET", f"flow_runs/{run}")["state_type"]) not in {
            "COMPLETED",
            "FAILED",
            "CRASHED",
            "CANCELLED",
        }:
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
