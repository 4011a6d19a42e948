"""Make source files that are broken, hostile or odd, each with what is to become of it."""

import gzip
import io
import json
import os
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.feather
import pyarrow.orc
import pyarrow.parquet as pq

from tests.tasks.source_files import COMPRESSORS

MOST_BYTES = 2**16
"""The largest document, so that one that is too large is quick to make."""

READ, REFUSED, EITHER = "read", "refused", "either"
N = 40
"""Rows of a file, where not said otherwise."""

BAD = b"\xff\xfe"


class BrokenFile(NamedTuple):
    """A file and what is to become of it."""

    name: str
    write: Callable[[Path], Any]
    outcome: str = EITHER
    rows: int | None = None  # in the file, if it is read
    dropped: dict[str, int] | None = None  # by reason, if it is read
    why: str = ""  # a part of the reason, if it is refused


def text_of(number: int) -> str:
    return f"Document {number} has a text that is long enough to be kept: the tide is out, the boats lie on the sand."


def columns(**changes: Any) -> dict[str, Any]:
    """Return the columns of N good rows, with others instead of some or besides."""
    good = {
        "text": [text_of(number) for number in range(N)],
        "id": [f"id-{number}" for number in range(N)],
        "token_count": list(range(20, 20 + N)),
        "tags": [["a", "é"]] * N,
    }
    return good | changes


def parquet(**changes: Any) -> bytes:
    options = {name: changes.pop(name) for name in ("compression", "row_group_size") if name in changes}
    stream = io.BytesIO()
    pq.write_table(pa.table(columns(**changes)), stream, **options)
    return stream.getvalue()


def lines(*extra: str | bytes, ending: bytes = b"\n", **changes: Any) -> bytes:
    """Return N good lines, all with `changes`, then other ones."""
    good = [json.dumps({"text": text_of(n), "id": f"id-{n}", **changes}).encode() for n in range(N)]
    other = [line.encode("utf-8", "surrogatepass") if isinstance(line, str) else line for line in extra]
    return b"".join(line + ending for line in [*good, *other])


def content(value: bytes) -> Callable[[Path], Any]:
    return lambda path: path.write_bytes(value)


def flipped(value: bytes, place: int) -> bytes:
    return value[:place] + bytes([value[place] ^ 0xFF]) + value[place + 1 :]


