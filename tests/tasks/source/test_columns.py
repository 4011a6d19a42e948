"""Columns are settled before any work, and those that the settings name are found, or refused."""

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from fineweb_mask.models.settings import PipelineSettings
from fineweb_mask.tasks.source import columns as module
from fineweb_mask.tasks.source.columns import ColumnError, check_columns, document_columns, settle
from fineweb_mask.tasks.source.discovery import SourceShard, discover
from fineweb_mask.tasks.source.reader import ShardReader
from tests.tasks.source_files import read, settings, write_lines, write_table

STRUCT = pa.array([{"a": 1}])
OTHER = pa.array([{"b": "é", "c": b"\xff"}])


@pytest.fixture
def recipe(tmp_path, make_parquet, make_document):
    """Settings over a damaged file and two good ones, of which only the last has a column `site`."""
    (tmp_path / "a.parquet").write_bytes(b"damaged")
    make_parquet(tmp_path / "b.parquet", [make_document(0)])
    make_parquet(tmp_path / "c.parquet", [make_document(1, site="x", Page=3)], (pa.field("site", pa.string()),))

    def build(extra_columns: Any = "all", **sections: Any) -> tuple[PipelineSettings, list[SourceShard]]:
        settings = PipelineSettings.model_validate(
            {
                "workspace": str(tmp_path / "workspace"),
                "source": {"path": str(tmp_path), "extra_columns": extra_columns},
                "quality": {"scorers": [{"kind": "column", "column": sections.pop("score", "language_score")}]},
                **sections,
            }
        )
        named = list(settings.named_columns.values())
        return settings, settle(discover(settings.source), settings.source, named)

    return build


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ({"materialize": {"layout": "Sit"}}, r"materialize\.layout: .* 'Sit', it may be one of flat, id, .*site$"),
        ({"selection": {"groups": {"column": "Sit"}}}, r"selection\.groups\.column: .* 'Sit', it may be one of id, "),
        ({"ingest": {"copies": {"prefer": {"Sit": ["a"]}}}}, r"ingest\.copies\.prefer: .* 'Sit'"),
        ({"ingest": {"copies": {"exempt": {"Sit": ["a"]}}}}, r"ingest\.copies\.exempt: .* 'Sit'"),
        ({"quality": {"by": "sit", "scorers": []}}, r"quality\.by: .* 'sit'"),
        ({"report": {"by": ["site", "kind"]}}, r"report\.by\.1: .* 'kind', it may be one of id, .*site$"),
        ({"score": "grade"}, r"quality\.scorers\.0\.column: .* 'grade'"),
    ],
)
def test_a_column_that_no_file_has_is_refused(recipe: Any, named: dict[str, Any], message: str) -> None:
    with pytest.raises(ColumnError, match=message):
        check_columns(*recipe(**named))


def test_a_wrong_text_column_is_told_once_with_the_columns_that_exist(recipe: Any, tmp_path: Path) -> None:
    (tmp_path / "d.jsonl").write_text('{"body": "a"}\n{"more": "b"}\n')
    (tmp_path / "e.jsonl").write_text('{"text": "a"}\n{"text": "b", "kind": "news"}\n')
    os.mkfifo(tmp_path / "pipe.jsonl")
    os.mkfifo(tmp_path / "pipe.parquet")
    check_columns(*recipe(materialize={"layout": "kind"}))
    given, shards = recipe()

    def with_text(column: str) -> PipelineSettings:
        return given.model_copy(update={"source": given.source.model_copy(update={"text_column": column})})

    check_columns(with_text("body"), shards)
    told = r"^source\.text_column: no file has a column 'content', it may be "
    with pytest.raises(ColumnError, match=told) as e:
        check_columns(with_text("content"), shards)
    assert all(f"'{name}'" in str(e.value) for name in ("text", "site", "body", "more"))
    damaged = shards[:1]
    check_columns(with_text("content"), damaged)
    assert document_columns(damaged) is None
    assert (document_columns(shards) or {})["dump"] == pa.string()


