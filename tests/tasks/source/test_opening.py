"""Files are read by what they are, whatever their names say; JSON in lines or as one list; one cut off is set aside."""

import bz2
import gzip
import json
import lzma
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import zstandard

from fineweb_mask.tasks.source import opening, reader
from fineweb_mask.tasks.source.opening import BrokenFileError, jsonl_records
from fineweb_mask.tasks.source.reader import ShardReader
from fineweb_mask.tasks.source.warc import warc_records
from fineweb_mask.tasks.workspace.job import BadShardError
from tests.tasks.source_files import COMPRESSORS, discover, read, settings, write_lines
from tests.warc import Answer, page_of, warc_bytes

TEXTS = [f"text {number * number}" for number in range(300)]
LINES = "".join(json.dumps({"text": text}) + "\n" for text in TEXTS).encode()
SKIPPED = struct.pack("<II", 0x184D2A53, 5) + b"notes"
PACKED: dict[str, Any] = {".gZ": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress, ".ZSt": COMPRESSORS[".zst"]}


def texts_of(path: Path, content: bytes) -> list[Any]:
    path.write_bytes(content)
    table, problems = read(settings(path))
    assert problems == [None] * len(table)
    return table["text"].to_pylist()


def windowed(content: bytes, exponent: int) -> bytes:
    """Return a frame of zstd whose window is 2 to this power: raw blocks, as `zstd --long` may write them."""
    frame = b"\x28\xb5\x2f\xfd" + bytes([0, (exponent - 10) << 3])
    blocks = [content[place : place + 100_000] for place in range(0, len(content), 100_000)]
    for number, block in enumerate(blocks):
        frame += (len(block) << 3 | (number == len(blocks) - 1)).to_bytes(3, "little") + block
    return frame


@pytest.mark.parametrize("ending", [*PACKED, ""])
def test_files_of_any_compression_are_read_whatever_their_names_say(tmp_path: Path, ending: str) -> None:
    for name in {f"A.JSON{ending}", "a.ndjson", "a.jsonl.gz", "a.jsonl.bz2"}:
        assert texts_of(tmp_path / name, PACKED.get(ending, bytes)(LINES)) == TEXTS


@pytest.mark.parametrize("ending", PACKED)
def test_a_file_that_is_cut_off_is_set_aside_and_several_parts_are_one_file(tmp_path: Path, ending: str) -> None:
    path, whole = tmp_path / f"a.jsonl{ending}", PACKED[ending](LINES)
    for keep in (0.1, 0.99):
        with pytest.raises(BadShardError, match=r"^a\.jsonl\.\w+: "):
            texts_of(path, whole[: int(len(whole) * keep)])
    assert texts_of(path, whole * 2) == TEXTS * 2


@pytest.mark.parametrize(
    ("content", "times"),
    [
        (SKIPPED * 2 + PACKED[".ZSt"](LINES) + SKIPPED, 1),
        (PACKED[".ZSt"](LINES) + SKIPPED, 1),
        *((windowed(LINES, exponent) * 2, 2) for exponent in (27, 31)),
    ],
    ids=["skipped before", "skipped after", "2^27", "2^31"],
)
def test_frames_of_zstd_that_hold_no_data_or_have_long_windows_are_read(tmp_path, content, times):
    assert texts_of(tmp_path / "a.jsonl", content) == TEXTS * times


def test_what_cannot_be_unpacked_says_what_to_do(tmp_path: Path) -> None:
    words = zstandard.train_dictionary(1_000, [text.encode() * 20 for text in TEXTS])
    contents = {
        "its window is above 2 GiB; compress it again with zstd --long=31": windowed(LINES, 32),
        "it needs a dictionary; compress it again without": zstandard.ZstdCompressor(dict_data=words).compress(LINES),
    }
    for reason, content in contents.items():
        with pytest.raises(BadShardError, match=reason):
            texts_of(tmp_path / "a.jsonl", content)


@pytest.mark.parametrize("ending", [*PACKED, ""])
def test_crawls_of_any_compression_are_read(tmp_path: Path, ending: str) -> None:
    pytest.importorskip("warcio")
    content = PACKED.get(ending, bytes)(warc_bytes([Answer(page_of("text"))] * 3, False))
    (tmp_path / f"a.warc{ending}").write_bytes(content)
    [shard] = discover(settings(tmp_path))
    assert (shard.format, len(list(warc_records(shard)))) == ("warc", 3)
    if ending:
        (tmp_path / f"a.warc{ending}").write_bytes(content[:-20])
        with pytest.raises((BrokenFileError, OSError)):
            list(warc_records(shard))


