"""Fill the disk of a workspace at many sizes and in each stage, free it, and compare: `make soak`, no part of tests.

`python -m tests.soak.full_disk`, as root: a run writes to a file system in memory that is too small. It must end with a
message that says what did not fit and how much was free. The file system is then made large
enough: the next run leaves the bytes of a run that nothing disturbed, makes no finished file again and leaves no other
file. The same for a workspace that cannot be written, that vanishes under the run, and a TMPDIR that is not there.

Exit status 1 with what differs, else 0. The output is a table, a line for each size and stage.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import copytree, rmtree

from tests.soak.kill_anywhere import ROOT, RUN, FoundError, Soak, check, stage_files

MIB = 2**20
ROOMY = 2048 * MIB
PAGE = 4096  # bytes, of which a file in memory takes whole ones
FULL = re.compile(r"No space left on device \(more than the [\d,]+ bytes that are free were needed\): free some space")
STAGES = ("ingest", "score", "embed", "select", "materialize", "report")
MOST_PAGES = 64  # free before a stage's own files, for records of the run and what it reads


@contextmanager
def disk(folder: Path) -> Iterator[Path]:
    """Mount a file system in memory."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={ROOMY}", "tmpfs", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
        folder.rmdir()


def remount(folder: Path, option: str) -> None:
    """Change a file system: its size in bytes, or whether it can be written."""
    subprocess.run(["mount", "-o", f"remount,{option}", str(folder)], check=True)


def attempt(soak: Soak, workspace: Path, arguments: tuple[str, ...]) -> str:
    """Run the command; return its message, or nothing if it succeeds."""
    command = [sys.executable, "-m", "fineweb_mask.flows.cli", *soak.command(workspace, arguments)]
    done = subprocess.run(command, cwd=ROOT, env=soak.environment, capture_output=True, text=True, check=False)
    with soak.log.open("a") as log:
        log.write(done.stderr)
    if done.returncode == 0:
        return ""
    lines = [line for line in done.stderr.splitlines() if line.startswith("fineweb-mask: ")]
    if done.returncode not in {1, 2} or len(lines) != 1:
        raise FoundError(f"ended with {done.returncode} and {len(lines)} messages; see {soak.log}")
    return lines[0]


def told(message: str) -> str:
    """Return the part of a message before the error, without the folder."""
    if not FULL.search(message):
        raise FoundError(f"another message: {message}")
    return re.sub(r"^fineweb-mask: |: /.*$|/\S*/", "", message.partition(": No space")[0])


def at_size(soak: Soak, undisturbed: Path, size: int) -> str:
    """Run on a disk of a size, then on a large one; return what did not fit."""
    with disk(soak.folder / "disk") as folder:
        remount(folder, f"size={size}")
        message = attempt(soak, folder / "ws", RUN)
        finished = stage_files(folder / "ws")
        remount(folder, f"size={ROOMY}")
        soak.finish(folder / "ws", RUN)
        check(folder / "ws", undisturbed, finished)
    return f"{told(message)} (of the stages' files {len(finished)} were finished)" if message else "it was enough"


def in_stage(soak: Soak, undisturbed: Path, stage: str) -> str:
    """Make a stage's files again on a disk without space for them; return what did not fit."""
    with disk(soak.folder / "disk") as folder:
        workspace = folder / "ws"
        copytree(undisturbed, workspace)
        again = (*RUN, "--until", stage, "--refresh", stage)
        stat = os.statvfs(folder)
        used = (stat.f_blocks - stat.f_bfree) * stat.f_frsize
        message = ""
        for pages in range(MOST_PAGES):  # a file of scores takes one or two
            remount(folder, f"size={used + pages * PAGE}")
            message = attempt(soak, workspace, again)
            remount(folder, f"size={ROOMY}")
            if not message or stage in told(message):
                break
        soak.finish(workspace, RUN)
        check(workspace, undisturbed, {})
    if stage not in (message and told(message)):
        raise FoundError(f"at no size it is {stage} that does not fit; the last message was: {message}")
    return told(message)


def read_only(soak: Soak, undisturbed: Path) -> str:
    """Run on a disk that cannot be written."""
    with disk(soak.folder / "disk") as folder:
        copytree(undisturbed, folder / "ws")
        remount(folder, "ro")
        message = attempt(soak, folder / "ws", (*RUN, "--refresh", "score"))
        remount(folder, "rw")
        soak.finish(folder / "ws", RUN)
        check(folder / "ws", undisturbed, {})
    if "Read-only" not in message:
        raise FoundError(f"another message: {message}")
    return re.sub(r"/\S*/", "", message)


def vanished(soak: Soak, undisturbed: Path) -> str:
    """Move the workspace away under a run, and put it back."""
    workspace, away = soak.folder / "vanishing", soak.folder / "away"
    with soak.started("fineweb_mask.flows.cli", *soak.command(workspace, RUN)) as process:
        while process.poll() is None and len(stage_files(workspace)) < 10:
            time.sleep(0.01)
        workspace.rename(away)
        code = process.wait(120)
    if code == 0:
        raise FoundError("the run succeeded without its workspace")
    if workspace.exists():
        left = [path for path in workspace.rglob("*") if path.is_file()]
        if any(path.suffix == ".parquet" for path in left):
            raise FoundError(f"it went on in a new folder: {', '.join(map(str, left[:5]))}")
        rmtree(workspace)
    away.rename(workspace)
    soak.finish(workspace, RUN)
    check(workspace, undisturbed, {})
    return f"ended with {code}"


def without_tmpdir(soak: Soak, undisturbed: Path) -> str:
    """Run with a TMPDIR that is not there."""
    soak.environment["TMPDIR"] = str(soak.folder / "nowhere")
    try:
        message = attempt(soak, soak.folder / "tmpdir", RUN)
    finally:
        del soak.environment["TMPDIR"]
    if message:
        return message
    check(soak.folder / "tmpdir", undisturbed, {})
    return "succeeds, identical"


def main() -> int:
    """Run all of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, default=20)
    parser.add_argument("--only", help="Run only the lines that begin with this word.", default="")
    options = parser.parse_args()
    failed = 0
    with tempfile.TemporaryDirectory() as name:
        soak = Soak(Path(name), seed=0)
        undisturbed = soak.folder / "undisturbed"
        with soak.server():
            soak.finish(undisturbed, RUN)
            whole = sum(path.stat().st_size + PAGE for path in undisturbed.rglob("*"))
            tried = {
                f"{size / MIB:.2f} MiB": (at_size, size)
                for size in (whole * (number + 1) // options.sizes for number in range(options.sizes))
            }
            tried |= {stage: (in_stage, stage) for stage in STAGES}
            tried |= {"read-only": (read_only,), "vanished": (vanished,), "no TMPDIR": (without_tmpdir,)}
            print("| disk | what did not fit |\n|---|---|", flush=True)
            for title, (scenario, *arguments) in tried.items():
                if not title.startswith(options.only):
                    continue
                try:
                    outcome = scenario(soak, undisturbed, *arguments)
                except FoundError as error:
                    failed += 1
                    outcome = f"FAILED: {error}"
                print(f"| {title} | {outcome} |", flush=True)
        if failed:
            (Path.cwd() / "soak.log").write_text(soak.log.read_text())
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
