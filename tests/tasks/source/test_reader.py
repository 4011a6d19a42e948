"""Read source files of any format."""

import functools
import json
import os
import threading
from collections import Counter
from collections.abc import Callable
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.local import LocalFileSystem

from fineweb_mask.models.columns import KEPT_TYPES
from fineweb_mask.models.documents import DocumentFilter
from fineweb_mask.models.schemas import FINEWEB
from fineweb_mask.models.settings import IngestSettings
from fineweb_mask.tasks.source.discovery import SourceShard, discover
from fineweb_mask.tasks.source.reader import BATCH_ROWS, ShardReader
from fineweb_mask.tasks.storage.remote import errors
from fineweb_mask.tasks.storage.remote.errors import RemoteError
from fineweb_mask.tasks.workspace.job import BadShardError
from tests.conftest import Bucket
from tests.tasks.source_files import Row, found, read, settings, write_lines, write_table


@pytest.fixture
def rows(make_document: Callable[..., Row]) -> list[Row]:
    return [make_document(seed) for seed in range(4)] + [
        make_document(5, text="née\u2028\x00🎉\r\n\ttail ", language=None, token_count=None, dump=None)
    ]


def test_rows_come_in_batches_and_in_order(tmp_path: Path) -> None:
    count = 2 * BATCH_ROWS + 1
    for path in (
        write_lines(tmp_path / "a.jsonl", [f'{{"text": "{index}"}}' for index in range(count)]),
        write_table(tmp_path / "b.parquet", text=[str(index) for index in range(count)]),
    ):
        table, _ = read(settings(path))
        assert table["text"].to_pylist() == [str(index) for index in range(count)]
        assert max(len(chunk) for chunk in table["text"].chunks) == BATCH_ROWS


def test_extra_columns_can_be_listed(tmp_path: Path) -> None:
    path = write_table(tmp_path / "a.parquet", text=["a"], one=[1], two=[2], row=[3])
    table, _ = read(settings(path, extra_columns=["two", "url"]))
    assert table.column_names == [*FINEWEB.names, "two"]
    with pytest.raises(BadShardError, match=r"a\.parquet: no column 'three'"):
        read(settings(path, extra_columns=["three"]))
    with pytest.raises(BadShardError, match="column 'row' has a name that the pipeline uses itself"):
        read(settings(path))


def test_a_missing_text_column_names_the_existing_ones(tmp_path: Path) -> None:
    for path in (
        write_table(tmp_path / "a.parquet", body=["a"], n=[1]),
        write_lines(tmp_path / "a.jsonl", ['{"body": "a", "n": 1}']),
    ):
        with pytest.raises(BadShardError, match=r"no column 'text', set source.text_column to one of \['body', 'n'\]"):
            read(settings(path))


def test_a_flipped_bit_of_text_is_a_bad_shard_where_the_file_has_checksums(tmp_path: Path) -> None:
    path = tmp_path / "flipped.parquet"
    table = pa.table({"text": [f"some text {index}" for index in range(500)]})
    pq.write_table(table, path, compression="none", use_dictionary=False, write_page_checksum=True)
    whole = path.read_bytes()
    assert whole.count(b"some text 250") == 1
    path.write_bytes(whole.replace(b"some text 250", b"some text 251"))
    with pytest.raises(BadShardError, match=r"^flipped\.parquet: .*checksum verification failed"):
        read(settings(path))


class SlowFileSystem(LocalFileSystem):
    """A share that does not answer."""

    protocol = "slow"

    def info(self, *_: Any, **__: Any) -> Any:
        raise TimeoutError("no answer")

    open = info


