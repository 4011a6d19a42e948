"""What was read: the lines of the inventory, and what ingest found."""

from fineweb_mask.tasks.reporting.sections.source import what_was_read
from fineweb_mask.tasks.source.discovery import find_source
from fineweb_mask.tasks.source.inventory import take_inventory
from fineweb_mask.tasks.workspace.references import NO_FILE, ShardFiles
from tests.tasks.source_files import settings, write_table


def shard(name, **details):
    return ShardFiles(documents=NO_FILE.model_copy(update={"name": name, "details": details}))


def test_files_and_what_is_left_out_stand_in_a_table(tmp_path):
    write_table(tmp_path / "a.parquet", text=["a"])
    (tmp_path / "b.csv").touch()
    source = settings(tmp_path)
    section = what_was_read(take_inventory(find_source(source), source), [shard("a", repeated_ids=2)])
    [table] = section.tables
    assert [about for about, _ in table.rows] == ["reads", "columns", "left out"]
    assert "b.csv" in table.rows[2][1]
    assert section.text == ["2 rows have an id that an earlier row of their file has, in a"]
