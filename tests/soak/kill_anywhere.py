"""Kill runs anywhere, go on, and compare with a run that nothing disturbed: `make soak`, not part of the tests.

`python -m tests.soak.kill_anywhere --kills 200`: runs over 8 small shards are killed (SIGKILL) at random moments,
in one process, on Ray, in several blocks and with near-duplicates; and so are exports. Runs and the commands that
make pages and models are also killed right before and after every rename, and the temporary Prefect server is killed
under a run. In the end

- the dataset, the stage files and the fitted models have the bytes of the undisturbed run,
- no file is there that it has not,
- no process of a killed run lives 10 s after the end of the next, and
- no finished stage file was made again (its inode is the one that it had after the kill).

The checkout must not change meanwhile: the dataset's record names its commit. Exit status 1 with what differs, else 0.
One line is printed for each scenario.
"""

import argparse
import hashlib
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

import httpx
import psutil
import pyarrow as pa
import pyarrow.parquet as pq

ROOT = Path(__file__).resolve().parents[2]
RUN = ("run", "deployments/recipes/sample.yaml")
SHARDS = 8
COMPARED = ("documents", "hashes", "repeats", "duplicates", "scores", "embeddings", "masks", "fitted", "dataset")
"""Folders of which every byte is compared; the others hold times, or charts of them."""
STAGES = re.compile(r"(documents|hashes|scores|embeddings|duplicates|masks)/.*\.parquet")
"""Files that are not made again once they are there."""
MOST_RENAMES = 1000
"""Kills at renames after which a command that still does not end is wrong."""
LOCAL = re.compile(r"runs/|cache/|\.|catalog\.duckdb\.wal")
"""Files of which some runs have more: records of runs, times, locks."""
SETTINGS = (
    "embedding.static_dimensions=64",
    "report.sample=200",
    "selection.policy_gradient.n_epochs=20",
)


VARIANTS = {
    "one process": (),
    "near-duplicates": ("--set=ingest.near_dedup=minhash",),
    "several blocks": ("--set=selection.block_size=500",),
    "Ray": ("--set=engine.kind=ray",),
}
"""What runs are killed at random moments with; each has an equal share of the kills, and so have exports."""
END_SECONDS = 10.0
"""Time in which every process of a run has ended after it."""


class FoundError(Exception):
    """What was found is not what the undisturbed run left."""


class Soak:
    """A folder with a corpus, an undisturbed workspace, and one that is disturbed."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder = folder
        self.random = random.Random(seed)
        self.corpus = folder / "corpus"
        self.corpus.mkdir()
        [first, *_] = sorted((ROOT / "data_samples" / "corpus").glob("*.parquet"))
        rows = pq.read_table(first)
        for number in range(SHARDS):
            pq.write_table(pa.table(rows.slice(80 * number, 80)), self.corpus / f"shard{number}.parquet")
        self.log = folder / "log.txt"
        self.environment = os.environ | {
            "PREFECT_HOME": str(folder / "prefect"),
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        }
        self.environment.pop("PREFECT_API_URL", None)
        self.own = set[psutil.Process]()  # the server that all runs share

    def command(self, workspace: Path, arguments: Sequence[str]) -> list[str]:
        """Return the arguments of the command in a workspace."""
        if arguments[0] == "report":
            return ["report", str(workspace)]
        if arguments[0] == "export":
            return [
                "export",
                str(self.folder / "whole"),
                "--format=parquet",
                "--output",
                str(workspace),
                "--file-size=65536",
            ]
        if arguments[0] == "train-quality":
            labels = str(ROOT / "data_samples" / "labels.parquet")
            return ["train-quality", "--input", labels, "--output", str(workspace / "model.bin"), *arguments[1:]]
        settings = (f"source.path={self.corpus}", *SETTINGS)
        return [*arguments, "--workspace", str(workspace), *(f"--set={one}" for one in settings)]

    @contextmanager
    def server(self) -> Iterator[None]:
        """Have the runs in the block use one Prefect server; without it, each starts a temporary one."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        (folder := self.folder / "server").mkdir()
        module = "fineweb_mask.flows.processes.temporary_server"
        with self.started(module, str(port), str(folder), stdin=subprocess.PIPE):
            url = f"http://127.0.0.1:{port}/api"
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
    def started(self, *command: str, stdin: int | None = None) -> Iterator[subprocess.Popen[bytes]]:
        """Start a process of this package; it is ended with the block."""
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", *command],
                cwd=ROOT,
                env=self.environment,
                stdin=stdin,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()

    def finish(self, workspace: Path, arguments: Sequence[str], *, alone: bool = True) -> float:
        """Run the command to its end and return its seconds; alone, it leaves no process, nor has one before it."""
        begun = time.monotonic()
        before = set(self.processes())
        with self.started("fineweb_mask.flows.cli", *self.command(workspace, arguments)) as process:
            if process.wait() != 0:
                raise FoundError(f"{' '.join(arguments)} ended with {process.returncode}; see {self.log}")
        seconds = time.monotonic() - begun
        while alone and (left := set(self.processes()) - self.own):
            if time.monotonic() - begun - seconds > END_SECONDS:
                raise FoundError(f"still there after {END_SECONDS:.0f} s: {left}, {len(left & before)} from before")
            time.sleep(0.2)
        return seconds

    def processes(self) -> Iterator[psutil.Process]:
        """Yield the processes that were started with this folder's environment."""
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                is_own = process.environ().get("PREFECT_HOME") == self.environment["PREFECT_HOME"]
                if is_own and process.status() != psutil.STATUS_ZOMBIE:
                    yield process


