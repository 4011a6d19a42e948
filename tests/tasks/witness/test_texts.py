"""Texts of files that are not part of the corpus."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fineweb_mask.tasks.source.discovery import find_files
from fineweb_mask.tasks.witness import texts
from fineweb_mask.tasks.witness.texts import texts_of
from fineweb_mask.tasks.workspace.job import BadShardError
from tests.tasks.conftest import parts


def test_parquet_and_lines_are_read_alike(tmp_path, make_parquet, make_document):
    rows = [make_document(0), make_document(1, text=None), make_document(2, text="  "), make_document(3)]
    make_parquet(tmp_path / "one" / "a.parquet", rows)
    lines = tmp_path / "two" / "a.jsonl"
    lines.parent.mkdir()
    lines.write_text("".join(json.dumps({"text": row["text"]}) + "\n" for row in rows))
    expected = [rows[0]["text"], rows[3]["text"]]
    assert [list(texts_of(find_files(str(tmp_path / name), "path"))) for name in ("one", "two")] == [expected, expected]


def test_a_dataset_of_this_package_is_read_without_its_provenance(built):
    expected = sorted(row["text"] for path in parts(built.workspace) for row in pq.read_table(path).to_pylist())
    assert sorted(texts_of(find_files(str(built.workspace.dataset), "path"))) == expected


def test_a_file_without_a_column_of_texts_says_which_one_it_must_have(tmp_path):
    pq.write_table(pa.table({"body": ["a text"]}), tmp_path / "books.parquet")
    with pytest.raises(BadShardError, match=r"books\.parquet: it has no column 'text': .* rename the column"):
        list(texts_of(find_files(str(tmp_path), "path")))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("mine=data/books.parquet", ("mine", "data/books.parquet")),
        ("data/year=2024/a.jsonl.gz", ("a", "data/year=2024/a.jsonl.gz")),
        ("folder/", ("folder", "folder/")),
    ],
)
def test_a_target_has_the_name_of_its_file_or_one_of_its_own(monkeypatch, text, expected):
    monkeypatch.setattr(texts, "find_files", lambda path, _: [path])
    name, path = expected
    assert texts.find_targets([text]) == {name: [path]}