def spread(length: int, count: int) -> list[int]:
    return [length * number // count for number in range(count)]


def raw(values: list[bytes | None], kind: pa.DataType | None = None) -> pa.Array:
    """Return bytes as strings that nothing has checked."""
    strings = pa.array(values, pa.binary()).cast(pa.string(), safe=False)
    return strings if kind is None else pa.array(values, pa.large_binary()).cast(kind, safe=False)


def one_bad(kind: pa.DataType | None = None) -> pa.Array:
    """Return N strings of which the first is not UTF-8."""
    return raw([BAD, *[b"ok"] * (N - 1)], kind)


def cut_and_flipped() -> Iterator[BrokenFile]:
    """Yield Parquet and JSON Lines that were cut off, or of which bytes were changed."""
    whole = parquet(compression="snappy")
    for place in spread(len(whole), 90):
        yield BrokenFile(f"cut-{place}.parquet", content(whole[:place]), REFUSED)
    for place in spread(len(whole), 15):
        yield BrokenFile(f"flip-{place}.parquet", content(flipped(whole, place)))
    for place in spread(len(whole) - 16, 8):
        yield BrokenFile(f"zeros-{place}.parquet", content(whole[:place] + bytes(16) + whole[place + 16 :]))
    for codec in ("none", "gzip", "brotli", "zstd", "lz4"):
        written = parquet(compression=codec)
        yield BrokenFile(f"good-{codec}.parquet", content(written), READ, N, {})
        for place in spread(len(written), 3)[1:]:
            yield BrokenFile(f"{codec}-{place}.parquet", content(flipped(written, place)))
    for suffix, compress in COMPRESSORS.items():
        written = compress(lines())
        if suffix:
            for place in spread(len(written), 8):
                yield BrokenFile(f"cut-{place}.jsonl{suffix}", content(written[:place]), REFUSED)
        for place in spread(len(written), 5):
            yield BrokenFile(f"flip-{place}.jsonl{suffix}", content(flipped(written, place)))


def other_formats() -> Iterator[BrokenFile]:
    """Yield files that are not what their names say."""
    whole, table = parquet(), pa.table({"text": ["a"]})
    feather, orc = io.BytesIO(), io.BytesIO()
    pa.feather.write_feather(table, feather)
    pa.orc.write_table(table, orc)
    kinds = {
        "empty": b"",
        "magic-only": b"PAR1",
        "wrong-head": b"XXXX" + whole[4:],
        "wrong-tail": whole[:-4] + b"XXXX",
        "encrypted-tail": whole[:-4] + b"PARE",
        "appended": whole + b"garbage",
        "footer-too-long": whole[:-8] + b"\xff\xff\xff\x7f" + b"PAR1",
        "text": b"text,id\nhello,1\n",
        "zip": b"PK\x03\x04" + bytes(64),
        "gz": gzip.compress(whole),
        "feather": feather.getvalue(),
        "orc": orc.getvalue(),
    }
    for name, value in kinds.items():
        outcome = EITHER if name == "wrong-head" else REFUSED  # Arrow reads the end of a file only
        yield BrokenFile(f"{name}.parquet", content(value), outcome)
        if value:
            yield BrokenFile(f"{name}.jsonl.gz", content(value if name != "gz" else whole), REFUSED)
            yield BrokenFile(f"{name}.jsonl.zst", content(value), REFUSED)
    yield BrokenFile("empty.jsonl", content(b""), READ, 0, {})
    yield BrokenFile("empty.jsonl.gz", content(b""), REFUSED, why="0 bytes")
    yield BrokenFile("empty.jsonl.zst", content(b""), REFUSED, why="0 bytes")
    yield BrokenFile("parquet.jsonl", content(whole), REFUSED, why="can be read")


TEXT_TYPES: dict[str, Any] = {
    "int": (pa.array(range(N)), REFUSED),
    "bool": (pa.array([True] * N), REFUSED),
    "list": (pa.array([["a"]] * N), REFUSED),
    "fixed": (pa.array([b"ab"] * N, pa.binary(2)), REFUSED),
    "binary": (pa.array([text_of(n).encode() for n in range(N)]), {}),
    "view": (pa.array(columns()["text"], pa.string_view()), {}),
    "binary-view": (pa.array([text_of(n).encode() for n in range(N)], pa.binary_view()), {}),
    "dictionary": (pa.array(columns()["text"]).dictionary_encode(), {}),
    "bad": (one_bad(), {"invalid_utf8": 1, "too_short": N - 1}),
    "bad-binary": (pa.array([BAD] * N), {"invalid_utf8": N}),
    "bad-dictionary": (one_bad().dictionary_encode(), {"invalid_utf8": 1, "too_short": N - 1}),
    "empty": (pa.array([""] * N), {"empty_text": N}),
    "huge": (pa.array(["x" * (MOST_BYTES + 1), *columns()["text"][1:]]), {"too_large": 1}),
    "all-huge": (pa.array(["x" * (MOST_BYTES + 1)] * N), {"too_large": N}),
    "far-too-huge": (pa.array([f"{n}" * (9 * MOST_BYTES) for n in range(N)]), {"too_large": N}),
}
OTHER_COLUMNS: dict[str, dict[str, Any]] = {
    "token_count": {
        "unsigned": (pa.array([2**64 - 1] * N, pa.uint64()), {}),
        "negative": (pa.array([-1] * N), {}),
        "one-max": (pa.array([2**63 - 1, *[5] * (N - 1)]), {}),
        "date": (pa.array([date(2024, 1, 1)] * N), {}),
    },
    "id": {
        "int": (pa.array(range(N)), {}),
        "uuid": (pa.array([bytes(16)] * N, pa.uuid()), {}),
        "struct": (pa.array([{"a": 1}] * N), {}),
        "bad": (one_bad(), {"invalid_utf8": 1}),
        "bad-dictionary": (one_bad().dictionary_encode(), {"invalid_utf8": 1}),
        "null": (pa.nulls(N), {}),
    },
    "date": {
        "timestamp": (pa.array([datetime(2024, 1, 1, tzinfo=UTC)] * N), {}),
        "far": (pa.array([2**62] * N, pa.timestamp("us")), {}),
    },
}
EXTRA_TYPES: dict[str, Any] = {
    "bad-large": (one_bad(pa.large_string()), {"invalid_utf8": 1}),
    "bad-list": (pa.ListArray.from_arrays(pa.array(range(N + 1), pa.int32()), one_bad()), {"invalid_utf8": 1}),
    "bad-struct": (pa.StructArray.from_arrays([one_bad()], ["a"]), {}),
    "bad-map-key": (pa.MapArray.from_arrays(pa.array(range(N + 1), pa.int32()), one_bad(), pa.array(range(N))), {}),
    "far-time": (pa.array([2**62] * N, pa.timestamp("us")), {}),
    "far-nanoseconds": (pa.array([2**62] * N, pa.timestamp("ns")), {}),
    "far-in-struct": (pa.array([{"a": 2**62}] * N, pa.struct([("a", pa.timestamp("us"))])), {}),
    "deep": (pa.array([[[[[[[[["a"]]]]]]]]] * N), {}),
    "struct-alike": (pa.array([{"a": 1, "A": 2}] * N), {}),
    "long-list": (pa.array([[0] * 5_000] * N, pa.list_(pa.int8())), {}),
}
NAMES = {
    "": REFUSED,
    "a\0b": REFUSED,
    "row": REFUSED,
    "quality": REFUSED,
    "a\nb": READ,
    "Text ": REFUSED,
    'it\'s "x"; --': READ,
    "a.b": READ,
    "%s {x}": READ,
    "ключ 雪": READ,
    "x" * 10_000: READ,
    "select": READ,
    "tags.list.element": READ,
}


def of_types() -> Iterator[BrokenFile]:
    """Yield Parquet of all types, in the columns that are known and in others."""
    for column, kinds in ({"text": TEXT_TYPES} | OTHER_COLUMNS | {"extra": EXTRA_TYPES}).items():
        for name, (values, found) in kinds.items():
            written = content(parquet(**{column: values}))
            if found == REFUSED:
                yield BrokenFile(f"{column}-{name}.parquet", written, REFUSED)
            else:
                yield BrokenFile(f"{column}-{name}.parquet", written, READ, N, found)
    for number, (name, outcome) in enumerate(NAMES.items()):
        yield BrokenFile(f"name-{number}.parquet", content(parquet(**{name: [1] * N})), outcome, N, {}, "column")
        as_lines = content(lines(**{name: 1}))
        yield BrokenFile(f"name-{number}.jsonl", as_lines, outcome, N, {}, "column")
    good = pa.table(columns())
    twice = pa.table([good["text"], good["text"]], names=["text", "text"])
    shapes = {
        "no-rows": (good.slice(0, 0), READ),
        "no-columns": (pa.table({"x": [1]}).select([]), REFUSED),
        "no-text": (good.drop_columns("text"), REFUSED),
        "text-twice": (twice, REFUSED),
        "alike": (good.append_column("A", good["id"]).append_column("a", good["id"]), REFUSED),
        "wide": (pa.table(columns(**{f"c{n}": [n] * N for n in range(300)})), READ),
    }
    for name, (table, outcome) in shapes.items():
        rows = table.num_rows
        yield BrokenFile(f"{name}.parquet", lambda path, table=table: pq.write_table(table, path), outcome, rows, {})
    yield BrokenFile("groups-of-1.parquet", content(parquet(row_group_size=1)), READ, N, {})
    bomb = pa.DictionaryArray.from_arrays(pa.array([0] * 3_000, pa.int32()), pa.array(["x" * 2**15]))
    yield BrokenFile(
        "bomb.parquet",
        lambda path: pq.write_table(pa.table({"text": bomb}), path),
        READ,
        3_000,
        {"duplicate": 2_999},
    )


def of_lines() -> Iterator[BrokenFile]:
    """Yield JSON Lines with one bad row, or with bad rows only, and good ones compressed in every way."""
    good = text_of(-1)
    bad_rows: dict[str, tuple[str | bytes, str | None]] = {  # a line, and why it is dropped
        "broken": ("{broken", "broken_row"),
        "half": ('{"text": "ha', "broken_row"),
        "number": ("7", "broken_row"),
        "null": ("null", "broken_row"),
        "nan": ('{"text": NaN}', "null_text"),
        "deep": ("[" * 10_000, "broken_row"),
        "digits": ('{"text": "a", "token_count": ' + "9" * 5_000 + "}", "broken_row"),
        "not-utf8": (b'{"text": "' + BAD + b'"}', "broken_row"),
        "text-missing": ('{"id": "a"}', "null_text"),
        "text-null": ('{"text": null}', "null_text"),
        "text-number": ('{"text": 7}', "wrong_type"),
        "text-list": ('{"text": ["a"]}', "wrong_type"),
        "text-surrogate": (r'{"text": "\ud800"}', "invalid_utf8"),
        "key-surrogate": ('{"text": ' + json.dumps(good) + r', "\ud800": 1}', "invalid_utf8"),
        "id-surrogate": ('{"text": ' + json.dumps(good) + r', "id": "\udfff"}', "invalid_utf8"),
        "tokens-max": (json.dumps({"text": good, "token_count": 2**63 - 1}), None),
        "score-beyond": ('{"text": ' + json.dumps(good) + ', "language_score": ' + "9" * 400 + "}", None),
        "url-list": (json.dumps({"text": good, "url": ["a"]}), None),
        "extra-nested": (json.dumps({"text": good, "x": {"a": [BAD.hex()] * 9}}), None),
        "twice": ('{"text": "a", "text": ' + json.dumps(good) + "}", None),
        "many-keys": (json.dumps({"text": good} | {f"k{n}": n for n in range(300)}), None),
        "nul": (json.dumps({"text": good + "\0"}), None),
        "separators": (json.dumps({"text": good + "\u2028\x85"}, ensure_ascii=False), None),
        "escapes": (json.dumps({"text": good + "\x1b[31m<script>"}), None),
        "bom": (b"\xef\xbb\xbf" + json.dumps({"text": good}).encode(), None),
        "utf16": (json.dumps({"text": good}).encode("utf-16-be"), "broken_row"),
        "huge": (json.dumps({"text": "x" * MOST_BYTES}), "too_large"),
        "huge-broken": ("x" * (3 * MOST_BYTES), "too_large"),
        "huge-spaces": (" " * (2 * MOST_BYTES), "too_large"),
    }
    for name, (line, reason) in bad_rows.items():
        dropped = {} if reason is None else {reason: 1}
        yield BrokenFile(f"{name}.jsonl", content(lines(line)), READ, N + 1, dropped)
    for suffix, compress in COMPRESSORS.items():
        for name, value, rows, dropped in (
            ("no-end", lines()[:-1], N, {}),
            ("carriage-returns", lines(ending=b"\r\n"), N, {}),
            ("blank-lines", lines(ending=b"\n\n  \n"), N, {}),
            ("blank-only", b"\n \n\t\n", 0, {}),
            ("bomb", lines(b'{"text": "' + b"a" * 5_000_000 + b'"}'), N + 1, {"too_large": 1}),
            ("endless", lines(b"a" * 5_000_000)[:-1], N + 1, {"too_large": 1}),
        ):
            yield BrokenFile(f"{name}.jsonl{suffix}", content(compress(value)), READ, rows, dropped)
        for name, value in (
            ("utf16-file", lines().decode().encode("utf-16")),
            ("utf32-file", lines().decode().encode("utf-32")),
            ("pretty", json.dumps([{"text": "a"}], indent=2).encode()),
            ("one-array", json.dumps([{"text": "a"}] * 9).encode()),
            ("nul-only", bytes(5_000)),
        ):
            yield BrokenFile(f"{name}.jsonl{suffix}", content(compress(value)))
        if suffix:
            empty_part = compress(b"") + compress(lines())
            yield BrokenFile(f"empty-part.jsonl{suffix}", content(empty_part), READ, N, {})
            yield BrokenFile(f"garbage-after.jsonl{suffix}", content(empty_part + b"garbage"), REFUSED)


def of_kinds() -> Iterator[BrokenFile]:
    """Yield what is no plain file, and files of odd names."""
    yield BrokenFile("pipe.jsonl", os.mkfifo, REFUSED, why="a pipe")
    yield BrokenFile("pipe.parquet", os.mkfifo, REFUSED, why="a pipe")
    yield BrokenFile("dangling.parquet", lambda path: path.symlink_to("nowhere"), REFUSED, why="does not exist")
    yield BrokenFile("loop.jsonl", lambda path: path.symlink_to(path.name), REFUSED)
    yield BrokenFile("zeros.jsonl", lambda path: path.symlink_to("/dev/zero"), REFUSED, why="device")
    for name in ("x" * 240, "é" * 120, "a b;$(x)'", "new\nline", "*?[x]", "%2F", "-rf", "a\\b"):
        yield BrokenFile(f"{name}.parquet", content(parquet()), READ, N, {})


BROKEN = [*cut_and_flipped(), *other_formats(), *of_types(), *of_lines(), *of_kinds()]
