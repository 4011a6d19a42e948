"""What a source holds is told in a few lines, and what its first rows say about it."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from fineweb_mask.models.errors import SettingsError
from fineweb_mask.tasks.source.columns import ROWS, settle
from fineweb_mask.tasks.source.discovery import find_source
from fineweb_mask.tasks.source.inventory import Inventory, describe, notes_of, take_inventory
from fineweb_mask.tasks.workspace.references import NO_FILE
from tests.tasks.source_files import settings, write_lines, write_table


def inventory(path: Path, **changes: Any) -> Inventory:
    source = settings(path, **changes)
    found = find_source(source)
    return take_inventory(found._replace(shards=settle(found.shards, source)), source)


def test_a_plain_source_takes_two_lines(tmp_path: Path) -> None:
    for name in "ab":
        write_table(tmp_path / f"{name}.parquet", text=["a"], id=["1"], score=[0.5])
    (tmp_path / "_SUCCESS").touch()
    found = inventory(tmp_path)
    assert found.lines == [
        ("reads", "2 files, 0.0 MiB: 2 .parquet"),
        ("columns", "text (string), id (string), score (double)"),
        ("left out", "hidden: 1 (_SUCCESS)"),
    ]
    assert found.worries == []


def test_all_that_differs_between_files_is_told(tmp_path: Path) -> None:
    write_table(tmp_path / "language=en/shard=7/a.parquet", text=["a"], meta=pa.array([{"a": 1}]), n=[1])
    write_table(tmp_path / "language=fr/b.parquet", text=["a"], meta=["x"], n=[0.5], language=["de"])
    write_lines(tmp_path / "c.JSONL.gz", ['{"text": "a", "n": true}', '{"text": "b", "url": "u"}'], ".gz")
    for name in ("empty.json", "d.csv", "e.csv", "LICENSE", ".crc"):
        (tmp_path / name).write_text("" if "empty" in name else "x")
    (tmp_path / "away.jsonl").symlink_to(tmp_path / "nowhere")
    found = inventory(tmp_path)
    assert found.lines == [
        ("reads", "5 files, 0.0 MiB: 2 .parquet, 1 .jsonl, 1 .jsonl.gz, 1 .json"),
        (
            "columns",
            "text (string); n (bool, int64, double); url (string); meta (struct<a: int64>, string); language (string)",
        ),
        ("in paths", "language=en, fr; shard=7"),
    ]
    assert found.worries == [
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
        ("not in all", "url in 1 of 3 files, meta in 2 of 3 files, language in 2 of 3 files"),
        ("key lost", "shard: the pipeline has columns of these names; rename the folders"),
    ]
    assert Inventory.model_validate_json(found.model_dump_json()) == found


def test_long_lists_are_cut(tmp_path: Path) -> None:
    for number in range(30):
        write_table(tmp_path / f"k{number}={number}/a.parquet", **{"text": ["a"], f"c{number}": ["x"]})
    found = inventory(tmp_path)
    lines = [line for _, line in (*found.lines, *found.worries)]
    assert max(map(len, lines)) < 1_000
    assert sum("others" in line for line in lines) >= 3


def test_what_ingest_and_scorers_found_is_summed_over_the_files() -> None:
    details = [
        {},
        {"keys_differ": {"language": 2}, "lost": {"token_count": 1_000}},
        {"keys_differ": {"language": 3}, "repeated_ids": 4},
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
        "4 rows have an id that an earlier row of their file has, in f2",
    ]


def test_other_spellings_are_told(tmp_path: Path) -> None:
    write_table(tmp_path / "a.parquet", text=["a"], Source=["x"])
    write_table(tmp_path / "b.parquet", Text=["a"], source=["x"])
    found = inventory(tmp_path)
    assert found.lines[1] == ("columns", "text (string), Source (string)")
    assert found.worries == [
        ("spelling", "text is Text in 1 (b.parquet), Source is source in 1 (b.parquet)"),
    ]


def test_the_first_rows_tell_columns_lengths_languages_and_scores(tmp_path: Path) -> None:
    columns = {
        "title": ["t"] * 10,
        "content": ["x" * length for length in range(10)],
        "uid": list(range(10)),
        "language": ["de"] * 9 + ["en"],
        "dump": ["d1"] * 5 + ["d2"] * 5,
        "int_score": [1, 2] * 5,
        "edu_score": [0.5, 1.5, None, *[2.0] * 7],
        "language_score": [0.9, 0.8] * 5,
        "nested": [{"score": 1}] * 10,
    }
    found = describe(str(write_table(tmp_path / "a.parquet", **columns)))
    assert (found.rows, found.is_counted, found.looked_at) == (10, True, 10)
    assert (found.text_column, found.id_column, found.median_chars, found.dumps) == ("content", "uid", 4, 2)
    assert found.languages == [("de", 0.9), ("en", 0.1)]
    assert found.scores == [("edu_score", 0.5, 2.0, pytest.approx(0.1)), ("int_score", 1.0, 2.0, 0.0)]


def test_without_a_usual_name_the_longest_texts_are_the_texts(tmp_path: Path) -> None:
    columns = {"label": ["a", "b"], "prose": ["long text", "longer text"], "id": ["1", "1"]}
    found = describe(str(write_table(tmp_path / "a.parquet", **columns)))
    assert (found.text_column, found.id_column, found.repeated_ids) == ("prose", None, 1)


def test_rows_of_json_lines_are_estimated_and_bad_ones_left_out(tmp_path: Path) -> None:
    lines = [json.dumps({"text": "word " * 20, "quality": number % 7}) for number in range(5 * ROWS)]
    lines[3] = "{broken"
    write_lines(tmp_path / "a.jsonl", lines)
    write_lines(tmp_path / "b.jsonl.gz", lines[:10], ".gz")
    found = describe(str(tmp_path))
    assert not found.is_counted
    assert 4 * ROWS < found.rows < 6 * ROWS
    assert [score.name for score in found.scores] == ["quality"]


def test_files_that_cannot_be_read_are_passed_over_and_nothing_else_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"PAR1 no parquet")
    with pytest.raises(SettingsError, match="has a row that can be read: give files with documents"):
        describe(str(tmp_path))
    write_table(tmp_path / "b.parquet", text=["a text"])
    assert describe(str(tmp_path)).looked_at == 1
    write_table(tmp_path / "b.parquet", number=[1])
    with pytest.raises(SettingsError, match=r"no column of .* holds texts, its columns are number"):
        describe(str(tmp_path))
