"""DuckDB within a memory limit: explained when it is too little, and without bars."""

import duckdb
import pytest

from fineweb_mask.models.errors import WorkspaceError
from fineweb_mask.tasks.catalog.spilling import spilling_database, too_little


def test_what_is_spilled_is_removed_and_no_bar_is_shown(tmp_path):
    spill = tmp_path / "spill"
    spill.mkdir()
    (spill / "of a killed run").write_text("x")
    with spilling_database(spill, "1GB", "diff", "diff.duckdb") as connection:
        assert {path.name for path in spill.iterdir()} >= {"diff.duckdb"}
        assert connection.execute("SELECT current_setting('enable_progress_bar')").fetchall() == [(False,)]
    assert not spill.exists()


def test_too_little_memory_is_told_with_what_was_done(tmp_path):
    with (
        pytest.raises(WorkspaceError, match=r"^pairs 0-of-1: engine\.memory_limit: 1MB is too little for DuckDB"),
        spilling_database(tmp_path / "spill", "1MB", "pairs 0-of-1") as connection,
    ):
        connection.execute("CREATE TABLE t AS SELECT repeat('0', 100000000) AS text")
    assert not list(tmp_path.iterdir())


def test_what_is_too_small_is_told(tmp_path):
    """The disk, what the system allows, or the setting: as DuckDB says it."""
    for text, said in (
        ("Out of Memory Error: failed to offload (max_temp_directory_size)", "no space is left to spill to"),
        ("Out of Memory Error: Allocation failure", "the system refuses memory that engine.memory_limit"),
        ("Out of Memory Error: (18 MiB/19 MiB used)", "engine.memory_limit: 1GB is too little for DuckDB: raise"),
    ):
        assert said in too_little(duckdb.OutOfMemoryException(text), tmp_path / "spill", "1GB")
