"""Open DuckDB within a memory limit, with a folder for what does not fit into memory."""

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb

from fineweb_mask.models.errors import WorkspaceError
from fineweb_mask.tasks.storage.atomic import disk_errno, disk_errors_explained, make_folder, space_left

MEMORY = re.compile(r"([\d.]+)\s*(\w+)")
UNCHANGED = "what was finished before is unchanged"


@contextmanager
def spilling_database(
    spill: Path,
    memory_limit: str,
    work: str,
    *,
    at_once: int = 1,
    setting: str = "",
    file: str = "",
) -> Iterator[duckdb.DuckDBPyConnection]:
    """Yield a database that spills to a folder, which is emptied before and removed at the end.

    Parameters
    ----------
    spill
        The folder.
    memory_limit
        The setting `materialize.memory_limit`, such as 2GB.
    work
        What is done, such as the stage and the shard, for messages.
    at_once
        Databases that share the memory and the threads.
    setting
        The setting that names the folder's parent, if there is one.
    file
        Name of the database's file in the folder; without a name, it is in memory.

    Raises
    ------
    WorkspaceError
        If the memory limit is too little, the system refuses memory that it would allow, or the disk is full or
        read-only.
    """
    elsewhere = f", or set {setting} to a folder on another disk" if setting else ""
    shutil.rmtree(spill, ignore_errors=True)  # of a run that was killed
    with disk_errors_explained(spill):
        make_folder(spill)
    config: dict[str, str | bool | int | float | list[str]] = {
        "memory_limit": share_of(memory_limit, at_once),
        "temp_directory": str(spill),
    }
    if at_once > 1:
        config["threads"] = max(1, (os.cpu_count() or 1) // at_once)
    try:
        with duckdb.connect(str(spill / file) if file else ":memory:", config=config) as connection:
            # DuckDB's progress bar is on in terminals; in a notebook without ipywidgets it cannot be set
            [shown] = connection.execute("SELECT current_setting('enable_progress_bar')").fetchall()
            if shown[0]:
                connection.execute("SET enable_progress_bar = false")
            yield connection
    except duckdb.OutOfMemoryException as error:
        raise WorkspaceError(f"{work}: {too_little(error, spill, memory_limit, elsewhere)}; {UNCHANGED}") from error
    except duckdb.Error as error:  # also a transaction that fails to commit
        if (number := disk_errno(error)) is None:
            raise
        problem = f"{os.strerror(number)}{space_left(number, spill.parent)}: free some space there{elsewhere}"
        raise WorkspaceError(f"{work}: {spill.parent}: {problem}; {UNCHANGED}") from error
    finally:
        shutil.rmtree(spill, ignore_errors=True)


def too_little(error: duckdb.OutOfMemoryException, spill: Path, memory_limit: str, elsewhere: str = "") -> str:
    """Return what was too small: the disk, what the system allows, or the setting."""
    if "max_temp_directory_size" in str(error):
        return f"{spill.parent}: no space is left to spill to: free some there{elsewhere}"
    if "used)" not in str(error):  # DuckDB tells how much of its own limit is used, if that is reached
        return (
            f"the system refuses memory that materialize.memory_limit, {memory_limit}, would allow: raise the limit of "
            "the process (ulimit -v), end other processes, or set materialize.memory_limit to less"
        )
    return f"materialize.memory_limit: {memory_limit} is too little for DuckDB: raise it, or lower engine.workers"


def share_of(memory_limit: str, databases: int) -> str:
    """Return the share of the memory that each of several databases has.

    >>> share_of("2GB", 4)
    '0.5GB'
    """
    found = MEMORY.fullmatch(memory_limit)
    if found is None or databases == 1:
        return memory_limit
    return f"{float(found[1]) / databases:g}{found[2]}"
