"""Record what built a product: the version and commit of this code, Python and the packages."""

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

RECORDED_PACKAGES = tuple(
    "fineweb-mask duckdb fasttext numpy prefect pyarrow sentence-transformers tokenizers torch transformers".split()
)


def code_and_packages() -> dict[str, Any]:
    """Return the versions of this code, of Python and of the packages that affect results."""
    return {
        "code": {"version": version("fineweb-mask"), **code_commit()},
        "python": sys.version.split()[0],
        "packages": {name: version(name) for name in RECORDED_PACKAGES},
    }


def code_commit() -> dict[str, Any]:
    """Return this checkout's git commit and whether it has uncommitted changes; nulls outside a checkout."""
    root = Path(__file__).resolve().parents[3]
    unknown = {"commit": None, "dirty": None}
    try:
        top, commit = _git(root, "rev-parse", "--show-toplevel", "HEAD").splitlines()
        if Path(top) != root:
            return unknown
        return {"commit": commit, "dirty": bool(_git(root, "status", "--porcelain"))}
    except (OSError, subprocess.CalledProcessError, ValueError):
        return unknown


def _git(root: Path, *arguments: str) -> str:
    command = ["git", "-C", str(root), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=30).stdout  # noqa: S603
