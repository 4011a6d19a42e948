"""Run over hundreds of broken files with hostile names, all in one folder: `make soak`, not part of the tests.

`python -m tests.soak.hostile`: the files of `tests/tasks/source/broken_files.py`, half of them under names that try to
control a shell, a terminal, a page or a query, with a few good files among them. The run ends with 3; every file was
read or is named with a reason; the dataset verifies; no name stands in a page as it is; and nothing outside the
workspace has changed. Exit status 1 with what was found instead, else 0.
"""

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.soak.workspaces import CLI, ROOT
from tests.tasks.source.broken_files import BROKEN, lines

HOSTILE = (
    "<img src=x onerror=alert(1)>",
    "{{7*7}}",
    "$(touch hacked)",
    "`touch hacked`",
    "'; DROP TABLE documents; --",
    '" onload="alert(1)',
    "\x1b[2J\x1b]0;title\x07",
    "line\nbreak",
    "%2e%2e%2f",
    "caf\udce9",  # a byte that is not UTF-8
    "\u202etxt.exe",
    "-rf",
    "*?[a]",
    "~",
    "a&b|c",
    "\\",
)
MOST_NAME_BYTES = 255  # of Linux's file systems
RECIPE = """\
workspace: {folder}/workspace
source: {{path: {folder}/source}}
ingest: {{min_chars: 20}}
quality: {{scorers: [{{kind: fasttext, labels: {{path: {labels}, threshold: 3}}}}]}}
embedding: {{static_dimensions: 16}}
selection: {{select_ratio: 0.25}}
"""


def write_source(source: Path) -> int:
    """Write the files, and return how many there are."""
    for number, broken in enumerate(BROKEN):
        name = HOSTILE[number // 2 % len(HOSTILE)] if number % 2 else ""
        longer = f"{name}{number:03d}{broken.name}"
        broken.write(source / (longer if len(os.fsencode(longer)) <= MOST_NAME_BYTES else broken.name))
    for number in range(4):
        source.joinpath(f"good{number}.jsonl").write_bytes(lines())
    return len(list(source.iterdir()))


def outside(folder: Path) -> dict[str, str]:
    """Return the hash of every file but the workspace's, and what else is there."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = os.fsencode(path.relative_to(folder)).decode(errors="backslashreplace")
        if not name.startswith("workspace"):
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "no file"
    return found


def main() -> int:
    """Run, and look at what came out."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        folder.joinpath("source").mkdir()
        count = write_source(folder / "source")
        recipe = folder / "recipe.yaml"
        recipe.write_text(RECIPE.format(folder=folder, labels=ROOT / "data_samples" / "labels.parquet"))
        before, started = outside(folder), time.monotonic()
        here = {"cwd": folder, "env": os.environ | {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}}
        command = [sys.executable, "-m", CLI]
        run = subprocess.run([*command, "run", recipe, "--json"], capture_output=True, check=False, **here)
        seconds = time.monotonic() - started
        verified = subprocess.run([*command, "verify", folder / "workspace"], capture_output=True, check=False, **here)
        set_aside = len(json.loads(run.stdout or "{}").get("quarantined", []))
        read = len(list((folder / "workspace" / "documents").glob("*.parquet")))
        pages = "".join(path.read_text() for path in (folder / "workspace").rglob("*.html"))
        problems = {
            f"the run ended with {run.returncode}: {run.stderr[-2000:]!r}": run.returncode != 3,
            f"verify ended with {verified.returncode}: {verified.stdout[-2000:]!r}": verified.returncode != 0,
            f"{read} read and {set_aside} set aside of {count}": read + set_aside != count,
            "a name is in a page as it is": HOSTILE[0] in pages or not pages,
            "the terminal was controlled": b"\x1b[2J" in run.stdout + run.stderr,
            "something outside the workspace changed": outside(folder) != before,
        }
        print(f"{count} files in {seconds:.0f} s: {read} read, {set_aside} set aside")
        print(*(problem for problem, found in problems.items() if found), sep="\n")
    return int(any(problems.values()))


if __name__ == "__main__":
    sys.exit(main())