@pytest.mark.parametrize("name", ["parquet", "jsonl"])
def test_an_unreachable_file_system_is_not_a_bad_shard(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(errors, "PATIENCE_SECONDS", 0.01)
    fsspec.register_implementation("slow", SlowFileSystem, clobber=True)
    shard = SourceShard(name="a", relative="a", url=f"slow:///a.{name}", format=name, bytes=1, fingerprint="f")
    with pytest.raises(TimeoutError):
        ShardReader(shard, settings("slow:///"))


@pytest.fixture
def at_urls(bucket, tmp_path, rows, make_parquet):
    """A bucket with the same rows as Parquet and as lines of JSON, and what they read as."""
    lines = write_lines(tmp_path / "b.jsonl.gz", [json.dumps(row) for row in rows], ".gz")
    paths = (make_parquet(tmp_path / "a.parquet", rows), lines)
    for path in paths:
        bucket.write(f"corpus/{path.name}", path.read_bytes())
    return bucket, {path.name: read(settings(path))[0] for path in paths}


def test_files_in_a_bucket_are_found_and_read(at_urls: tuple[Bucket, dict[str, pa.Table]]) -> None:
    bucket, tables = at_urls
    bucket.write("corpus/_hidden/c.parquet", b"x")
    bucket.write("corpus/notes.txt", b"x")
    assert found(settings(f"{bucket.url}/corpus")) == {"a.parquet": "a", "b.jsonl.gz": "b.jsonl.gz"}
    assert found(settings(f"{bucket.url}/corpus/*.parquet")) == {"a.parquet": "a"}
    for name, table in tables.items():
        assert read(settings(f"{bucket.url}/corpus/{name}"))[0].equals(table)
    first = discover(settings(f"{bucket.url}/corpus"))
    assert first == discover(settings(f"{bucket.url}/corpus"))
    bucket.write("corpus/a.parquet", b"another")
    assert discover(settings(f"{bucket.url}/corpus"))[0].fingerprint != first[0].fingerprint


def test_files_at_a_web_server_are_read(at_urls: tuple[Bucket, dict[str, pa.Table]]) -> None:
    bucket, tables = at_urls
    web = f"{bucket.server.url}/{bucket.name}/corpus"
    with pytest.raises(RemoteError, match=r"/corpus/a\.parquet: access denied"):
        discover(settings(f"{web}/a.parquet"))
    for name, table in tables.items():
        bucket.server.client.put_object_acl(Bucket=bucket.name, Key=f"corpus/{name}", ACL="public-read")
        assert read(settings(f"{web}/{name}"))[0].equals(table)
    before = discover(settings(f"{web}/a.parquet"))[0].fingerprint
    bucket.server.client.put_object(Bucket=bucket.name, Key="corpus/a.parquet", Body=b"another", ACL="public-read")
    assert discover(settings(f"{web}/a.parquet"))[0].fingerprint != before


def test_a_web_server_without_range_requests_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SimpleHTTPRequestHandler, "log_message", lambda *_: None)
    (tmp_path / "big.parquet").write_bytes(os.urandom(300_000))
    serve = functools.partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), serve) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,)).start()
        try:
            with pytest.raises(BadShardError, match="does not serve parts of files: download it first"):
                read(settings(f"http://127.0.0.1:{server.server_port}/big.parquet"))
        finally:
            server.shutdown()


@pytest.mark.parametrize("name", ["a.parquet", "b.jsonl.gz"])
def test_broken_connections_and_refusals_are_retried(at_urls, proxy, reach, name):
    bucket, tables = at_urls
    reach(proxy.url)
    proxy.failing, proxy.cut_after = 0.2, 200
    table, _ = read(settings(f"{bucket.url}/corpus/{name}"))
    assert proxy.cuts == 1
    assert table.equals(tables[name])


@pytest.mark.parametrize("name", ["a.parquet", "b.jsonl.gz"])
def test_a_file_that_changes_before_or_while_it_is_read_is_a_bad_shard(at_urls, tmp_path, name):
    bucket = at_urls[0]
    local = next(path for path in tmp_path.iterdir() if path.name == name)
    for place, write in (
        (f"{bucket.url}/corpus/{name}", lambda: bucket.write(f"corpus/{name}", local.read_bytes() + b" ")),
        (str(local), lambda: local.write_bytes(local.read_bytes() + b" ")),
    ):
        source = settings(place)
        [shard] = discover(source)
        reader = ShardReader(shard, source)
        write()
        with pytest.raises(BadShardError, match="changed while it was read"):
            list(reader.batches())
        with pytest.raises(BadShardError, match="changed after the run started; run again"):
            ShardReader(shard, source)


