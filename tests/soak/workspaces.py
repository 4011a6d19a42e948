"""Run the command in folders of their own and compare the workspaces that it leaves, byte by byte."""

import hashlib
import os
import random
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from shutil import copy

import httpx
import psutil
import pyarrow.parquet as pq

ROOT = Path(__file__).resolve().parents[2]
CLI = "fineweb_mask.flows.cli"
RECIPE = "deployments/recipes/sample.yaml"
RUN = ("run", RECIPE)
SHARDS = 8
SETTINGS = ("embedding.static_dimensions=64", "selection.policy_gradient.n_epochs=20")
COMPARED = ("documents", "duplicates", "scores", "embeddings", "masks", "fitted", "dataset")
"""Folders of which every byte is compared; the others hold times, or charts of them."""
STAGES = re.compile(r"(documents|signatures|scores|embeddings|duplicates|masks)/.*\.parquet")
"""Files that are not made again once they are there."""
LOCAL = re.compile(r"runs/|cache/|\.|catalog\.duckdb\.wal")
"""Files of which some runs have more: records of runs, times, locks."""
END_SECONDS = 10.0
"""Time in which every process of a run has ended after it."""


class FoundError(Exception):
    """What was found is not what the undisturbed run left."""


class Soak:
    """A folder with a corpus, and the environment in which commands run there."""

    def __init__(self, folder: Path, seed: int = 0) -> None:
        self.folder = folder
        self.random = random.Random(seed)
        self.undisturbed = folder / "whole"
        self.corpus = folder / "corpus"
        self.corpus.mkdir()
        rows = pq.read_table(min((ROOT / "data_samples" / "corpus").glob("*.parquet")))
        for number in range(SHARDS):
            pq.write_table(rows.slice(80 * number, 80), self.corpus / f"shard{number}.parquet")
        self.log = folder / "log.txt"
        self.environment = os.environ | {"PREFECT_HOME": str(folder / "prefect")}
        self.environment.pop("PREFECT_API_URL", None)
        self.own = set[psutil.Process]()  # the server that all runs share

    def command(self, workspace: Path, arguments: Sequence[str]) -> list[str]:
        """Return the arguments of the command in a workspace."""
        match arguments[0]:
            case "report":
                return ["report", str(workspace)]
        settings = (f"source.path={self.corpus}", *SETTINGS)
        return [*arguments, "--workspace", str(workspace), *(f"--set={one}" for one in settings)]

    @contextmanager
    def server(self) -> Iterator[None]:
        """Have the runs in the block use one Prefect server; without it, each starts a temporary one."""
        (folder := self.folder / "server").mkdir(exist_ok=True)
        with socket.create_server(("127.0.0.1", 0)) as listener, ExitStack() as running:
            url, of = f"http://127.0.0.1:{listener.getsockname()[1]}/api", listener.fileno()
            module = "fineweb_mask.flows.processes.temporary_server"
            running.enter_context(self.started(module, str(of), str(folder), stdin=subprocess.PIPE, pass_fds=[of]))
            listener.close()
            for _ in range(600):
                with suppress(httpx.TransportError):
                    if httpx.get(f"{url}/health").is_success:
                        break
                time.sleep(0.1)
            self.environment["PREFECT_API_URL"] = url
            self.own = set(self.processes())
            try:
                yield
            finally:
                del self.environment["PREFECT_API_URL"]
                self.own = set()

    @contextmanager
    def started(
        self, *command: str, stdin: int | None = None, pass_fds: Sequence[int] = ()
    ) -> Iterator[subprocess.Popen[bytes]]:
        """Start a module; its process is killed with the block."""
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", *command],
                cwd=ROOT,
                env=self.environment,
                stdin=stdin,
                stdout=log,
                stderr=log,
                pass_fds=pass_fds,
            )
        try:
            yield process
        finally:
            process.kill()
            process.wait()

    def call(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run Python to its end and return what it said."""
        return subprocess.run(
            [sys.executable, *command], cwd=ROOT, env=self.environment, capture_output=True, text=True, check=False
        )

    def finish(self, workspace: Path, arguments: Sequence[str] = RUN, *, alone: bool = True) -> float:
        """Run the command to its end and return its seconds; alone, it leaves no process, nor has one before it."""
        started = time.monotonic()
        before = set(self.processes())
        with self.started(CLI, *self.command(workspace, arguments)) as process:
            self.ended(process, arguments)
        seconds = time.monotonic() - started
        while alone and (left := set(self.processes()) - self.own):
            if time.monotonic() - started - seconds > END_SECONDS:
                raise FoundError(f"still there after {END_SECONDS:.0f} s: {left}, {len(left & before)} from before")
            time.sleep(0.2)
        return seconds

    def ended(self, process: subprocess.Popen[bytes], arguments: Sequence[str], *also: int) -> int:
        """Wait for a command and return its exit status, which is 0 or one of `also`."""
        code = process.wait()
        if code not in {0, *also}:
            raise FoundError(f"{' '.join(arguments)} ended with {code}; see soak.log")
        return code

    def check(self, workspace: Path, finished: dict[str, int] | None = None) -> None:
        """Finish a run and compare with the undisturbed one; `finished` are the inodes of files that were there."""
        self.finish(workspace)
        compare(workspace, self.undisturbed, finished or {})

    def processes(self) -> Iterator[psutil.Process]:
        """Yield the processes that were started with this folder's environment."""
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                is_own = process.environ().get("PREFECT_HOME") == self.environment["PREFECT_HOME"]
                if is_own and process.status() != psutil.STATUS_ZOMBIE:
                    yield process


@contextmanager
def soaking(seed: int = 0) -> Iterator[Soak]:
    """Have a folder and an undisturbed run."""
    with tempfile.TemporaryDirectory() as temporary:
        soak = Soak(Path(temporary), seed)
        with soak.server():
            soak.finish(soak.undisturbed)
        yield soak


def failures(soak: Soak, scenarios: dict[str, Callable[[], str]], only: str) -> int:
    """Run the scenarios that have a word in their name and print how each went; 1 if one failed."""
    failed = 0
    for name, scenario in scenarios.items():
        if only not in name:
            continue
        started = time.monotonic()
        try:
            outcome = scenario()
        except FoundError as error:
            failed = 1
            outcome = f"FAILED: {error}"
            copy(soak.log, "soak.log")
        print(f"{name}: {outcome} ({time.monotonic() - started:.0f} s)", flush=True)
    return failed


def files(workspace: Path) -> dict[str, Path]:
    """Return every file of a workspace by its name there."""
    return {path.relative_to(workspace).as_posix(): path for path in workspace.rglob("*") if path.is_file()}


def stage_files(workspace: Path) -> dict[str, int]:
    """Return the inode of every finished stage file; the masks of a block, one job's, are finished together."""
    found = {name: path.stat().st_ino for name, path in files(workspace).items() if STAGES.fullmatch(name)}
    tags = {name: name.rsplit(".", 2)[-2] for name in found}  # what a file was made from
    masks = Counter(tags[name] for name in found if name.startswith("masks/"))
    return {name: inode for name, inode in found.items() if masks.get(tags[name], SHARDS) == SHARDS}


def bytes_of(workspace: Path) -> dict[str, str]:
    """Return the hash of every file that is compared byte by byte: of an export, all."""
    compared = tuple(f"{folder}/" for folder in COMPARED) if (workspace / "run.json").exists() else ""
    return {
        name: hashlib.sha256(path.read_bytes()).hexdigest()
        for name, path in files(workspace).items()
        if name.startswith(compared)
    }


def compare(workspace: Path, whole: Path, finished: dict[str, int]) -> None:
    """Compare a workspace with an undisturbed one: its bytes, the names of its files, what was made again."""
    one, other = bytes_of(workspace), bytes_of(whole)
    stray = [name for name in files(workspace) if ".partial" in name]
    stray += [name for name in files(workspace).keys() - files(whole).keys() if not LOCAL.match(name)]
    for problem, names in {
        "other bytes": [name for name in one.keys() | other.keys() if one.get(name) != other.get(name)],
        "stray files": stray,
        "made again": made_again(workspace, finished),
    }.items():
        if names:
            raise FoundError(f"{problem}: {', '.join(sorted(names)[:5])}")


def made_again(workspace: Path, finished: dict[str, int]) -> list[str]:
    """Return the files that are no longer those that were finished before."""
    now = stage_files(workspace)
    return [name for name, inode in finished.items() if now.get(name) != inode]