def test_lines_of_which_only_a_late_one_has_the_text_are_not_refused(recipe, tmp_path, monkeypatch):
    write_lines(tmp_path / "late.jsonl", ['{"id": 1}'] * 3 + ['{"content": "a"}'])
    given, _ = recipe()
    source = settings(tmp_path / "late.jsonl", text_column="content")
    for most in (module.ROWS, 2):
        monkeypatch.setattr(module, "ROWS", most)
        module.known_columns.cache_clear()
        check_columns(given.model_copy(update={"source": source}), settle(discover(source), source))
        assert read(source)[0]["text"].to_pylist() == [None, None, None, "a"]


def shards_of(folder: Path, columns: list[Any], **changes: Any) -> list[SourceShard]:
    folder.mkdir(exist_ok=True)
    for number, column in enumerate(columns):
        extra = {} if column is None else {"extra": column}
        write_table(folder / f"{number}.parquet", text=["some text"], **extra)
    source = settings(folder, **changes)
    return settle(discover(source), source)


@pytest.mark.parametrize(
    ("columns", "kind"),
    [
        ([STRUCT, OTHER, None], "string"),
        ([pa.array([[1]]), pa.array([{"a": 1}]), pa.array([1])], "string"),
        ([pa.array([[1]], pa.list_(pa.int32())), pa.array([[1]], pa.large_list(pa.int8()))], "list<item: int64>"),
        ([STRUCT, pa.nulls(1)], "string"),
        ([pa.array([1], pa.int8()), pa.array([1], pa.int64())], "int64"),
        ([pa.array([1], pa.int8()), pa.array([1], pa.int64()), pa.array([0.5])], "double"),
        ([pa.array([b"\xff"]), pa.array(["x"])], "string"),
        ([pa.array([1], pa.timestamp("ns")), pa.array([1], pa.timestamp("s"))], "timestamp[us]"),
        ([pa.array([1], pa.timestamp("us", "UTC")), pa.array([1], pa.timestamp("us"))], "string"),
        ([pa.array([True]), pa.nulls(1), None], "bool"),
        ([pa.array([True]), pa.array([1])], "string"),
        ([pa.nulls(1)], "string"),
    ],
    ids=lambda columns: "-".join(str(getattr(column, "type", column)) for column in columns),  # equal in each process
)
def test_a_column_has_the_type_that_all_files_agree_on_and_else_is_text(tmp_path, columns, kind):
    assert {shard.columns for shard in shards_of(tmp_path, columns)} == {(("extra", kind),)}


def test_nested_values_become_json_text(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.jsonl", ['{"text": "a", "extra": {"a": 2}}'])
    expected = ['{"a": 1}', '{"b": "é", "c": "/w=="}', '{"a": 2}']
    for shard, text in zip(shards_of(tmp_path, [STRUCT, OTHER]), expected, strict=True):
        table, _ = read(settings(tmp_path / shard.relative), shard.columns)
        assert table["extra"].to_pylist() == [text]
        assert table["extra"].type == pa.string()


def test_files_that_cannot_be_read_have_no_say_and_columns_that_are_not_kept_none(tmp_path: Path) -> None:
    (tmp_path / "damaged.parquet").write_bytes(b"PAR1 damaged")
    (tmp_path / "away.parquet").symlink_to(tmp_path / "nowhere")
    assert {shard.columns for shard in shards_of(tmp_path, [pa.array([1]), None])} == {(("extra", "int64"),)}
    assert {shard.columns for shard in shards_of(tmp_path, [STRUCT], extra_columns=[])} == {()}
    with pytest.raises(ColumnError, match=r"no column 'more', source\.extra_columns may name \['text', 'extra'\]"):
        shards_of(tmp_path, [STRUCT, OTHER], extra_columns=["more"])


def test_files_are_looked_at_evenly_and_what_others_have_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "FILES", 2)
    shards = shards_of(tmp_path, [pa.array([1]), pa.array(["x"]), pa.array([2])])
    assert {shard.columns for shard in shards} == {(("extra", "int64"),)}
    write_table(tmp_path / "1.parquet", text=["a"], late=["x"])
    shards = shards_of(tmp_path / "others", [None] * 3)
    write_table(tmp_path / "others" / "1.parquet", text=["a"], late=["x"])
    source = settings(tmp_path / "others")
    readers = [ShardReader(shard, source) for shard in settle(discover(source), source)]
    assert [reader.not_kept for reader in readers] == [set(), {"late"}, set()]