def stage_files(workspace: Path) -> dict[str, int]:
    """Return the inode of every finished stage file; the masks of a block, one job's, are finished together."""
    found = {name: path.stat().st_ino for name, path in files(workspace).items() if STAGES.fullmatch(name)}
    masks = Counter(tag_of(name) for name in found if name.startswith("masks/"))
    return {name: inode for name, inode in found.items() if masks.get(tag_of(name), SHARDS) == SHARDS}


def tag_of(name: str) -> str:
    """Return the part of a stage file's name that says what it was made from."""
    return name.rsplit(".", 2)[-2]


def files(workspace: Path) -> dict[str, Path]:
    """Return every file of a workspace by its name there."""
    found = (path for path in workspace.rglob("*") if path.is_file())
    return {path.relative_to(workspace).as_posix(): path for path in found}


def bytes_of(workspace: Path) -> dict[str, str]:
    """Return the hash of every file that is compared byte by byte: of an export, all."""
    compared = tuple(f"{folder}/" for folder in COMPARED) if (workspace / "run.json").exists() else ""
    return {
        name: hashlib.sha256(path.read_bytes()).hexdigest()
        for name, path in files(workspace).items()
        if name.startswith(compared)
    }


def check(workspace: Path, undisturbed: Path, finished: dict[str, int]) -> None:
    """Compare a workspace with an undisturbed one; `finished` are the inodes of files that were there before."""
    one, other = bytes_of(workspace), bytes_of(undisturbed)
    if differ := sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name)):
        raise FoundError(f"other bytes: {', '.join(differ[:5])}")
    partial = [name for name in files(workspace) if ".partial" in name]
    strange = [name for name in files(workspace).keys() - files(undisturbed).keys() if not LOCAL.match(name)]
    if partial or strange:
        raise FoundError(f"stray files: {', '.join((partial + strange)[:5])}")
    now = stage_files(workspace)
    if again := sorted(name for name, inode in finished.items() if now.get(name) != inode):
        raise FoundError(f"made again: {', '.join(again[:5])}")


def at_every_rename(soak: Soak, workspace: Path, arguments: Sequence[str], most: int) -> tuple[int, dict[str, int]]:
    """Kill the command before and after every rename; return the kills and what was finished."""
    ledger = soak.folder / "ledger.txt"
    ledger.write_text("")
    finished: dict[str, int] = {}
    for kills in range(most):
        command = soak.command(workspace, arguments)
        with soak.started("tests.soak.victim", str(ledger), str(workspace), *command) as process:
            code = process.wait()
        if code == 0:
            return kills, finished
        if code != -9:
            raise FoundError(f"{' '.join(arguments)} ended with {code} after {kills} kills; see {soak.log}")
        _keep(finished, workspace)
    raise FoundError(f"{' '.join(arguments)} does not end after {most} kills")


def _keep(finished: dict[str, int], workspace: Path) -> None:
    """Add the finished files, and check that those of before are the same."""
    now = stage_files(workspace)
    if again := sorted(name for name, inode in finished.items() if now.get(name) != inode):
        raise FoundError(f"made again after a kill: {', '.join(again[:5])}")
    finished.update(now)


def at_random(
    soak: Soak, workspace: Path, arguments: Sequence[str], kills: int, seconds: float, ended: Callable[[], None]
) -> tuple[int, dict[str, int]]:
    """Kill the command at random moments of its first `seconds`; return the kills and what was finished.

    A command that was not killed in time has ended: `ended` looks at what it left, and may make the next begin anew.
    """
    finished: dict[str, int] = {}
    done = 0
    while done < kills:
        with soak.started("fineweb_mask.flows.cli", *soak.command(workspace, arguments)) as process:
            try:
                process.wait(soak.random.uniform(0, seconds))
            except subprocess.TimeoutExpired:
                process.kill()
                done += 1
            process.wait()
        if process.returncode not in {0, -signal.SIGKILL}:
            raise FoundError(
                f"{' '.join(arguments)} ended with {process.returncode} after {done} kills; see {soak.log}"
            )
        _keep(finished, workspace)
        if process.returncode == 0:
            ended()
            finished = stage_files(workspace)
    return done, finished


