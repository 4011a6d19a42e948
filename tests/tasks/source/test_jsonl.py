"""Read JSON Lines: column types, and problems of single lines."""

import json
import tracemalloc
from pathlib import Path

import pyarrow as pa
import pytest

from fineweb_mask.tasks.source import reader
from fineweb_mask.tasks.source.discovery import discover
from fineweb_mask.tasks.source.jsonl import jsonl_records
from fineweb_mask.tasks.source.reader import ShardReader
from fineweb_mask.tasks.workspace.job import BadShardError
from tests.tasks.source_files import COMPRESSORS, read, settings, write_lines


def test_json_lines_equal_the_parquet_of_the_same_rows(tmp_path, make_document, make_parquet):
    extra = pa.field("score", pa.float64())
    odd = make_document(5, text="née\u2028\x00🎉\r\n\ttail ", language=None, token_count=None, dump=None)
    rows = [row | {"score": index / 2} for index, row in enumerate([*map(make_document, range(4)), odd])]
    expected, _ = read(settings(make_parquet(tmp_path / "rows.parquet", rows, (extra,))))
    table, problems = read(settings(write_lines(tmp_path / "rows.jsonl", [json.dumps(row) for row in rows])))
    assert table.equals(expected)
    assert table.num_columns == 10
    assert problems == [None] * len(rows)


def test_problems_are_named_line_by_line(tmp_path: Path) -> None:
    of_lines: list[tuple[str, str | None]] = [
        ('{"text": "good"}', None),
        ("{broken", "broken_row"),
        ("[1, 2]", "broken_row"),
        ('{"text": 7}', "wrong_type"),
        ('{"text": ["nested"]}', "wrong_type"),
        ('{"text": "good", "token_count": true}', None),
        ('{"text": "good", "language_score": 1}', None),
        ('{"text": "good", "language": 3}', None),
        (r'{"text": "lone \ud800 surrogate"}', "invalid_utf8"),
        (r'{"text": "good", "url": "\udfff"}', "invalid_utf8"),
        (r'{"text": "good", "\ud800": 1}', "invalid_utf8"),
        ('{"text": null}', None),
        ("[" * 100_000, "broken_row"),
        ('{"text": "\udcff"}', "broken_row"),
        (f'{{"text": "good", "token_count": {2**63}}}', None),
        (r'{"text": "a pair \ud83c\udf89 is fine"}', None),
    ]
    path = tmp_path / "a.jsonl"
    path.write_bytes("\n \n".join(line for line, _ in of_lines).encode(errors="surrogateescape"))
    table, problems = read(settings(path))
    assert problems == [problem for _, problem in of_lines]
    assert table["text"].to_pylist()[-1] == "a pair 🎉 is fine"
    assert table["language_score"].to_pylist()[6] == 1.0


def test_nested_and_mixed_extra_columns_become_json_text(tmp_path: Path) -> None:
    lines = [
        '{"text": "a", "id": 12, "meta": {"k": ["é"]}, "mixed": 1, "count": 1, "flag": true, "ratio": 1}',
        '{"text": "b", "id": "x", "meta": null, "mixed": "one", "count": 2, "ratio": 0.5}',
    ]
    table, problems = read(settings(write_lines(tmp_path / "a.jsonl", lines)))
    assert problems == [None, None]
    assert table.select(["id", "meta", "mixed", "count", "flag", "ratio"]).to_pydict() == {
        "id": ["12", "x"],
        "meta": ['{"k": ["é"]}', None],
        "mixed": ["1", "one"],
        "count": [1, 2],
        "flag": [True, None],
        "ratio": [1.0, 0.5],
    }


@pytest.mark.parametrize("suffix", COMPRESSORS)
def test_a_line_without_end_is_never_held_whole(tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ShardReader, "largest", 2**16)
    path = tmp_path / f"bomb.jsonl{suffix}"
    path.write_bytes(COMPRESSORS[suffix](b'{"text": "a"}\n{"text": "' + bytes(16 * 2**20) + b'"}\n{"text": "b"}\n'))
    tracemalloc.start()
    try:
        table, problems = read(settings(path))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (table["text"].to_pylist(), problems) == (["a", None, "b"], [None, "too_large", None])
    assert peak < 8 * 2**20


def test_a_large_whole_number_among_fractions_is_the_nearest_fraction(tmp_path: Path) -> None:
    lines = ['{"text": "a", "x": 0.5}', f'{{"text": "b", "x": {2**53 + 1}}}', f'{{"text": "c", "x": {10**400}}}']
    table, problems = read(settings(write_lines(tmp_path / "a.jsonl", lines)))
    assert table["x"].to_pylist() == [0.5, float(2**53), None]
    assert problems == [None, None, None]


def test_a_batch_is_full_when_its_texts_are_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = settings(write_lines(tmp_path / "a.jsonl", [f'{{"text": "{"x" * 1_000}"}}'] * 10))
    monkeypatch.setattr(reader, "BATCH_ROWS", 5)
    for most, expected in ((3_000, [3, 3, 3, 1]), (2**20, [5, 5, 0])):
        monkeypatch.setattr(reader, "BATCH_BYTES", most)
        batches = ShardReader(discover(source)[0], source).batches()
        assert [batch.num_rows for batch, _ in batches] == expected


def test_a_last_line_without_an_end_may_be_as_long_as_any_other(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(line := b'{"text": "abc"}')
    for most, expected in ((len(line), {"text": "abc"}), (len(line) - 1, "too_large")):
        assert list(jsonl_records(str(path), path.name, most)) == [expected]


OBJECTS = [{"text": "née \ud83d\ude00"}, {"text": "a, [b] {c}", "x": [1, {"y": "]"}]}, {"text": "\ud800"}, 7]
OF_OBJECTS = (["née 😀", "a, [b] {c}", None, None], [None, None, "invalid_utf8", "broken_row"])


@pytest.mark.parametrize("start", ["", "\ufeff", "\n \n"])
@pytest.mark.parametrize(
    "content",
    [json.dumps(OBJECTS), json.dumps(OBJECTS, indent=2), "\n".join(map(json.dumps, OBJECTS))],
    ids=["list", "pretty list", "lines"],
)
def test_a_file_of_json_holds_lines_or_a_list(tmp_path: Path, content: str, start: str) -> None:
    path = tmp_path / "a.JSON.gz"
    path.write_bytes(COMPRESSORS[".gz"]((start + content).encode()))
    table, problems = read(settings(path))
    assert (table["text"].to_pylist(), problems) == OF_OBJECTS


def test_one_object_and_an_empty_list(tmp_path: Path) -> None:
    for content, expected in (('{\n"text": "a"\n}', ["a"]), ('{"text": "a"}', ["a"]), ("[]", []), (" \n", [])):
        (tmp_path / "a.json").write_text(content)
        assert read(settings(tmp_path))[0]["text"].to_pylist() == expected


@pytest.mark.parametrize(
    "content",
    ['[{"text": "a"}, {"text": "b"}', '{\n"a": 1}\n{\n"a": 1}', '[{"a": 1}, {broken}, {"a": 1}]', '[{"a": 1}] x'],
)
def test_a_value_that_is_cut_off_or_broken_is_a_bad_shard(tmp_path: Path, content: str) -> None:
    (tmp_path / "a.json").write_text(content)
    with pytest.raises(BadShardError, match=r"^a\.json: its JSON is broken or cut off: write one object a line"):
        read(settings(tmp_path))
