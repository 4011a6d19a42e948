"""Columns are settled before any work, and those that the settings name are found, or refused."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from fineweb_mask.flows.recipe import with_overrides
from fineweb_mask.models.settings import PipelineSettings, SourceSettings
from fineweb_mask.tasks.source import columns as source_columns
from fineweb_mask.tasks.source.columns import ColumnError, check_columns, document_columns, settle
from fineweb_mask.tasks.source.discovery import SourceShard, discover
from fineweb_mask.tasks.source.reader import ShardReader
from tests.tasks.source_files import read, settings, write_lines, write_table

STRUCT = pa.array([{"a": 1}])
OTHER = pa.array([{"b": "é", "c": b"\xff"}])


@pytest.fixture
def recipe(
    tmp_path: Path, make_parquet: Callable[..., Path], make_document: Callable[..., dict[str, Any]]
) -> Callable[..., tuple[PipelineSettings, list[SourceShard]]]:
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
        return settings, discover(settings.source)

    return build


@pytest.mark.parametrize(
    "named",
    [
        {},
        {"materialize": {"layout": "flat"}},
        {"materialize": {"layout": "language"}},
        {"materialize": {"layout": "site"}, "report": {"by": ["url", "site"]}},
        {"selection": {"groups": {"column": "site"}}},
        {"ingest": {"copies": {"prefer": {"site": ["a"]}, "exempt": {"site": ["b"]}}}},
        {"materialize": {"layout": "site"}, "extra_columns": ["site"]},
    ],
)
def test_columns_that_some_file_has_may_be_named(recipe: Any, named: dict[str, Any]) -> None:
    check_columns(*recipe(**named))


@pytest.mark.parametrize(
    ("named", "message"),
    [
        (
            {"materialize": {"layout": "lang"}},
            r"materialize\.layout: .* 'lang', it may be one of flat, id, .*site$",
        ),
        ({"materialize": {"layout": "Sit"}}, r"materialize\.layout: .* 'Sit'"),
        ({"selection": {"groups": {"column": "Sit"}}}, r"selection\.groups\.column: .* 'Sit', it may be one of id, "),
        ({"ingest": {"copies": {"prefer": {"Sit": ["a"]}}}}, r"ingest\.copies\.prefer: .* 'Sit'"),
        ({"ingest": {"copies": {"exempt": {"Sit": ["a"]}}}}, r"ingest\.copies\.exempt: .* 'Sit'"),
        ({"quality": {"by": "sit", "scorers": []}}, r"quality\.by: .* 'sit'"),
        ({"report": {"by": ["site", "kind"]}}, r"report\.by\.1: .* 'kind', it may be one of id, .*site$"),
        ({"report": {"by": ["text"]}}, r"report\.by: the text itself cannot be a group"),
        ({"score": "grade"}, r"quality\.scorers\.0\.column: .* 'grade'"),
        (
            {"materialize": {"layout": "site"}, "extra_columns": []},
            r"materialize\.layout: .* 'site', .*; source\.extra_columns adds some of the source",
        ),
    ],
)
def test_a_column_that_no_file_has_is_refused(recipe: Any, named: dict[str, Any], message: str) -> None:
    with pytest.raises(ColumnError, match=message):
        check_columns(*recipe(**named))


def test_unreadable_files_are_skipped(recipe: Any) -> None:
    settings, [damaged, *_] = recipe(materialize={"layout": "lang"})
    check_columns(settings, [damaged])
    assert document_columns([damaged], settings.source, {"lang"}) is None


def test_no_file_is_read_for_columns_that_all_documents_have(tmp_path: Path) -> None:
    missing = SourceShard(name="x", relative="x", url=f"file://{tmp_path}/x", format="parquet", bytes=1, fingerprint="")
    columns = document_columns([missing], SourceSettings(path=str(tmp_path)), {"dump", "n_chars"})
    assert columns is not None
    assert columns["dump"] == pa.string()


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_columns_of_lines_are_found(recipe: Any, tmp_path: Path, suffix: str) -> None:
    import gzip

    lines = b'{"text": "a"}\n{"text": "b", "kind": "news"}\n'
    (tmp_path / f"d.jsonl{suffix}").write_bytes(gzip.compress(lines) if suffix else lines)
    check_columns(*recipe(materialize={"layout": "kind"}))


def test_a_wrong_text_column_is_told_once_with_the_columns_that_exist(recipe: Any, tmp_path: Path) -> None:
    (tmp_path / "d.jsonl").write_text('{"body": "a"}\n{"more": "b"}\n')
    settings, shards = recipe()
    wrong = settings.model_copy(update={"source": settings.source.model_copy(update={"text_column": "content"})})
    with pytest.raises(
        ColumnError, match=r"^source\.text_column: no source file has a column 'content', it may be "
    ) as e:
        check_columns(wrong, shards)
    assert all(f"'{name}'" in str(e.value) for name in ("text", "site", "body", "more"))


def test_a_text_column_that_one_file_has_may_be_named(recipe: Any, tmp_path: Path) -> None:
    (tmp_path / "z.jsonl").write_text('{"content": "a"}\n')
    settings, shards = recipe()
    check_columns(settings.model_copy(update={"source": SourceSettings(path="x", text_column="content")}), shards)


def test_lines_of_which_only_a_late_one_has_the_text_are_not_refused(
    recipe: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lines" / "a.jsonl").parent.mkdir()
    (tmp_path / "lines" / "a.jsonl").write_text('{"id": 1}\n' * 3 + '{"content": "a"}\n')
    source = SourceSettings(path=str(tmp_path / "lines"), text_column="content")
    settings, _ = recipe()
    check_columns(settings.model_copy(update={"source": source}), discover(source))
    monkeypatch.setattr(source_columns, "FIRST_ROWS", 2)
    check_columns(settings.model_copy(update={"source": source}), discover(source))


def test_a_pipe_is_not_opened_to_look_for_columns(recipe: Any, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.jsonl")
    os.mkfifo(tmp_path / "aa.parquet")
    check_columns(*recipe(materialize={"layout": "site"}))


def shards_of(folder: Path, columns: list[Any], **changes: Any) -> list[SourceShard]:
    folder.mkdir(exist_ok=True)
    for number, column in enumerate(columns):
        extra = {} if column is None else {"extra": column}
        write_table(folder / f"{number}.parquet", text=["some text"], **extra)
    source = settings(folder, **changes)
    return settle(discover(source), source)


@pytest.mark.parametrize(
    ("columns", "as_text"),
    [
        ([STRUCT, pa.array(["x"])], [True, False]),
        ([STRUCT, OTHER, None], [True, True, False]),
        ([pa.array([[1]]), pa.array([{"a": 1}]), pa.array([1])], [True, True, True]),
        ([pa.array([[1]], pa.list_(pa.int32())), pa.array([[1]], pa.large_list(pa.int32()))], [False, False]),
        ([pa.array([["a"]]), pa.array([["a"]], pa.list_(pa.string_view()))], [False, False]),
        ([STRUCT, pa.nulls(1)], [False, False]),
        ([pa.array([1], pa.int8()), pa.array([1], pa.int64()), pa.array([0.5])], [False, False, False]),
        ([pa.array([1]), pa.array(["x"])], [False, False]),
        ([pa.array([b"\xff"]), pa.array(["x"])], [True, False]),
        ([pa.array([1], pa.timestamp("ns")), pa.array([1], pa.timestamp("us"))], [True, True]),
        ([pa.array([1], pa.timestamp("ms")), pa.array([1], pa.timestamp("us"))], [False, False]),
        ([pa.array([1], pa.decimal128(38, 2)), pa.array([1], pa.decimal128(38, 10))], [True, True]),
    ],
    ids=lambda columns: "-".join(str(getattr(column, "type", column)) for column in columns),  # equal in each process
)
def test_a_column_is_text_where_no_type_holds_all_values(
    tmp_path: Path, columns: list[Any], as_text: list[bool]
) -> None:
    shards = shards_of(tmp_path, columns)
    assert [shard.as_text for shard in shards] == [("extra",) if one else () for one in as_text]


def test_nested_values_become_json_text(tmp_path: Path) -> None:
    for shard, expected in zip(
        shards_of(tmp_path, [STRUCT, OTHER, pa.array(["x"])]), ['{"a": 1}', '{"b": "é", "c": "/w=="}', "x"], strict=True
    ):
        table, _ = read(settings(tmp_path / shard.relative), shard.as_text)
        assert table["extra"].to_pylist() == [expected]
        assert table["extra"].type == pa.string()


def test_beside_json_lines_nested_columns_are_text(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.jsonl", ['{"text": "a", "extra": {"a": 2}}'])
    lines, parquet = sorted(shards_of(tmp_path, [STRUCT]), key=lambda shard: shard.format)
    assert (lines.as_text, parquet.as_text) == ((), ("extra",))


def test_columns_that_are_not_kept_are_not_settled(tmp_path: Path) -> None:
    assert not any(shard.as_text for shard in shards_of(tmp_path, [STRUCT, OTHER], extra_columns=["more"]))
    assert not any(shard.as_text for shard in shards_of(tmp_path, [STRUCT, OTHER], extra_columns=[]))


def test_files_that_cannot_be_read_have_no_say(tmp_path: Path) -> None:
    (tmp_path / "damaged.parquet").write_bytes(b"PAR1 damaged")
    (tmp_path / "away.parquet").symlink_to(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "pipe.parquet")
    shards = shards_of(tmp_path, [STRUCT, OTHER])
    assert [shard.relative for shard in shards if shard.as_text] == ["0.parquet", "1.parquet"]


def settled_source(folder: Path, named: tuple[str, ...] = (), **changes: Any) -> dict[str, SourceShard]:
    source = settings(folder, **changes)
    return {shard.relative: shard for shard in settle(discover(source), source, named)}


def test_a_column_has_the_spelling_of_the_first_file_in_all(tmp_path: Path) -> None:
    write_table(tmp_path / "a.parquet", text=["a"], Source=["x"])
    write_table(tmp_path / "b.parquet", Text=["a"], source=["x"], other=["x"])
    write_lines(tmp_path / "c.jsonl", ['{"TEXT": "a", "SOURCE": "x"}'])
    write_lines(tmp_path / "d.jsonl", ['{"text": "a"}'] * 200 + ['{"text": "a", "source": "late"}'])
    shards = settled_source(tmp_path)
    assert {name: shard.spelled for name, shard in shards.items()} == {
        "a.parquet": (),
        "b.parquet": ("Source",),
        "c.jsonl": ("Source",),
        "d.jsonl": ("Source",),
    }
    names = {tuple(field.name for field in ShardReader(shard, settings(tmp_path)).extra) for shard in shards.values()}
    assert names == {("Source",), ("Source", "other")}


def test_a_listed_column_has_the_spelling_of_the_list(tmp_path: Path) -> None:
    write_table(tmp_path / "a.parquet", text=["a"], Source=["x"])
    write_table(tmp_path / "b.parquet", text=["a"], source=["x"])
    source = settings(tmp_path, extra_columns=["SOURCE"])
    for shard in settle(discover(source), source):
        assert [field.name for field in ShardReader(shard, source).extra] == ["SOURCE"]
        assert shard.spelled == ()


def test_whole_numbers_elsewhere_are_looked_for_in_fractions_alone(tmp_path: Path) -> None:
    write_table(tmp_path / "a.parquet", text=["a"], year=[2020], share=[0.5])
    write_table(tmp_path / "b.parquet", text=["a"], Year=[2020.0], share=[0.5])
    write_lines(tmp_path / "c.jsonl", ['{"text": "a", "year": 2020.0, "share": 1.0}'])
    write_lines(tmp_path / "d.jsonl", ['{"text": "a", "year": 2020, "share": 1.0}'])
    shards = settled_source(tmp_path)
    assert {name: shard.whole for name, shard in shards.items()} == {
        "a.parquet": (),
        "b.parquet": ("year",),
        "c.jsonl": ("year",),
        "d.jsonl": (),
    }
    kinds = [
        dict(zip(["year", "share"], ShardReader(shard, settings(tmp_path)).extra, strict=True))
        for shard in shards.values()
    ]
    assert {kind["year"].type for kind in kinds} == {pa.int64()}
    assert {kind["share"].type for kind in kinds} == {pa.float64()}


def test_a_path_that_a_setting_names_is_a_column(tmp_path: Path) -> None:
    write_table(tmp_path / "a.parquet", text=["a"], meta=pa.array([{"Source": "x", "n": 1}]))
    write_lines(tmp_path / "b.jsonl", ['{"text": "a", "meta": {"source": "y"}}', '{"text": "b", "meta": null}'])
    shards = settled_source(tmp_path, ("meta.source", "META.source", "dump"))
    assert {shard.paths for shard in shards.values()} == {("META.source",)}
    for shard in shards.values():
        reader = ShardReader(shard, settings(tmp_path))
        assert [field.name for field in reader.extra] == ["meta", "META.source"]
        [(batch, _)] = reader.batches()
        assert batch["META.source"].to_pylist() in (["x"], ["y", None])


@pytest.mark.parametrize(
    ("sections", "spelled"),
    [
        ({"materialize": {"layout": "SITE"}}, {"materialize.layout": "site"}),
        ({"report": {"by": ["url", "Language", "Site"]}}, {"report.by.1": "language", "report.by.2": "site"}),
        ({"selection": {"groups": {"column": "Site"}}}, {"selection.groups.column": "site"}),
        ({"selection": {"group_column": "Site"}}, {"selection.group_column": "site"}),
        ({"ingest": {"groups": ["Site"]}}, {"ingest.groups.0": "site"}),
        ({"ingest": {"copies": {"prefer": {"Site": ["a"]}}}}, {"ingest.copies.prefer": {"site": ["a"]}}),
        ({"score": "Language_Score"}, {"quality.scorers.0.column": "language_score"}),
        ({"materialize": {"layout": "site"}}, {}),
    ],
)
def test_settings_find_a_column_in_any_spelling(recipe: Any, sections: dict[str, Any], spelled: dict[str, Any]) -> None:
    given, shards = recipe(**sections)
    assert check_columns(given, shards) == spelled
    assert check_columns(with_overrides(given, spelled), shards) == {}


def test_a_listed_column_may_be_named_in_another_spelling(recipe: Any) -> None:
    given, shards = recipe(
        extra_columns=["Site"], quality={"scorers": [{"kind": "column", "column": "N_CHARS"}], "by": "SITE"}
    )
    assert check_columns(given, shards) == {"quality.scorers.0.column": "n_chars", "quality.by": "Site"}
