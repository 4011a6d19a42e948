"""DuckDB within a memory limit: shared by several, explained when it is too little, and without bars."""

import subprocess
import sys
from pathlib import Path

import pytest

from fineweb_mask.models.errors import WorkspaceError
from fineweb_mask.tasks.catalog.spilling import share_of, spilling_database


def test_databases_at_once_share_the_memory() -> None:
    assert [share_of("2GB", 1), share_of("2GB", 2), share_of("1.5 GiB", 3)] == ["2GB", "1GB", "0.5GiB"]


def test_what_is_spilled_is_removed_and_no_bar_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    spill = tmp_path / "spill"
    spill.mkdir()
    (spill / "of a killed run").write_text("x")
    with spilling_database(spill, "1GB", "partition 00000", at_once=2, file="chosen.duckdb") as connection:
        assert {path.name for path in spill.iterdir()} >= {"chosen.duckdb"}
        shown = "SELECT current_setting('enable_progress_bar'), current_setting('threads')"
        assert connection.execute(shown).fetchall() == [(False, 2)]
    assert not spill.exists()


def test_too_little_memory_is_told_with_what_was_done(tmp_path: Path) -> None:
    with (
        pytest.raises(WorkspaceError, match=r"^pairs 0-of-1: materialize\.memory_limit: 1MB is too little for DuckDB"),
        spilling_database(tmp_path / "spill", "1MB", "pairs 0-of-1") as connection,
    ):
        connection.execute("CREATE TABLE t AS SELECT repeat('0', 100000000) AS text")
    assert not list(tmp_path.iterdir())


@pytest.mark.long
def test_memory_that_the_system_refuses_is_not_the_setting_s_fault() -> None:
    """DuckDB's own limit is reached in one case, that of the address space in the other.

    One allocation of a gigabyte fails: were many small ones to fill the address space, Python had none left to go on.
    """
    script = """
import duckdb, resource, sys
from pathlib import Path
from fineweb_mask.tasks.catalog.spilling import too_little

limit, spare = sys.argv[1:]
connection = duckdb.connect(config={"memory_limit": limit, "temp_directory": "", "threads": 1})
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + int(spare), resource.RLIM_INFINITY))
try:
    connection.execute("CREATE TABLE t AS SELECT repeat('0', 1000000000) AS text")
except duckdb.OutOfMemoryException as error:
    print(too_little(error, Path("spill"), limit))
"""
    said = {
        limit: subprocess.run(
            [sys.executable, "-c", script, limit, str(spare)], capture_output=True, text=True, timeout=300, check=True
        ).stdout
        for limit, spare in {"20MB": 2**32, "4GB": 2**28}.items()
    }
    assert said["20MB"].startswith("materialize.memory_limit: 20MB is too little for DuckDB: raise it")
    assert said["4GB"].startswith("the system refuses memory that materialize.memory_limit, 4GB, would allow")
