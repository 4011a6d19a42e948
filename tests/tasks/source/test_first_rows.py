"""What the first rows of a source say about it."""

import gzip
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fineweb_mask.models.errors import SettingsError
from fineweb_mask.tasks.source.columns import ROWS
from fineweb_mask.tasks.source.first_rows import describe


def write(path: Path, **columns: list[object]) -> str:
    pq.write_table(pa.table(columns), path)
    return str(path)


def test_a_file_of_parquet(tmp_path: Path) -> None:
    columns: dict[str, list[object]] = {
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
    found = describe(write(tmp_path / "a.parquet", **columns))
    assert (found.rows, found.is_counted, found.looked_at) == (10, True, 10)
    assert (found.text_column, found.id_column, found.median_chars, found.dumps) == ("content", "uid", 4, 2)
    assert found.languages == [("de", 0.9), ("en", 0.1)]
    assert found.scores == [("edu_score", 0.5, 2.0, pytest.approx(0.1)), ("int_score", 1.0, 2.0, 0.0)]


def test_without_a_usual_name_the_longest_texts_are_the_texts(tmp_path: Path) -> None:
    columns = {"label": ["a", "b"], "prose": ["long text", "longer text"], "id": ["1", "1"]}
    found = describe(write(tmp_path / "a.parquet", **columns))
    assert (found.text_column, found.id_column, found.repeated_ids) == ("prose", None, 1)


def test_rows_of_json_lines_are_estimated_and_bad_ones_left_out(tmp_path: Path) -> None:
    lines = [json.dumps({"text": "word " * 20, "quality": number % 7}) for number in range(5 * ROWS)]
    lines[3] = "{broken"
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    with gzip.open(tmp_path / "b.jsonl.gz", "wt") as file:
        file.write("\n".join(lines[:10]))
    found = describe(str(tmp_path))
    assert not found.is_counted
    assert 4 * ROWS < found.rows < 6 * ROWS
    assert [score.name for score in found.scores] == ["quality"]


def test_files_that_cannot_be_read_are_passed_over_and_nothing_else_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"PAR1 no parquet")
    with pytest.raises(SettingsError, match="has a row that can be read: give files with documents"):
        describe(str(tmp_path))
    write(tmp_path / "b.parquet", text=["a text"])
    assert describe(str(tmp_path)).looked_at == 1
    write(tmp_path / "b.parquet", number=[1])
    with pytest.raises(SettingsError, match=r"no column of .* holds texts, its columns are number"):
        describe(str(tmp_path))