def settled_source(folder: Path, named: tuple[str, ...] = (), **changes: Any) -> dict[str, SourceShard]:
    source = settings(folder, **changes)
    return {shard.relative: shard for shard in settle(discover(source), source, named)}


def test_a_column_has_the_spelling_of_the_first_file_or_of_the_settings_in_all(tmp_path: Path) -> None:
    write_table(tmp_path / "a.parquet", text=["a"], Source=["x"])
    write_table(tmp_path / "b.parquet", Text=["a"], source=["x"], other=["x"])
    write_lines(tmp_path / "c.jsonl", ['{"TEXT": "a", "SOURCE": "x"}'])
    write_lines(tmp_path / "d.jsonl", ['{"text": "a"}'] * 200 + ['{"text": "a", "source": "late"}'])
    expected = (("Source", "string"), ("other", "string"))
    assert {shard.columns for shard in settled_source(tmp_path).values()} == {expected}
    for shard in settled_source(tmp_path).values():
        batches = [batch for batch, _ in ShardReader(shard, settings(tmp_path)).batches()]
        assert [value for batch in batches for value in batch["Source"].to_pylist()][-1] in {"x", "late"}
    listed = settings(tmp_path, extra_columns=["SOURCE"])
    assert {shard.columns for shard in settle(discover(listed), listed)} == {(("SOURCE", "string"),)}


def test_keys_in_paths_have_one_spelling_and_are_numbers_if_all_are(tmp_path: Path) -> None:
    def year() -> set[tuple[tuple[str, str], ...] | None]:
        return {shard.columns for shard in settled_source(tmp_path).values()}

    for name in ("a/year=2024", "b/Year=1999", "c/year=__HIVE_DEFAULT_PARTITION__"):
        (tmp_path / name).mkdir(parents=True)
        write_table(tmp_path / name / "a.parquet", text=["a"])
    assert year() == {(("year", "int64"),)}
    (tmp_path / "d/YEAR=2024b").mkdir(parents=True)
    write_table(tmp_path / "d/YEAR=2024b/a.parquet", text=["a"])
    assert year() == {(("year", "string"),)}


def test_a_path_that_a_setting_names_is_a_column(tmp_path: Path) -> None:
    write_table(tmp_path / "a.parquet", text=["a"], meta=pa.array([{"Source": "x", "n": 1}]))
    write_lines(tmp_path / "b.jsonl", ['{"text": "a", "meta": {"source": "y"}}', '{"text": "b", "meta": null}'])
    shards = settled_source(tmp_path, ("META.source", "dump"))
    assert {shard.columns for shard in shards.values()} == {(("meta", "string"), ("META.source", "string"))}
    for shard in shards.values():
        [(batch, _)] = ShardReader(shard, settings(tmp_path)).batches()
        assert batch["META.source"].to_pylist() in (["x"], ["y", None])


def test_a_setting_spells_a_column_as_the_documents_have_it(recipe: Any) -> None:
    check_columns(*recipe(materialize={"layout": "site"}, report={"by": ["url", "site"]}, score="n_chars"))
    for named, told in (
        ({"report": {"by": ["SITE"]}}, "'SITE', it may be one of site$"),
        ({"score": "N_Chars"}, "n_chars$"),
    ):
        with pytest.raises(ColumnError, match=told):
            check_columns(*recipe(**named))
