"""Time what a newcomer waits for, from a clone to a map in the browser, by a stopwatch around the commands.

    python -m benchmarks.first_hour web_mix.parquet

In a fresh clone: `make demo` until the report is there, once with an empty environment (which downloads every package
from wherever pip finds them) and once more, from the cache. With a file of one's own: `init`, `run --dry-run`, `run`
until the report, `run` again with nothing to do, and `explore` until the map is drawn in Chromium.
"""

import argparse
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import sync_playwright

from benchmarks.command import COMMAND, ROOT
from benchmarks.tables import show

Rows = list[list[str]]


@contextmanager
def timed(rows: Rows, step: str) -> Iterator[None]:
    """Add a row with the seconds that the block takes."""
    started = time.perf_counter()
    yield
    rows.append([step, f"{time.perf_counter() - started:.1f}"])
    print(*rows[-1], flush=True)


def call(command: list[str], folder: Path) -> None:
    """Run a command, which must succeed."""
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def demo(rows: Rows, folder: Path) -> None:
    """Time the clone and the demo."""
    with timed(rows, "clone to the demo's report, packages installed"):
        call(["git", "clone", "--quiet", str(ROOT), "clone"], folder)
        call(["make", "demo"], folder / "clone")
    assert (folder / "clone/workspaces/sample/reports/index.html").is_file()
    with timed(rows, "the demo again"):
        call(["make", "demo"], folder / "clone")


def own_file(rows: Rows, folder: Path, file: Path) -> None:
    """Time the way from a file to its report and map."""
    with timed(rows, f"init {file.name}"):
        call([*COMMAND, "init", str(file), "--output", "mine.yaml"], folder)
    run = [*COMMAND, "run", "mine.yaml", "--workspace", "mine"]
    with timed(rows, "run --dry-run"):
        call([*run, "--dry-run"], folder)
    with timed(rows, "run, until the report"):
        call(run, folder)
    assert (folder / "mine/reports/index.html").is_file()
    with timed(rows, "run, nothing to do"):
        call(run, folder)
    with timed(rows, "explore, until the map is drawn"):
        first_picture([*COMMAND, "explore", "mine", "--no-open"], folder)
    with timed(rows, "explore again"):
        first_picture([*COMMAND, "explore", "mine", "--no-open"], folder)


def first_picture(command: list[str], folder: Path) -> None:
    """Start `explore` and wait until its page shows the points."""
    server = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    try:
        address = server.stdout.readline().split()[1]
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
            page = browser.new_page(viewport={"width": 1500, "height": 950})
            page.goto(address)
            page.get_by_text(" points").first.wait_for(timeout=120_000)
            page.locator("canvas").first.wait_for(timeout=120_000)
            browser.close()
    finally:
        server.terminate()
        server.communicate()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help="a Parquet file with a column of texts")
    parser.add_argument("--no-demo", action="store_true", help="leave out the clone and its installation")
    arguments = parser.parse_args()
    rows: Rows = []
    with tempfile.TemporaryDirectory() as name:
        if not arguments.no_demo:
            demo(rows, Path(name))
        own_file(rows, Path(name), arguments.file.absolute())
    show("the first hour", ["", "s"], rows)


if __name__ == "__main__":
    main()