def test_json_lines_equal_the_parquet_of_the_same_rows(tmp_path, make_document, make_parquet):
    extra = pa.field("score", pa.float64())
    odd = make_document(5, text="née\u2028\x00🎉\r\n\ttail ", language=None, token_count=None, dump=None)
    rows = [row | {"score": index / 2} for index, row in enumerate([*map(make_document, range(4)), odd])]
    expected, _ = read(settings(make_parquet(tmp_path / "rows.parquet", rows, (extra,))))
    table, problems = read(settings(write_lines(tmp_path / "rows.jsonl", [json.dumps(row) for row in rows])))
    assert table.equals(expected)
    assert (table.num_columns, problems) == (10, [None] * len(rows))


def test_columns_have_the_type_of_all_their_values_and_what_is_nested_or_mixed_is_json_text(tmp_path: Path) -> None:
    lines = [
        '{"text": "a", "id": 12, "meta": {"k": ["é"]}, "mixed": 1, "count": 1, "flag": true, "ratio": 1, '
        f'"hash": {2**63}}}',
        f'{{"text": "b", "id": "x", "meta": null, "mixed": "one", "count": 2, "ratio": {2**53 + 1}, "hash": 5}}',
        f'{{"text": "c", "id": 7.0, "date": 1700000000000, "ratio": {10**400}}}',
        '{"text": "a pair \\ud83c\\udf89 is fine", "ratio": 0.5}',
    ]
    table, problems = read(settings(write_lines(tmp_path / "a.jsonl", lines)))
    assert problems == [None] * 4
    assert table.drop_columns([*table.column_names[2:4], *table.column_names[5:9]]).to_pydict() == {
        "text": ["a", "b", "c", "a pair 🎉 is fine"],
        "id": ["12", "x", "7", None],
        "date": [None, None, "1700000000000", None],
        "meta": ['{"k": ["é"]}', None, None, None],
        "mixed": ["1", "one", None, None],
        "count": [1, 2, None, None],
        "flag": [True, None, None, None],
        "ratio": [1.0, float(2**53), None, 0.5],
        "hash": [str(2**63), "5", None, None],
    }


@pytest.mark.parametrize("suffix", COMPRESSORS)
def test_a_line_without_end_is_never_held_whole(tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "LARGEST_DOCUMENT", 2**16)
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


def test_a_batch_is_full_when_its_texts_are_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = settings(write_lines(tmp_path / "a.jsonl", [f'{{"text": "{"x" * 1_000}"}}'] * 10))
    monkeypatch.setattr(reader, "BATCH_ROWS", 5)
    for most, expected in ((3_000, [3, 3, 3, 1]), (2**20, [5, 5, 0])):
        monkeypatch.setattr(reader, "BATCH_BYTES", most)
        batches = ShardReader(discover(source)[0], source).batches()
        assert [batch.num_rows for batch, _ in batches] == expected


def test_a_last_line_without_an_end_may_be_as_long_as_any_other(tmp_path: Path, monkeypatch: Any) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(line := b'{"text": "abc"}')
    for most, expected in ((len(line), {"text": "abc"}), (len(line) - 1, "too_large")):
        monkeypatch.setattr(opening, "LARGEST_DOCUMENT", most)
        assert list(jsonl_records(str(path))) == [expected]


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


def test_a_file_of_json_may_hold_one_object_or_an_empty_list_but_nothing_broken(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    for content, expected in ((b'{\n"text": "a"\n}', ["a"]), (b'{"text": "a"}', ["a"]), (b"[]", []), (b" \n", [])):
        assert texts_of(path, content) == expected
    for content in (
        b'[{"text": "a"}, {"text": "b"}',
        b'{\n"a": 1}\n{\n"a": 1}',
        b'[{"a": 1}, {broken}, {"a": 1}]',
        b'[{"a": 1}] x',
    ):
        with pytest.raises(BadShardError, match=r"^a\.json: its JSON is broken or cut off: write one object a line"):
            texts_of(path, content)