def under_a_run(soak: Soak, workspace: Path, word: str) -> str:
    """Kill the first process below a run that has a word in its command; return how the run ended."""
    with soak.started("fineweb_mask.flows.cli", *soak.command(workspace, RUN)) as process:
        run = psutil.Process(process.pid)
        killed = None
        while process.poll() is None and killed is None:
            for child in run.children(recursive=True):
                with suppress(psutil.NoSuchProcess):
                    if any(word in part for part in child.cmdline()) and (word != "server" or stage_files(workspace)):
                        child.kill()
                        killed = child.pid
                        break
            time.sleep(0.002)
        code = process.wait(300)
    if killed is None:
        return "there was none"
    if code not in {0, 1}:
        raise FoundError(f"a run whose {word} was killed ended with {code}; see {soak.log}")
    return f"the run ended with {code}"


def main() -> int:
    """Run all scenarios."""
    parser = argparse.ArgumentParser(description="Kill runs anywhere and compare.")
    parser.add_argument("--kills", type=int, default=200, help="Kills at random moments, of runs and exports.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", help="Where to work; by default a temporary folder, which is removed.")
    parser.add_argument("--only", help="Run only the scenarios that have this word in their name.", default="")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(options.folder or temporary)
        folder.mkdir(parents=True, exist_ok=True)
        soak = Soak(folder, options.seed)
        undisturbed = folder / "whole"
        with soak.server():
            seconds = soak.finish(undisturbed, RUN)
        print(f"undisturbed: {seconds:.0f} s, {len(files(undisturbed))} files", flush=True)
        failed = 0
        for name, scenario in scenarios(soak, undisturbed, options.kills).items():
            if options.only not in name:
                continue
            begun = time.monotonic()
            try:
                with nullcontext() if name == "server" else soak.server():
                    outcome = scenario()
            except FoundError as error:
                failed += 1
                outcome = f"FAILED: {error}"
            print(f"{name}: {outcome} ({time.monotonic() - begun:.0f} s)", flush=True)
        if failed:
            shutil.copy(soak.log, Path.cwd() / "soak.log")
    return 1 if failed else 0


def scenarios(soak: Soak, undisturbed: Path, kills: int) -> dict[str, Callable[[], str]]:
    """Return what each scenario does; it returns how it went, or raises `FoundError`."""

    share = -(-kills // (len(VARIANTS) + 1))

    def renames() -> str:
        workspace = soak.folder / "renames"
        done, finished = at_every_rename(soak, workspace, RUN, MOST_RENAMES)
        soak.finish(workspace, RUN)
        check(workspace, undisturbed, finished)
        return f"{done} kills, identical"

    def moments(name: str, arguments: Sequence[str]) -> str:
        """Kill a command at random moments, again and again from the start, and compare with one that was not."""
        workspace, whole = soak.folder / f"{name}-killed", soak.folder / f"{name}-whole"
        spent, ends = soak.finish(whole, arguments), 1

        def begin_anew() -> None:
            nonlocal ends
            ends += 1
            check(workspace, whole, {})
            shutil.rmtree(workspace)

        done, finished = at_random(soak, workspace, arguments, share, spent, begin_anew)
        soak.finish(workspace, arguments)
        check(workspace, whole, finished)
        return f"{done} kills in {ends} runs, identical"

    def page(arguments: Sequence[str]) -> str:
        """Disturb a command on a copy of the undisturbed workspace; the pipeline's files stay as they are."""
        workspace, whole = soak.folder / f"{arguments[0]}-killed", soak.folder / f"{arguments[0]}-whole"
        for copy in (workspace, whole):
            shutil.copytree(undisturbed, copy)
        before = stage_files(workspace)
        spent = soak.finish(whole, arguments)
        at_renames, _ = at_every_rename(soak, workspace, arguments, MOST_RENAMES)
        at_moments, _ = at_random(soak, workspace, arguments, max(1, share // 4), spent, lambda: None)
        soak.finish(workspace, arguments)
        check(workspace, whole, before)
        return f"{at_renames + at_moments} kills, identical"

    def child(word: str) -> str:
        workspace = soak.folder / f"{word}-killed"
        outcome = under_a_run(soak, workspace, word)
        soak.finish(workspace, RUN)
        check(workspace, undisturbed, {})
        return f"{outcome}, then identical"

    selectors = "mean_field,random,greedy"
    return {
        "run, renames": renames,
        **{
            f"run, moments, {name}": lambda name=name, own=own: moments(name, (*RUN, *own))  # type: ignore[misc]
            for name, own in VARIANTS.items()
        },
        "export, moments": lambda: moments("export", ("export",)),
        "sweep": lambda: page(("sweep", RUN[1], "--lamb", "0,0.5,1")),
        "compare": lambda: page(("compare", RUN[1], "--selectors", selectors)),
        "report": lambda: page(("report",)),
        "train-quality": lambda: page(("train-quality",)),
        "server": lambda: child("server"),
    }


if __name__ == "__main__":
    sys.exit(main())
