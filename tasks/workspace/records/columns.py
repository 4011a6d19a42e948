"""Remember which columns the documents of a corpus have, so that they stay the same while it grows."""

import json
from collections.abc import Iterable
from typing import Any

from fineweb_mask.tasks.storage.atomic import atomic_write
from fineweb_mask.tasks.storage.remote.copies import read_text
from fineweb_mask.tasks.workspace.workspace import Workspace

Columns = tuple[tuple[str, str], ...]
"""Names and types."""
Files = Iterable[tuple[str, str]]
"""Names and fingerprints of source files."""
REMEMBERED = 64
"""Files of which one is still there, unchanged, if the corpus is the same."""


def remembered_columns(workspace: Workspace, settings: str, files: Files) -> Columns | None:
    """Return the columns that were fixed by settings of this digest for the corpus of these files; else None."""
    record = _records(workspace).get(settings)
    if record is None or not {tuple(file) for file in record["files"]}.intersection(files):
        return None
    return tuple((name, kind) for name, kind in record["columns"])


def remember_columns(workspace: Workspace, settings: str, files: Files, columns: Columns) -> None:
    """Remember the columns that were fixed by settings of this digest, unless they are remembered."""
    files = list(files)
    with workspace.alone():
        if remembered_columns(workspace, settings, files) is None:
            some = files[:: max(1, -(-len(files) // REMEMBERED))]
            records = _records(workspace) | {settings: {"files": some, "columns": columns}}
            with atomic_write(workspace.columns) as partial:
                partial.write_text(json.dumps(records, indent=1) + "\n")


def _records(workspace: Workspace) -> dict[str, Any]:
    try:
        found = json.loads(read_text(workspace.columns))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
