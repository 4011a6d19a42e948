"""Fill the disk of a workspace at many sizes and in each stage, free it, and compare: `make soak`, no part of tests.

`python -m tests.soak.full_disk`, as root: a run writes to a file system in memory that is too small. It must end with a
message that says what did not fit and how much was free. The file system is then made large enough: the next run leaves
the bytes of a run that nothing disturbed, makes no finished file again and leaves no other file. The same for a
workspace that cannot be written, that vanishes under the run, and a TMPDIR that is not there. Exit status 1 with what
differs, else 0.
"""

import argparse
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from shutil import copytree, rmtree

from benchmarks.measuring import STAGES
from tests.soak.workspaces import CLI, RUN, FoundError, Soak, failures, files, soaking, stage_files

MIB = 2**20
ROOMY = 2048 * MIB
PAGE = 4096  # bytes, of which a file in memory takes whole ones
FULL = re.compile(r"No space left on device \(more than the [\d,]+ bytes that are free were needed\): free some space")
MOST_PAGES = 64  # free before a stage's own files, for records of the run and what it reads


@contextmanager
def disk(soak: Soak) -> Iterator[Path]:
    """Mount a file system in memory, for a workspace on it."""
    (folder := soak.folder / "disk").mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={ROOMY}", "tmpfs", str(folder)], check=True)
    try:
        yield folder / "ws"
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
        folder.rmdir()


def attempt(soak: Soak, workspace: Path, arguments: tuple[str, ...] = RUN, option: str = "", after: str = "") -> str:
    """Run the command and return its message, or nothing if it succeeds; with its disk changed meanwhile."""

    def remount(to: str) -> None:
        if to:
            subprocess.run(["mount", "-o", f"remount,{to}", str(workspace.parent)], check=True)

    remount(option)
    done = soak.call("-m", CLI, *soak.command(workspace, arguments))
    remount(after or (option and f"size={ROOMY}"))
    with soak.log.open("a") as log:
        log.write(done.stderr)
    lines = [line for line in done.stderr.splitlines() if line.startswith("fineweb-mask: ")]
    if done.returncode not in {0, 1, 2} or len(lines) != (done.returncode > 0):
        raise FoundError(f"ended with {done.returncode} and {len(lines)} messages; see soak.log")
    return "".join(lines)


def told(message: str) -> str:
    """Return the part of a message before the error, without the folder."""
    if message and not FULL.search(message):
        raise FoundError(f"another message: {message}")
    return re.sub(r"^fineweb-mask: |: /.*$|/\S*/", "", message.partition(": No space")[0])


def at_size(soak: Soak, size: int) -> str:
    """Run on a disk of a size, then on a large one; return what did not fit."""
    with disk(soak) as workspace:
        message = attempt(soak, workspace, option=f"size={size}")
        finished = stage_files(workspace)
        soak.check(workspace, finished)
    return f"{told(message)} (of the stages' files {len(finished)} were finished)" if message else "it was enough"


def in_stage(soak: Soak, stage: str) -> str:
    """Make a stage's files again on a disk without space for them; return what did not fit."""
    with disk(soak) as workspace:
        copytree(soak.undisturbed, workspace)
        stat = os.statvfs(workspace)
        used, found = (stat.f_blocks - stat.f_bfree) * stat.f_frsize, ""
        for pages in range(MOST_PAGES):  # a file of scores takes one or two
            rmtree(workspace / STAGES[stage], ignore_errors=True)
            again = (*RUN, "--until", stage)
            found = told(attempt(soak, workspace, again, f"size={used + pages * PAGE}"))
            if not found or stage in found:
                break
        soak.check(workspace)
    if stage not in found:
        raise FoundError(f"at no size it is {stage} that does not fit; the last that did not was: {found}")
    return found


def read_only(soak: Soak) -> str:
    """Run on a disk that cannot be written."""
    with disk(soak) as workspace:
        copytree(soak.undisturbed, workspace)
        rmtree(workspace / STAGES["score"])
        message = attempt(soak, workspace, RUN, "ro", "rw")
        soak.check(workspace)
    if "Read-only" not in message:
        raise FoundError(f"another message: {message}")
    return re.sub(r"/\S*/", "", message)


def vanished(soak: Soak) -> str:
    """Move the workspace away under a run, and put it back."""
    workspace, away = soak.folder / "vanishing", soak.folder / "away"
    with soak.started(CLI, *soak.command(workspace, RUN)) as process:
        while process.poll() is None and len(stage_files(workspace)) < 10:
            time.sleep(0.01)
        workspace.rename(away)
        code = process.wait(120)
    if code == 0:
        raise FoundError("the run succeeded without its workspace")
    if left := [name for name in files(workspace) if name.endswith(".parquet")]:
        raise FoundError(f"it went on in a new folder: {', '.join(left[:5])}")
    rmtree(workspace, ignore_errors=True)
    away.rename(workspace)
    soak.check(workspace)
    return f"ended with {code}"


def without_tmpdir(soak: Soak) -> str:
    """Run with a TMPDIR that is not there."""
    soak.environment["TMPDIR"] = str(soak.folder / "nowhere")
    try:
        soak.check(soak.folder / "tmpdir")
    finally:
        del soak.environment["TMPDIR"]
    return "succeeds, identical"


def main() -> int:
    """Run all of them."""
    parser = argparse.ArgumentParser(description="Fill the disk of a workspace, free it, and compare.")
    parser.add_argument("--sizes", type=int, default=20)
    parser.add_argument("--only", help="Run only the scenarios that have this word in their name.", default="")
    options = parser.parse_args()
    with soaking() as soak, soak.server():
        whole = sum(path.stat().st_size + PAGE for path in soak.undisturbed.rglob("*"))
        sizes = [whole * (number + 1) // options.sizes for number in range(options.sizes)]
        scenarios: dict[str, Callable[[], str]] = {
            f"{size / MIB:.2f} MiB": partial(at_size, soak, size) for size in sizes
        }
        scenarios |= {stage: partial(in_stage, soak, stage) for stage in STAGES}
        scenarios |= {one.__name__: partial(one, soak) for one in (read_only, vanished, without_tmpdir)}
        return failures(soak, scenarios, options.only)


if __name__ == "__main__":
    sys.exit(main())
