"""Kill runs anywhere, go on, and compare with a run that nothing disturbed: `make soak`, not part of the tests.

`python -m tests.soak.kill_anywhere --kills 200`: runs over 8 small shards are killed (SIGKILL) at random moments,
in one process, on Ray, in several blocks and with near-duplicates. Runs and the commands that
make pages and models are also killed right before and after every rename, and the temporary Prefect server is killed
under a run. In the end the stage files, models and dataset have the bytes of the undisturbed run, no file is there that
it has not, no finished stage file was made again, and no process of a killed run lives 10 s after the end of the next.

The checkout must not change meanwhile: the dataset's record names its commit. Exit status 1 with what differs, else 0.
"""

import argparse
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from shutil import copytree, rmtree

import psutil

from tests.soak.workspaces import (
    CLI,
    RECIPE,
    RUN,
    FoundError,
    Soak,
    compare,
    failures,
    made_again,
    soaking,
    stage_files,
)

MOST_RENAMES = 1000
"""Kills at renames after which a command that still does not end is wrong."""
VARIANTS = {
    "one process": RUN,
    "near-duplicates": (*RUN, "--set=ingest.near_dedup=0.7"),
    "several blocks": (*RUN, "--set=selection.block_size=500"),
    "Ray": (*RUN, "--set=engine.kind=ray"),
}
"""What is killed at random moments; each has an equal share of the kills."""
PAGES: tuple[tuple[str, ...], ...] = (
    ("compare", RECIPE, "--lambs", "0,0.5,1"),
    ("compare", RECIPE, "--variants", "mean_field,random,greedy"),
    ("report",),
)


def keep(finished: dict[str, int], workspace: Path) -> None:
    """Add the finished files, and check that those of before are the same."""
    if again := made_again(workspace, finished):
        raise FoundError(f"made again after a kill: {', '.join(again[:5])}")
    finished.update(stage_files(workspace))


def at_every_rename(soak: Soak, workspace: Path, arguments: Sequence[str]) -> tuple[int, dict[str, int]]:
    """Kill the command before and after every rename; return the kills and what was finished."""
    ledger = soak.folder / "ledger.txt"
    ledger.write_text("")
    finished = dict[str, int]()
    for kills in range(MOST_RENAMES):
        command = soak.command(workspace, arguments)
        with soak.started("tests.soak.victim", str(ledger), str(workspace), *command) as process:
            if soak.ended(process, arguments, -signal.SIGKILL) == 0:
                return kills, finished
        keep(finished, workspace)
    raise FoundError(f"{' '.join(arguments)} does not end after {MOST_RENAMES} kills")


def at_random(
    soak: Soak, workspace: Path, arguments: Sequence[str], kills: int, seconds: float, whole: Path | None = None
) -> dict[str, int]:
    """Kill the command at random moments of its first `seconds`; return what was finished.

    Where it ends before it is killed, it is compared with `whole`, if given, and begins again.
    """
    finished = dict[str, int]()
    while kills:
        with soak.started(CLI, *soak.command(workspace, arguments)) as process:
            try:
                process.wait(soak.random.uniform(0, seconds))
            except subprocess.TimeoutExpired:
                process.kill()
                kills -= 1
            code = soak.ended(process, arguments, -signal.SIGKILL)
        keep(finished, workspace)
        if code == 0 and whole:
            compare(workspace, whole, finished)
            rmtree(workspace)
            finished = {}
    return finished


def renames(soak: Soak) -> str:
    done, finished = at_every_rename(soak, soak.folder / "renames", RUN)
    soak.check(soak.folder / "renames", finished)
    return f"{done} kills, identical"


def moments(soak: Soak, name: str, kills: int) -> str:
    """Kill a command at random moments, again and again from the start, and compare with one that was not."""
    workspace, whole = soak.folder / f"{name}-killed", soak.folder / f"{name}-whole"
    seconds = soak.finish(whole, VARIANTS[name])
    finished = at_random(soak, workspace, VARIANTS[name], kills, seconds, whole)
    soak.finish(workspace, VARIANTS[name])
    compare(workspace, whole, finished)
    return f"{kills} kills, identical"


def page(soak: Soak, arguments: Sequence[str], kills: int) -> str:
    """Disturb a command on a copy of the undisturbed workspace; the pipeline's files stay as they are."""
    workspace, whole = soak.folder / f"{arguments[0]}-killed", soak.folder / f"{arguments[0]}-whole"
    for folder in (workspace, whole):
        copytree(soak.undisturbed, folder)
    before = stage_files(workspace)
    seconds = soak.finish(whole, arguments)
    done, _ = at_every_rename(soak, workspace, arguments)
    at_random(soak, workspace, arguments, kills, seconds)
    soak.finish(workspace, arguments)
    compare(workspace, whole, before)
    return f"{done + kills} kills, identical"


def own_server(soak: Soak) -> str:
    """Kill the temporary server of a run that has started."""
    workspace = soak.folder / "server-killed"
    with soak.started(CLI, *soak.command(workspace, RUN)) as process:
        killed = False
        while process.poll() is None and not killed:
            for child in psutil.Process(process.pid).children(recursive=True):
                with suppress(psutil.NoSuchProcess):
                    if any("server" in part for part in child.cmdline()) and stage_files(workspace):
                        child.kill()
                        killed = True
            time.sleep(0.002)
        code = soak.ended(process, RUN, 1)
    if not killed:
        raise FoundError("there was none")
    soak.check(workspace)
    return f"the run ended with {code}, then identical"


def served(soak: Soak, scenario: Callable[..., str], *arguments: object) -> str:
    with soak.server():
        return scenario(soak, *arguments)


def main() -> int:
    """Run all scenarios."""
    parser = argparse.ArgumentParser(description="Kill runs anywhere and compare.")
    parser.add_argument("--kills", type=int, default=200, help="Kills at random moments.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", help="Run only the scenarios that have this word in their name.", default="")
    options = parser.parse_args()
    share = -(-options.kills // len(VARIANTS))
    with soaking(options.seed) as soak:
        scenarios: dict[str, Callable[[], str]] = {"run, renames": partial(served, soak, renames)}
        scenarios |= {f"{name}, moments": partial(served, soak, moments, name, share) for name in VARIANTS}
        scenarios |= {one[0]: partial(served, soak, page, one, max(1, share // 4)) for one in PAGES}
        scenarios["server"] = partial(own_server, soak)
        return failures(soak, scenarios, options.only)


if __name__ == "__main__":
    sys.exit(main())