def test_rows_that_are_too_large_are_dropped_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = ["x" * 2_000, "short", "y" * 2_001, "z" * 2_001]
    for path in (
        write_table(tmp_path / "a.parquet", text=rows),
        write_lines(tmp_path / "a.jsonl", [json.dumps({"text": row}) for row in rows]),
    ):
        most = 2_000 + (len('{"text": ""}') if path.suffix == ".jsonl" else 0)
        monkeypatch.setattr(ShardReader, "largest", most)
        table, problems = read(settings(path))
        assert problems == [None, None, "too_large", "too_large"]
        assert table["text"].to_pylist()[:2] == rows[:2]


def test_an_error_says_after_which_row_it_came(tmp_path: Path) -> None:
    path = tmp_path / "holed.parquet"
    pq.write_table(pa.table({"text": [f"text {n * n}" for n in range(3_000)]}), path, row_group_size=1_000)
    group = pq.ParquetFile(path).metadata.row_group(2).column(0)
    start = group.dictionary_page_offset or group.data_page_offset
    damaged = bytearray(path.read_bytes())
    damaged[start : start + group.total_compressed_size] = bytes(group.total_compressed_size)
    path.write_bytes(damaged)
    with pytest.raises(BadShardError, match=r"^holed\.parquet after row 2,000: "):
        read(settings(path))


