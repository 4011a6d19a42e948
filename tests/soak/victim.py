"""Run the command, and kill it right before or after the first rename at which no run was killed yet.

`python -m tests.soak.victim LEDGER WORKSPACE ARGUMENT...`: the file LEDGER lists the places where runs were killed, one
a line; the ARGUMENTs are the command's.
"""

import os
import re
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fineweb_mask.flows import cli

CHANGING = re.compile(r"[0-9a-f]{32}|\d{8}T\d{6}\.\d+Z-\w+")
"""What differs from run to run in the name of a file: a partial file's number, and when a run began."""
LOCK = threading.Lock()


def die_once(ledger: Path, workspace: Path, rename: Callable[..., Any]) -> Callable[..., Any]:
    """Return a rename that ends the process, without any farewell, where the ledger has no line yet."""

    def at(moment: str, target: Path) -> None:
        if not target.is_relative_to(workspace):
            return
        place = f"{moment} {CHANGING.sub('N', target.relative_to(workspace).as_posix())}"
        with LOCK:
            if place not in ledger.read_text().splitlines():
                with ledger.open("a") as file:
                    file.write(f"{place}\n")
                os.kill(os.getpid(), signal.SIGKILL)

    def renamed(source: Any, target: Any, **options: Any) -> Any:
        at("before", Path(target))
        done = rename(source, target, **options)
        at("after", Path(target))
        return done

    return renamed


def main() -> None:
    """Run the command with renames that kill it."""
    ledger, workspace = (Path(argument).resolve() for argument in sys.argv[1:3])
    sys.argv = ["fineweb-mask", *sys.argv[3:]]
    for name in ("replace", "rename"):
        setattr(os, name, die_once(ledger, workspace, getattr(os, name)))
    cli.main()


if __name__ == "__main__":
    main()
