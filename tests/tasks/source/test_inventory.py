"""What a source holds is told in a few lines: files, columns, keys in paths, and what is not read."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from fineweb_mask.tasks.source import sample
from fineweb_mask.tasks.source.columns import settle
from fineweb_mask.tasks.source.discovery import find_source
from fineweb_mask.tasks.source.inventory import Inventory, notes_of, take_inventory
from fineweb_mask.tasks.workspace.references import NO_FILE
from tests.tasks.source_files import settings, write_lines, write_table


def inventory(path: Path, **changes: Any) -> Inventory:
    source = settings(path, **changes)
    found = find_source(source)
    return take_inventory(found._replace(shards=settle(found.shards, source)), source)


def folder(path: Path) -> Path:
    path.mkdir(parents=True)
    return path


def test_a_plain_source_takes_two_lines(tmp_path: Path) -> None:
    for name in "ab":
        write_table(tmp_path / f"{name}.parquet", text=["a"], id=["1"], score=[0.5])
    (tmp_path / "_SUCCESS").touch()
    found = inventory(tmp_path)
    assert list(found.lines()) == [
        ("reads", "2 files, 0.0 MiB: 2 .parquet"),
        ("columns", "text (string), id (string), score (double)"),
        ("left out", "hidden: 1 (_SUCCESS)"),
    ]
    assert list(found.worries()) == []


def test_all_that_differs_between_files_is_told(tmp_path: Path) -> None:
    en, fr = folder(tmp_path / "language=en" / "shard=7"), folder(tmp_path / "language=fr")
    write_table(en / "a.parquet", text=["a"], meta=pa.array([{"a": 1}]), n=[1])
    write_table(fr / "b.parquet", text=["a"], meta=["x"], n=[0.5], language=["de"])
    write_lines(tmp_path / "c.JSONL.gz", ['{"text": "a", "n": true}', '{"text": "b", "url": "u"}'], ".gz")
    for name in ("empty.json", "d.csv", "e.csv", "LICENSE", ".crc"):
        (tmp_path / name).write_text("" if "empty" in name else "x")
    (tmp_path / "away.jsonl").symlink_to(tmp_path / "nowhere")
    found = inventory(tmp_path)
    assert list(found.lines()) == [
        ("reads", "5 files, 0.0 MiB: 2 .parquet, 1 .jsonl, 1 .jsonl.gz, 1 .json"),
        (
            "columns",
            "text (string); n (bool, int64, double); url (string); meta (struct<a: int64>, string); language (string)",
        ),
        ("in paths", "language=en, fr; shard=7"),
    ]
    assert list(found.worries()) == [
        (
            "left out",
            ".csv: 2 (d.csv, e.csv); hidden: 1 (.crc); without an ending: 1 (LICENSE): convert or unpack them; with "
            "source.format set, any name is read",
        ),
        ("empty", "2 files, or links that lead nowhere (away.jsonl, empty.json)"),
        (
            "types",
            "n is bool in 1 (c.JSONL.gz), int64 in 1 (language=en/shard=7/a.parquet), double in 1 "
            "(language=fr/b.parquet), and kept as text; meta is struct<a: int64> in 1 (language=en/shard=7/a.parquet), "
            "string in 1 (language=fr/b.parquet), and kept as text",
        ),
        ("not in all", "of 3 files: url in 1, meta in 2, language in 2"),
        ("no key", "language in the path of away.jsonl, c.JSONL.gz, empty.json"),
        ("key lost", "shard: the pipeline has columns of these names; rename the folders"),
    ]
    again = Inventory.model_validate_json(found.model_dump_json())
    assert list(again.worries()) == list(found.worries())


def test_long_lists_are_cut(tmp_path: Path) -> None:
    for number in range(30):
        write_table(folder(tmp_path / f"k{number}={number}") / "a.parquet", **{"text": ["a"], f"c{number}": ["x"]})
    found = inventory(tmp_path)
    lines = [line for _, line in (*found.lines(), *found.worries())]
    assert max(map(len, lines)) < 1_000
    assert sum("others" in line for line in lines) >= 3


def test_only_some_files_are_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(5):
        write_table(tmp_path / f"{number}.parquet", text=["a"])
    monkeypatch.setattr(sample, "FILES", 2)
    sample.known_columns.cache_clear()
    assert inventory(tmp_path).looked_at == 2
    assert sample.known_columns.cache_info().misses == 2


def test_files_that_cannot_be_read_have_no_columns(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    (tmp_path / "b.jsonl").write_bytes(b"{broken\n")
    found = inventory(tmp_path)
    assert (found.looked_at, found.columns, found.files) == (0, {}, {".parquet": 1, ".jsonl": 1})


def test_what_ingest_and_scorers_found_is_summed_over_the_files() -> None:
    details = [
        {},
        {"keys_differ": {"language": 2}, "lost": {"token_count": 1_000}, "charsets": {"utf-8": 2, "none": 1}},
        {"keys_differ": {"language": 3}, "repeated_ids": 4, "charsets": {"utf-8": 1_000}},
        {"lost": {"token_count": 1}, "not_kept": ["late"], "sidecars": {"dclm": "place", "edu": "id"}},
    ]
    files = [NO_FILE.model_copy(update={"name": f"f{at}", "details": one}) for at, one in enumerate(details)]
    assert notes_of(files[:1]) == []
    assert notes_of(files) == [
        "the column 'language' has another value than the path in 5 rows of f1, f2: the column's is taken",
        "columns of f3 are not kept, since no file that was looked at has them: late; name them in "
        "source.extra_columns",
        "1,001 values of 'token_count' are left empty: of another type, or none that fit",
        "the annotations 'dclm' of 1 files are joined by place, not by id",
        "1,003 pages by charset: utf-8 1,002; none 1",
        "4 rows have an id that an earlier row of their file has, in f2",
    ]


def test_other_spellings_and_indexes_of_pandas_are_told(tmp_path: Path) -> None:
    write_table(tmp_path / "a.parquet", text=["a"], Source=["x"], __index_level_0__=[0])
    write_table(tmp_path / "b.parquet", Text=["a"], source=["x"])
    found = inventory(tmp_path)
    assert list(found.columns) == ["text", "Source", "__index_level_0__"]
    assert list(found.worries()) == [
        ("not in all", "of 2 files: __index_level_0__ in 1"),
        ("spelling", "text is Text in 1 (b.parquet); Source is source in 1 (b.parquet)".replace("; ", ", ")),
        ("no column", "__index_level_0__ of pandas: name it in source.extra_columns to keep it"),
    ]
    assert not inventory(tmp_path, extra_columns=["Source", "__index_level_0__"]).indexes.number