def keyed(folder: Path, name: str, **columns: Any) -> Path:
    """Write a table below a folder, or its rows as lines of JSON; return the folder."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        write_table(path, **columns)
    else:
        rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
        write_lines(path, [json.dumps({key: value for key, value in row.items() if value is not None}) for row in rows])
    return folder


KEYS = "language=en/dump=CC%2D1/token_count=7/language_score=0.5/year=2024/topic=007/none=__HIVE_DEFAULT_PARTITION__"


@pytest.mark.parametrize("name", ["a.parquet", "a.jsonl"])
def test_keys_in_the_path_are_columns_of_every_row(tmp_path: Path, name: str) -> None:
    table, problems = read(settings(keyed(tmp_path, f"{KEYS}/{name}", text=["a", "b"], mine=[1, 2])))
    assert problems == [None, None]
    expected = {
        "language": "en", "dump": "CC-1", "token_count": 7, "language_score": 0.5, "year": 2024, "topic": "007",
        "none": None,
    }  # fmt: skip
    assert [{key: row[key] for key in expected} for row in table.to_pylist()] == [expected, expected]
    types = {key: str(table.schema.field(key).type) for key in ("year", "topic", "none", "language_score")}
    assert types == {"year": "int64", "topic": "string", "none": "string", "language_score": "double"}
    chosen, _ = read(settings(tmp_path, extra_columns=["year"]))
    assert chosen.column_names == [*FINEWEB.names, "year"]
    assert chosen["language"].to_pylist() == ["en", "en"]


@pytest.mark.parametrize("name", ["a.parquet", "a.jsonl"])
def test_a_column_of_the_file_wins_over_the_key_of_its_path_where_it_has_a_value(tmp_path: Path, name: str) -> None:
    languages = ["en", "de", None, "fr"]
    source = settings(
        keyed(tmp_path, f"language=en/Year=2024/{name}", text=["a"] * 4, language=languages, year=[1] * 4)
    )
    reader = ShardReader(discover(source)[0], source)
    [batch] = [batch for batch, _ in reader.batches() if batch.num_rows]
    assert batch["language"].to_pylist() == ["en", "de", "en", "fr"]
    assert batch["year"].to_pylist() == [1] * 4
    assert "Year" not in batch.schema.names
    assert dict(+reader.keys_differ) == {"language": 2, "year": 4}


@pytest.mark.parametrize("key", ["id=x", "row=3", "Source_Row=1"])
def test_keys_of_names_that_the_pipeline_uses_itself_are_no_columns(tmp_path: Path, key: str) -> None:
    table, _ = read(settings(keyed(tmp_path, f"{key}/a.parquet", text=["a"], id=[None])))
    assert table.to_pylist() == [dict.fromkeys(FINEWEB.names) | {"text": "a"}]


def test_a_key_that_does_not_fit_its_column_is_counted_and_leaves_it_as_it_is(tmp_path: Path) -> None:
    source = settings(keyed(tmp_path, "tags=x/token_count=many/a.parquet", text=["a", "b"], tags=[["y"], None]))
    reader = ShardReader(discover(source)[0], source)
    [(batch, _)] = reader.batches()
    assert (batch["tags"].to_pylist(), batch["token_count"].to_pylist()) == ([["y"], None], [None, None])
    assert dict(reader.keys_differ) == {"tags": 2, "token_count": 2}


def both(folder: Path, rows: list[Row]) -> list[Path]:
    """Write rows as Parquet and as lines of JSON."""
    folder.mkdir(exist_ok=True)
    table = write_table(folder / "a.parquet", **{name: [row.get(name) for row in rows] for name in rows[0]})
    return [table, write_lines(folder / "a.jsonl", [json.dumps(row) for row in rows])]


def ingested(path: Path) -> tuple[dict[str, list[Any]], Counter[str]]:
    """Return the documents of a file, and how many values of its columns were lost."""
    source = settings(path)
    reader, chosen = ShardReader(discover(source)[0], source), DocumentFilter(IngestSettings(min_chars=1), "a")
    [found] = [chosen.apply(*batch).to_pydict() for batch in reader.batches()]
    return found, reader.lost + chosen.lost


def test_numbers_that_went_through_pandas_are_whole_and_its_gaps_are_null(tmp_path: Path) -> None:
    nan, infinite = float("nan"), float("inf")
    tokens, scores = [123.0, nan, infinite, 0.0], [0.5, nan, -infinite, 1.0]
    rows = [
        {"text": f"text {at}", "token_count": count, "language_score": score, "score": score, "language": nan}
        for at, (count, score) in enumerate(zip(tokens, scores, strict=True))
    ]
    for path in both(tmp_path, rows):
        found, lost = ingested(path)
        assert found["token_count"] == [123, None, None, 0]
        assert found["language_score"] == found["score"] == [0.5, None, None, 1.0]
        assert found["language"] == [None] * 4
        assert not lost


@pytest.mark.parametrize(
    "column", [[1e30, 1.5, -3.0, 2.0**40, 7.0], ["many", "1.5", "", "-1", "7"], [True, True, False, True, None]]
)
def test_a_number_that_does_not_fit_costs_its_value_alone(tmp_path: Path, column: list[Any]) -> None:
    for path in both(tmp_path, [{"text": f"text {at}", "token_count": value} for at, value in enumerate(column)]):
        found, lost = ingested(path)
        assert found["token_count"][:4] == [None] * 4
        assert (len(found["text"]), lost) == (5, {"token_count": 4})


def test_whole_numbers_of_more_than_64_bits_are_kept_as_text(tmp_path: Path) -> None:
    lines = [f'{{"text": "a", "hash": {2**63}}}', '{"text": "b", "hash": 5}']
    table, problems = read(settings(write_lines(tmp_path / "a.jsonl", lines)))
    assert (table["hash"].to_pylist(), problems) == ([str(2**63), "5"], [None, None])


SETTLED: list[tuple[str, list[Any], list[Any], int]] = [  # the type, values, and what is read of them
    ("int64", [3.0, None, float("nan")], [3, None, None], 0),
    ("int64", [3.0, 0.5, 1e30], [3, None, None], 2),
    ("string", [3, None, 4], ["3", None, "4"], 0),
    ("string", [{"a": ["é"]}, None], ['{"a": ["é"]}', None], 0),
    ("string", [[1, None], []], ["[1, null]", "[]"], 0),
    ("list<item: string>", [["a", None], [], None], [["a", None], [], None], 0),
    ("list<item: double>", [[1, 2], [3]], [[1.0, 2.0], [3.0]], 0),
    ("bool", [True, None], [True, None], 0),
    ("bool", ["yes", "no"], [None, None], 2),
    ("list<item: int64>", ["a", None], [None, None], 1),
    ("double", [["a"], None], [None, None], 1),
]


@pytest.mark.parametrize(("kind", "values", "expected", "lost"), SETTLED)
def test_a_column_has_the_name_and_the_type_that_are_settled(tmp_path, kind, values, expected, lost):
    for path in both(tmp_path, [{"text": f"text {at}", "year": value, "late": 1} for at, value in enumerate(values)]):
        source = settings(path)
        shard = discover(source)[0].model_copy(update={"columns": (("Year", kind), ("other", "date32[day]"))})
        reader = ShardReader(shard, source)
        assert reader.extra == [pa.field("Year", KEPT_TYPES[kind]), pa.field("other", pa.date32())]
        [(batch, _)] = reader.batches()
        assert (batch["Year"].to_pylist(), batch["other"].null_count) == (expected, len(values))
        assert (reader.lost["Year"], reader.not_kept) == (lost, {"late"})


@pytest.mark.parametrize("name", ["TEXT", " text"])
def test_the_columns_of_fineweb_are_found_in_any_spelling(tmp_path: Path, name: str) -> None:
    row = {name: "a", "ID": "x", "URL": "http://a.org", "Language": "en", "Token_Count": 7, "Language_Score": 0.5}
    for path in both(tmp_path, [row]):
        [found] = read(settings(path))[0].to_pylist()
        assert found == dict.fromkeys(FINEWEB.names) | {key.strip().lower(): value for key, value in row.items()}


def test_named_columns_are_found_in_any_spelling_and_by_their_path(tmp_path: Path) -> None:
    meta = {"Key": 7, "score": 0.5, "deep": {"kind": None}, "own": "within"}
    row = {"Body": {"Content": "a"}, "meta": meta, "meta.own": "wins", "Plain": "p", "text": "not this"}
    names = ["meta.score", "meta.deep.kind", "PLAIN", "meta.own", "gap.a"]
    for path in both(tmp_path, [row | {"gap": {"a": 1}}, row | {"gap": None}]):
        source = settings(path, text_column="body.content", id_column="meta.key", extra_columns=names)
        first, other = read(source)[0].to_pylist()
        expected = {"text": "a", "id": "7", "meta.score": 0.5, "PLAIN": "p", "meta.own": "wins"}
        assert {key: value for key, value in first.items() if value is not None} == expected | {"gap.a": 1}
        assert other == dict.fromkeys(first) | expected
        assert list(first) == [*FINEWEB.names, *names]
        with pytest.raises(BadShardError, match=r"no column 'meta\.none', source\.extra_columns may name"):
            read(source.model_copy(update={"extra_columns": ["meta.none"]}))


@pytest.mark.parametrize("others", [("A", "a"), ("é", "e\u0301")])
def test_two_spellings_in_one_file_are_refused_with_the_remedy(tmp_path: Path, others: tuple[str, str]) -> None:
    for path in both(tmp_path, [{"text": "t", others[0]: 1, others[1]: 2}]):
        with pytest.raises(BadShardError, match=r"differ in case only, or in spaces: .* with one of them"):
            read(settings(path))
        assert read(settings(path, extra_columns=[others[1]]))[0].column_names[9:] == [others[1]]


def test_dates_of_pandas_are_text_as_fineweb_has_it(tmp_path: Path) -> None:
    dates = pa.array([1_700_000_000_000_000_000, None], pa.timestamp("ns", "UTC"))
    path = write_table(tmp_path / "a.parquet", text=["a", "b"], date=dates)
    assert read(settings(path))[0]["date"].to_pylist() == ["2023-11-14T22:13:20Z", None]
    lines = ['{"text": "a", "date": 1700000000000}', '{"text": "b", "id": 7.0}']
    table, problems = read(settings(write_lines(tmp_path / "a.jsonl", lines)))
    assert (table["date"].to_pylist(), table["id"].to_pylist()) == (["1700000000000", None], [None, "7"])
    assert problems == [None, None]
