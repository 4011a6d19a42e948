"""What was read: the lines of the inventory, what ingest found, and columns that are kept as text."""

from fineweb_mask.tasks.reporting.sections.source import what_was_read
from fineweb_mask.tasks.source.discovery import find_source
from fineweb_mask.tasks.source.inventory import take_inventory
from fineweb_mask.tasks.workspace.references import NO_FILE, ShardFiles
from tests.tasks.source_files import settings, write_table


def shard(name, **details):
    return ShardFiles(documents=NO_FILE.model_copy(update={"name": name, "details": details}))


def test_columns_whose_types_differ_are_named_with_their_types():
    types = [{"meta": "struct<a: int64>"}, {}, {"meta": "list<item: string>", "n": "binary"}]
    meta, n = what_was_read(None, [shard(str(one), as_text=one) for one in types]).text
    assert meta.startswith("The column 'meta' is kept as text")
    assert meta.endswith("list<item: string> in 1, struct<a: int64> in 1.")
    assert n.endswith("binary in 1.")
    assert not what_was_read(None, [shard("b")]).text


def test_files_and_what_is_left_out_stand_in_a_table(tmp_path):
    write_table(tmp_path / "a.parquet", text=["a"])
    (tmp_path / "b.csv").touch()
    source = settings(tmp_path)
    section = what_was_read(take_inventory(find_source(source), source), [shard("a", repeated_ids=2)])
    [table] = section.tables
    assert [about for about, _ in table.rows] == ["reads", "columns", "left out"]
    assert "b.csv" in table.rows[2][1]
    assert section.text == ["2 rows have an id that an earlier row of their file has, in a"]
