"""Open a DuckDB database for the rows of one bucket, within the memory limit, one at a time."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

import duckdb

from fineweb_mask.models.errors import WorkspaceError
from fineweb_mask.models.runtime.stopping import raise_if_stopped
from fineweb_mask.tasks.storage.atomic import make_folder
from fineweb_mask.tasks.storage.database import hide_progress
from fineweb_mask.tasks.workspace.workspace import Workspace

_one_at_a_time = Lock()  # in a process


@contextmanager
def own_turn() -> Iterator[None]:
    """Wait until no other bucket is compared in this process: the memory limit is that of all of them."""
    while not _one_at_a_time.acquire(timeout=0.1):
        raise_if_stopped()
    try:
        yield
    finally:
        _one_at_a_time.release()


@contextmanager
def database(workspace: Workspace, memory_limit: str) -> Iterator[duckdb.DuckDBPyConnection]:
    """Yield a database in memory, which spills into a folder of its own; that of a killed run is a leftover.

    Raises
    ------
    WorkspaceError
        If the memory limit is too little for DuckDB.
    """
    make_folder(workspace.cache)
    spill = tempfile.mkdtemp(prefix=".dedup-", suffix=".partial", dir=workspace.cache)
    config: dict[str, str | bool | int | float | list[str]] = {
        "memory_limit": memory_limit,
        "temp_directory": spill,
        "preserve_insertion_order": False,
    }
    try:
        with duckdb.connect(config=config) as connection:
            hide_progress(connection)
            yield connection
    except duckdb.OutOfMemoryException as error:
        raise WorkspaceError(
            f"materialize.memory_limit: {memory_limit} is too little for DuckDB to find duplicates, or no space is "
            f"left to spill to in {workspace.cache}: raise it, or free some space there ({error})"
        ) from error
    finally:
        shutil.rmtree(spill, ignore_errors=True)
