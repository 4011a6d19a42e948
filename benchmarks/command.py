"""Run `fineweb-mask` as a process, of this checkout or of another, and time it."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
COMMAND = [sys.executable, "-m", "fineweb_mask.flows.cli"]


def sets(settings: dict[str, object]) -> list[str]:
    """Return the options that change settings."""
    return [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]


def timed_run(recipe: Path, options: list[str], tree: Path = ROOT) -> tuple[float, dict[str, Any]]:
    """Return the wall seconds of a run with the code of a checkout, and what `--json` prints of it."""
    path = os.pathsep.join([str(tree / "src"), str(tree)])
    environment = os.environ | {"PYTHONPATH": path, "PREFECT_LOGGING_LEVEL": "WARNING"}
    started = time.perf_counter()
    done = subprocess.run(
        [*COMMAND, "run", str(recipe), "--json", *options],
        cwd=tree,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    wall = time.perf_counter() - started
    if done.returncode:
        sys.exit(done.stdout[-2_000:] + done.stderr[-2_000:])
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return wall, found
