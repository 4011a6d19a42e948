"""Open DuckDB: without its progress bar, and within a memory limit with a folder for what does not fit."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb

from fineweb_mask.models.errors import WorkspaceError
from fineweb_mask.tasks.storage.atomic import disk_errors_explained

UNCHANGED = "what was finished before is unchanged"


def open_database(file: str = ":memory:", **config: str) -> duckdb.DuckDBPyConnection:
    """Return a database with these options, by default in memory, that shows no progress bar."""
    connection = duckdb.connect(file, config={**config})
    # DuckDB's progress bar is on in terminals; in a notebook without ipywidgets it cannot be set
    [shown] = connection.execute("SELECT current_setting('enable_progress_bar')").fetchall()
    if shown[0]:
        connection.execute("SET enable_progress_bar = false")
    return connection


@contextmanager
def spilling_database(
    spill: Path,
    memory_limit: str,
    work: str,
    file: str = "",
) -> Iterator[duckdb.DuckDBPyConnection]:
    """Yield a database that spills to a folder, which is emptied before and removed at the end.

    Parameters
    ----------
    spill
        The folder.
    memory_limit
        The setting `engine.memory_limit`, such as 2GB.
    work
        What is done, such as the stage and the shard, for messages.
    file
        Name of the database's file in the folder; without a name, it is in memory.

    Raises
    ------
    WorkspaceError
        If the memory limit is too little, the system refuses memory that it would allow, or the disk is full or
        read-only.
    """
    shutil.rmtree(spill, ignore_errors=True)  # of a run that was killed
    place = str(spill / file) if file else ":memory:"
    try:
        with disk_errors_explained(spill.parent, work):  # also of a transaction that fails to commit
            spill.mkdir(parents=True, exist_ok=True)
            with open_database(place, memory_limit=memory_limit, temp_directory=str(spill)) as connection:
                yield connection
    except duckdb.OutOfMemoryException as error:
        raise WorkspaceError(f"{work}: {too_little(error, spill, memory_limit)}; {UNCHANGED}") from error
    finally:
        shutil.rmtree(spill, ignore_errors=True)


def too_little(error: duckdb.OutOfMemoryException, spill: Path, memory_limit: str) -> str:
    """Return what was too small: the disk, what the system allows, or the setting."""
    if "max_temp_directory_size" in str(error):
        return f"{spill.parent}: no space is left to spill to: free some there"
    if "used)" not in str(error):  # DuckDB tells how much of its own limit is used, if that is reached
        return (
            f"the system refuses memory that engine.memory_limit, {memory_limit}, would allow: raise the limit of "
            "the process (ulimit -v), end other processes, or set engine.memory_limit to less"
        )
    return f"engine.memory_limit: {memory_limit} is too little for DuckDB: raise it, or lower engine.workers"
