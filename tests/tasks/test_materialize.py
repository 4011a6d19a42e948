"""The product: the selected documents as they were, and papers that say where they came from."""

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
import zstandard

from models.schemas import FINEWEB
from models.settings import MaterializeSettings, SourceSettings
from tasks import materialize
from tasks.card import size_category
from tasks.dataset_files import ParquetParts
from tasks.dataset_rows import common_schema, folder_name
from tasks.lake import LakeError, StageFile, digest, file_digest
from tasks.stage import BadShardError
from tasks.stage_parquet import written_parquet
from tasks.whole_files import tree_files

HOSTILE = [
    "../x",
    "a/b",
    "..",
    ".",
    "",
    None,
    "unknown",
    "x" * 300,
    "x" * 300 + "y",
    'it\'s "quoted"',
    "<script>alert(1)</script>",
    "a|b`c`\n| d",
    "nul\x00",
    "$\\frac$ 雪",
    "*",
    "{i}",
]


@pytest.fixture(scope="module")
def hostile(
    tmp_path_factory: pytest.TempPathFactory,
    pipeline: Callable[..., Any],
    recipe: Any,
    make_parquet: Callable[..., Path],
    make_document: Callable[..., Any],
) -> Any:
    """A workspace of which everything is selected and whose dumps have bad names, with columns of its own."""
    folder = tmp_path_factory.mktemp("it's [hostile]")
    extra = (pa.field("tags", pa.list_(pa.string())), pa.field('say "hi"', pa.int64()))
    rows = [make_document(i, dump=dump, tags=[str(i)]) | {'say "hi"': i} for i, dump in enumerate(HOSTILE)]
    make_parquet(folder / "source" / "a.parquet", rows[::2], extra)
    make_parquet(folder / "source" / "b.parquet", rows[1::2], extra)
    changes = {
        "workspace": str(folder / "workspace"),
        "source": SourceSettings(path=str(folder / "source")),
        "selection": recipe.selection.model_copy(update={"select_ratio": 1.0}),
    }
    return pipeline(recipe.model_copy(update=changes))


def parts(workspace: Any) -> list[Path]:
    return sorted((workspace.dataset / "data").rglob("*.parquet"))


def selected_rows(built: Any) -> list[dict[str, Any]]:
    """Return what the dataset must hold, put together row by row from the stages' files."""
    rows = []
    for shard, *files in zip(built.shards, built.documents, built.scores, built.masks, strict=True):
        source = {row["id"]: row for row in pq.read_table(shard.url.removeprefix("file://")).to_pylist()}
        for document, scores, mask in zip(*(built.read(file).to_pylist() for file in files), strict=True):
            assert document["row"] == scores["row"] == mask["row"]
            if mask["selected"]:
                own = {"inclusion": mask["inclusion"], "block": mask["block"]}
                rows.append(source[document["id"]] | {name: scores[name] for name in ("space", "quality")} | own)
    return rows


def test_the_dataset_is_the_selected_rows_in_order(built: Any) -> None:
    expected = selected_rows(built)
    assert len(expected) == built.counts.selected == built.dataset.rows > 10
    by_dump = {path.parent.name: pq.read_table(path) for path in parts(built.workspace)}
    assert set(by_dump) == {row["dump"] for row in expected}
    assert len(by_dump) == 2
    for dump, table in by_dump.items():
        assert table.to_pylist() == [row for row in expected if row["dump"] == dump]


def test_columns_come_in_order_with_their_types(built: Any) -> None:
    for path in parts(built.workspace):
        schema = pq.read_schema(path)
        assert schema.names == [*FINEWEB.names, "space", "quality", "inclusion", "block"]
        assert [schema.field(name).type for name in FINEWEB.names] == FINEWEB.types
        assert [schema.field(name).type for name in schema.names[9:]] == [pa.float32()] * 3 + [pa.string()]


def test_a_flat_layout_holds_the_same_rows(copied: Any) -> None:
    flat = copied.recipe.materialize.model_copy(update={"layout": "flat"})
    job = materialize.plan(
        copied.workspace,
        copied.dataset_job.shards,
        copied.counts,
        copied.blocks,
        copied.recipe.model_copy(update={"materialize": flat}),
    )
    materialize.materialize(job)
    [path] = parts(copied.workspace)
    assert path.relative_to(copied.workspace.dataset).as_posix() == "data/part-00000.parquet"
    assert pq.read_table(path).to_pylist() == selected_rows(copied)
    assert "data/part-*.parquet" in (copied.workspace.dataset / "README.md").read_text()


def again(built: Any, **changes: Any) -> StageFile:
    """Materialize a workspace with other settings."""
    given = MaterializeSettings.model_validate(built.recipe.materialize.model_dump() | changes)
    recipe = built.recipe.model_copy(update={"materialize": given})
    job = materialize.plan(built.workspace, built.dataset_job.shards, built.counts, built.blocks, recipe)
    return materialize.materialize(job.model_copy(update={"anew": True}))


def data_digests(workspace: Any) -> dict[str, str]:
    return {name: found for name, found in snapshot(workspace.dataset).items() if name.startswith("data/")}


def test_any_column_can_be_the_layout(copied: Any) -> None:
    again(copied, layout="url")  # a folder each, so all shards are read at once
    expected = selected_rows(copied)
    found = {path.parent.name: pq.read_table(path).to_pylist() for path in parts(copied.workspace)}
    assert found == {folder_name(row["url"]): [row] for row in expected}


def test_a_layout_that_no_column_has_is_refused(copied: Any) -> None:
    before = snapshot(copied.workspace.dataset)
    with pytest.raises(LakeError, match=r"layout: no column 'lang', it may be 'flat' or one of text, id, d"):
        again(copied, layout="lang")
    assert snapshot(copied.workspace.dataset) == before


def test_a_layout_of_too_many_folders_is_refused(copied: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.dataset_rows.MAX_FOLDERS", 3)
    with pytest.raises(LakeError, match=r"materialize\.layout: 'url' has 16 values, a folder each"):
        again(copied, layout="url")


@pytest.mark.parametrize("layout", ["dump", "flat", "url"])
def test_bytes_do_not_depend_on_threads_or_memory(copied: Any, layout: str) -> None:
    found = []
    for changes in ({"threads": 1}, {"threads": 4}, {"memory_limit": "100MB"}):
        again(copied, layout=layout, **changes)
        found.append(data_digests(copied.workspace))
    assert found[0] == found[1] == found[2]


def flat_ids(copied: Any, **changes: Any) -> list[str]:
    again(copied, layout="flat", **changes)
    [path] = parts(copied.workspace)
    ids: list[str] = pq.read_table(path)["id"].to_pylist()
    return ids


def test_shuffled_rows_are_the_same_rows_in_an_order_of_the_seed(copied: Any) -> None:
    plain = flat_ids(copied)
    first, same, other = (flat_ids(copied, shuffle=True, **given) for given in ({}, {"threads": 1}, {"seed": 1}))
    assert first == same
    assert len({tuple(order) for order in (plain, first, other)}) == 3
    assert sorted(first) == sorted(other) == sorted(plain)


def test_a_shuffle_is_uniform_enough(copied: Any) -> None:
    plain = flat_ids(copied)
    means = [0.0] * len(plain)
    for seed in range(12):
        places = {id_: place for place, id_ in enumerate(flat_ids(copied, shuffle=True, seed=seed))}
        means = [mean + places[id_] / 12 for mean, id_ in zip(means, plain, strict=True)]
    middle = (len(plain) - 1) / 2
    spread = ((len(plain) ** 2 - 1) / 12 / 12) ** 0.5  # of the mean of twelve uniform places
    assert all(abs(mean - middle) < 4 * spread for mean in means)


def test_a_shuffled_dump_stays_in_its_folder(copied: Any) -> None:
    again(copied, shuffle=True)
    expected = selected_rows(copied)
    for path in parts(copied.workspace):
        rows = pq.read_table(path).to_pylist()
        of_dump = [row for row in expected if row["dump"] == path.parent.name]
        assert rows != of_dump
        assert sorted(rows, key=lambda row: row["id"]) == sorted(of_dump, key=lambda row: row["id"])


@pytest.mark.parametrize("layout", ["dump", "url"])
def test_lines_hold_what_parquet_holds(copied: Any, layout: str) -> None:
    again(copied, layout=layout)
    expected = {path.parent.name: pq.read_table(path).to_pylist() for path in parts(copied.workspace)}
    dataset = again(copied, layout=layout, format="jsonl.zst")
    paths = sorted((copied.workspace.dataset / "data").rglob("*.jsonl.zst"))
    assert not parts(copied.workspace)
    for path in paths:
        with zstandard.open(path, "rt", encoding="utf-8") as stream:
            assert [json.loads(line) for line in stream] == expected[path.parent.name]
    assert dataset.details["tokens"] == sum(row["token_count"] for row in selected_rows(copied))
    [config] = card(copied.workspace)[0]["configs"]
    assert {*copied.workspace.dataset.glob(config["data_files"][0]["path"])} == {*paths}


TYPES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "large_string": (pa.large_string(), ["a", None]),
    "dictionary": (pa.dictionary(pa.int32(), pa.string()), ["a", None]),
    "day": (pa.date32(), [date(2024, 2, 29), None]),
    "nanoseconds": (pa.timestamp("ns"), [datetime(2024, 1, 2, 3, 4, 5, 678901), None]),  # noqa: DTZ001
    "zoned": (pa.timestamp("us", "Europe/Berlin"), [datetime(2024, 1, 2, tzinfo=UTC), None]),
    "time": (pa.time32("ms"), [time(1, 2, 3), None]),
    "duration": (pa.duration("us"), [timedelta(seconds=1), None]),
    "decimal": (pa.decimal128(38, 4), [Decimal("1.2345"), None]),
    "binary": (pa.binary(), [b"\xff\x00", None]),
    "fixed": (pa.binary(2), [b"ab", None]),
    "unsigned": (pa.uint64(), [2**64 - 1, None]),
    "half": (pa.float16(), [1.5, None]),
    "boolean": (pa.bool_(), [True, None]),
    "list": (pa.large_list(pa.int8()), [[1, None], None]),
    "vector": (pa.list_(pa.float16(), 2), [[1, 2], None]),
    "nested": (pa.struct([("a", pa.int32()), ("b", pa.list_(pa.string()))]), [{"a": 1, "b": ["x"]}, None]),
    "map": (pa.map_(pa.string(), pa.int32()), [[("k", 1)], None]),
    "nothing": (pa.null(), [None, None]),
    "ключ 雪 ..": (pa.string(), ["x", None]),
}


@pytest.fixture
def make_workspace(
    tmp_path: Path, pipeline: Callable[..., Any], recipe: Any, make_parquet: Callable[..., Path]
) -> Callable[..., Any]:
    """Return the function that selects all documents of the files that it is given, by name, as rows and columns."""

    def make(files: dict[str, tuple[list[dict[str, Any]], list[pa.Field]]], **changes: Any) -> Any:
        for name, (rows, extra) in files.items():
            make_parquet(tmp_path / "source" / name, rows, tuple(extra))
        everything = recipe.selection.model_copy(update={"select_ratio": 1.0})
        source = SourceSettings(path=str(tmp_path / "source"))
        given = {"workspace": str(tmp_path / "workspace"), "source": source, "selection": everything}
        return pipeline(recipe.model_copy(update=given | changes))

    return make


@pytest.mark.parametrize("layout", ["dump", "url"])
def test_columns_of_any_type_come_out_as_they_went_in(
    make_workspace: Callable[..., Any], make_document: Callable[..., Any], layout: str
) -> None:
    fields = [pa.field(name, kind) for name, (kind, _) in TYPES.items()]
    rows = [make_document(i) | {name: values[i % 2] for name, (_, values) in TYPES.items()} for i in range(6)]
    built = make_workspace({"a.parquet": (rows, fields)})
    again(built, layout=layout)
    source = pq.read_table(built.shards[0].url.removeprefix("file://"))
    found = {row["id"]: row for path in parts(built.workspace) for row in pq.read_table(path).to_pylist()}
    schema = pq.read_schema(parts(built.workspace)[0])
    for name in TYPES:
        assert schema.field(name).type == source.schema.field(name).type
    for row in source.to_pylist():
        assert {name: found[row["id"]][name] for name in source.column_names} == row


@pytest.mark.parametrize("file_format", ["parquet", "jsonl.zst"])
def test_the_datasets_package_loads_the_folder(copied: Any, tmp_path: Path, file_format: str) -> None:
    again(copied, format=file_format)
    code = (
        "import json, sys, datasets; d = datasets.load_dataset(sys.argv[1], split='train');"
        "print(json.dumps([d.column_names, d['id'][:]]))"
    )
    home = {"HF_HOME": str(tmp_path / "hub"), "HF_HUB_OFFLINE": "1"}
    loaded = subprocess.run(
        [sys.executable, "-c", code, str(copied.workspace.dataset)],
        env=os.environ | home,
        capture_output=True,
        text=True,
        check=False,
    )
    assert loaded.returncode == 0, loaded.stderr
    columns, ids = json.loads(loaded.stdout.splitlines()[-1])
    expected = selected_rows(copied)
    assert columns == [*FINEWEB.names, "space", "quality", "inclusion", "block"]
    assert sorted(ids) == sorted(row["id"] for row in expected)


def test_a_writer_that_loses_a_row_is_found_out(copied: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    before = snapshot(copied.workspace.dataset)
    append = ParquetParts._append
    monkeypatch.setattr(ParquetParts, "_append", lambda self, table: append(self, table.slice(1)))
    with pytest.raises(LakeError, match=r"files hold 14 documents of \d+ tokens, 16 of \d+ were selected"):
        again(copied)
    assert snapshot(copied.workspace.dataset) == before


def test_files_of_another_run_are_not_mixed_in(copied: Any) -> None:
    before = snapshot(copied.workspace.dataset)
    path = copied.workspace.resolve(copied.masks[1])
    table = pq.read_table(path)
    with written_parquet(path, table.schema, copied.select_jobs[0].key.model_copy(update={"inputs": "x"})) as writer:
        writer.write(table.combine_chunks().to_batches()[0])
    with pytest.raises(LakeError, match=r"^masks/a-001\.parquet was written by another run since"):
        again(copied)
    path.unlink()
    with pytest.raises(LakeError, match=r"^masks/a-001\.parquet is missing or damaged: run again"):
        again(copied)
    assert snapshot(copied.workspace.dataset) == before


@pytest.mark.parametrize("layout", ["dump", "url", "s0"])
def test_columns_may_be_called_what_a_query_might_call_its_own(
    make_workspace: Callable[..., Any], make_document: Callable[..., Any], layout: str
) -> None:
    names = ["s0", "d0", "folder", "number", "file", "line", "rows", "chosen", "documents", 'it\'s "x"; --']
    rows = [make_document(i) | {name: f"{name} {i}" for name in names} for i in range(6)]
    built = make_workspace({"a.parquet": (rows, [pa.field(name, pa.string()) for name in names])})
    for form in ("parquet", "jsonl.zst"):
        again(built, layout=layout, format=form)
        found: list[dict[str, Any]] = []
        for path in tree_files(built.workspace.dataset / "data"):
            if form == "parquet":
                found += pq.read_table(path).to_pylist()
            else:
                with zstandard.open(path, "rt", encoding="utf-8") as stream:
                    found += [json.loads(line) for line in stream]
        assert {row["id"]: [row[name] for name in names] for row in found} == {
            row["id"]: [row[name] for name in names] for row in rows
        }


def test_files_of_a_shard_that_is_no_longer_there_are_not_read(copied: Any) -> None:
    before = data_digests(copied.workspace)
    for files in (copied.documents, copied.scores, copied.masks):
        path = copied.workspace.resolve(files[0])
        shutil.copy2(path, path.with_name("zzz.parquet"))
    again(copied)
    assert data_digests(copied.workspace) == before


def test_too_little_memory_says_which_setting_to_raise(copied: Any) -> None:
    before = snapshot(copied.workspace.dataset)
    with pytest.raises(LakeError, match=r"materialize\.memory_limit: 1MB is too little for DuckDB: raise it"):
        again(copied, memory_limit="1MB", layout="url")
    assert snapshot(copied.workspace.dataset) == before


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"a file system can be mounted by root only: {mounted.stderr.decode().strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_a_full_or_read_only_disk_leaves_the_old_dataset(copied: Any, small_disk: Path) -> None:
    """The workspace's dataset lies on a small disk; what DuckDB needs beside it lies elsewhere."""
    root = small_disk / "workspace"
    shutil.copytree(copied.workspace.root, root, ignore=shutil.ignore_patterns("reports", "fitted", "embeddings"))
    jobs = copied.dataset_job.model_copy(update={"workspace": str(root), "anew": True})
    before = snapshot(root / "dataset")
    spill = copied.recipe.model_copy(
        update={"materialize": copied.recipe.materialize.model_copy(update={"spill": str(copied.workspace.root)})}
    )
    with (small_disk / "filler").open("wb", buffering=0) as filler, contextlib.suppress(OSError):
        while True:
            filler.write(b"x" * 4096)
    with pytest.raises(LakeError, match=r"No space left on device: free some space there, or choose another workspace"):
        materialize.materialize(jobs.model_copy(update={"recipe": spill}))
    with pytest.raises(LakeError, match=r"materialize-spill: .*No space left on device.*: free some"):
        materialize.materialize(jobs)
    assert snapshot(root / "dataset") == before
    assert not list(root.rglob(".*.partial"))
    (small_disk / "filler").unlink()
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(LakeError, match=r"Read-only file system: choose a workspace that can be written"):
        materialize.materialize(jobs.model_copy(update={"recipe": spill}))
    assert snapshot(root / "dataset") == before
    subprocess.run(["mount", "-o", "remount,rw", str(small_disk)], check=True)
    materialize.materialize(jobs)
    assert snapshot(root / "dataset") == before  # the same dataset, made again


def test_hostile_dumps_stay_inside_the_data_folder(hostile: Any) -> None:
    data = hostile.workspace.dataset / "data"
    paths = parts(hostile.workspace)
    assert all(path.parent.parent == data and path.resolve() == path for path in paths)
    folders = {path.parent.name for path in paths}
    assert len(folders) == len(HOSTILE) - 2  # null, empty and "unknown" share one
    known = [dump for dump in HOSTILE if dump and len(dump) <= 200]
    assert {unquote(folder) for folder in folders if len(folder) < 200} == set(known)
    assert not {path.name for path in tree_files(hostile.workspace.root.parent)} & {"x", "b"}
    rows = [row for path in paths for row in pq.read_table(path).to_pylist()]
    expected = selected_rows(hostile)
    assert sorted(rows, key=lambda row: row["id"]) == sorted(expected, key=lambda row: row["id"])
    assert Counter(row["dump"] for row in rows) == Counter(HOSTILE)


def test_columns_of_the_source_are_carried_between(hostile: Any) -> None:
    for path in parts(hostile.workspace):
        names = pq.read_schema(path).names
        assert names == [*FINEWEB.names, "tags", 'say "hi"', "space", "quality", "inclusion", "block"]


@pytest.mark.parametrize("dump", [name for name in HOSTILE if name])
def test_a_folder_s_name_is_one_plain_part(dump: str) -> None:
    name = folder_name(dump)
    assert re.fullmatch(r"[\w%~-][\w.%~-]*", name, re.ASCII)
    assert len(name) < 256


def test_folder_names_differ_where_dumps_do() -> None:
    dumps = [*filter(None, HOSTILE), "%2E", "%2E.", "..%2Fx", "CC-MAIN-2024-10", "é" * 50, "é" * 51]
    assert len({folder_name(dump) for dump in dumps}) == len(dumps)
    assert folder_name("CC-MAIN-2024-10") == "CC-MAIN-2024-10"


def card(workspace: Any) -> tuple[dict[str, Any], str]:
    text = (workspace.dataset / "README.md").read_text(encoding="utf-8")
    _, header, body = text.split("---\n", 2)
    return yaml.safe_load(header), body


def test_the_card_s_header_is_what_the_hub_reads(built: Any) -> None:
    header, body = card(built.workspace)
    assert header["size_categories"] == ["n<1K"]
    assert header["license"] == "odc-by"
    [config] = header["configs"]
    assert config["config_name"] == "default"
    [files] = config["data_files"]
    assert files["split"] == "train"
    matched = {path.relative_to(built.workspace.dataset) for path in built.workspace.dataset.glob(files["path"])}
    assert matched == {path.relative_to(built.workspace.dataset) for path in parts(built.workspace)}
    assert f"\n{built.counts.selected} documents (" in body
    assert "| `space` |" in body


def test_hostile_titles_do_not_break_the_header(copied: Any) -> None:
    title = 'x: "y"\n---\n# [z]'
    named = copied.recipe.materialize.model_copy(update={"title": title, "license": "no: [t"})
    recipe = copied.recipe.model_copy(update={"materialize": named})
    job = materialize.plan(copied.workspace, copied.dataset_job.shards, copied.counts, copied.blocks, recipe)
    materialize.materialize(job)
    text = (copied.workspace.dataset / "README.md").read_text(encoding="utf-8")
    header = next(yaml.safe_load_all(text.removeprefix("---\n").split("\n---\n")[0]))
    assert header["pretty_name"] == title
    assert header["license"] == "no: [t"


def test_hostile_dumps_do_not_break_the_card_s_table(hostile: Any) -> None:
    _, body = card(hostile.workspace)
    lines = body.split("| dump | documents | selected | share |\n")[1].split("\n\n")[0].splitlines()[1:]
    assert len(lines) == len(HOSTILE) - 2
    for line in lines:
        assert re.fullmatch(r"\| `([^`|]|\\\|)*` \| \d \| \d \| 100\.0% \|", line)
    assert r"| `a\|b'c' \| d` | 1 | 1 | 100.0% |" in lines


def test_the_recipe_in_the_card_makes_the_dataset_again(hostile: Any) -> None:
    _, body = card(hostile.workspace)
    recipe = yaml.safe_load(body.split("```yaml\n")[1].split("```")[0])
    again = type(hostile.recipe).model_validate(recipe | {"workspace": hostile.recipe.workspace})
    assert again.model_copy(update={"engine": hostile.recipe.engine}) == hostile.recipe


def test_provenance_adds_up(built: Any) -> None:
    manifest = json.loads((built.workspace.dataset / "provenance.json").read_text())
    details = manifest["details"]
    counts = details["counts"]
    assert details["rows"] == counts["selected"] == sum(block["selected"] for block in details["blocks"])
    assert counts["documents_in"] == sum(source["documents_in"] for source in details["sources"])
    assert counts["documents_ingested"] == sum(source["documents_kept"] for source in details["sources"])
    for source in details["sources"]:
        assert source["documents_in"] == source["documents_kept"] + sum(source["dropped"].values())
    assert counts["documents_in"] == counts["selected"] + counts["not_selected"] + sum(counts["dropped"].values())
    assert sum(row["selected"] for row in details["retention"]) == counts["selected"]
    assert sum(row["documents"] for row in details["retention"]) == counts["documents_ingested"]
    assert [source["relative"] for source in details["sources"]] == ["a/000.parquet", "a/001.parquet", "b.parquet"]
    assert str(built.workspace.root) not in json.dumps(manifest)
    for name, file in manifest["files"].items():
        path = built.workspace.dataset / name
        assert (file["bytes"], file["sha256"]) == (path.stat().st_size, file_digest(path))
    assert set(manifest["files"]) == {
        path.relative_to(built.workspace.dataset).as_posix() for path in tree_files(built.workspace.dataset)
    } - {"provenance.json"}


def snapshot(folder: Path) -> dict[str, str]:
    return {file.relative_to(folder).as_posix(): file_digest(file) for file in tree_files(folder)}


def test_rows_that_differ_from_the_selection_are_not_published(copied: Any) -> None:
    before = snapshot(copied.workspace.dataset)
    wrong = copied.counts.model_copy(update={"selected": copied.counts.selected + 1})
    given = copied.recipe.materialize.model_copy(update={"title": "Another"})
    recipe = copied.recipe.model_copy(update={"materialize": given})
    job = materialize.plan(copied.workspace, copied.dataset_job.shards, wrong, copied.blocks, recipe)
    with pytest.raises(LakeError, match=f"select {copied.counts.selected} documents, the books say {wrong.selected}"):
        materialize.materialize(job)
    assert snapshot(copied.workspace.dataset) == before


def test_an_interrupted_build_leaves_the_old_dataset(copied: Any) -> None:
    before = snapshot(copied.workspace.dataset)
    given = copied.recipe.materialize.model_copy(update={"title": "Another"})
    recipe = copied.recipe.model_copy(update={"materialize": given})
    job = materialize.plan(copied.workspace, copied.dataset_job.shards, copied.counts, copied.blocks, recipe)
    scores = copied.workspace.resolve(copied.scores[1])
    whole = scores.read_bytes()
    scores.write_bytes(whole[:-20])
    with pytest.raises(LakeError, match=r"^scores/a-001\.parquet is missing or damaged: run again"):
        materialize.materialize(job)
    scores.write_bytes(whole[:40] + bytes(byte ^ 255 for byte in whole[40:80]) + whole[80:])  # a page, found on reading
    with pytest.raises(duckdb.Error):
        materialize.materialize(job)
    assert snapshot(copied.workspace.dataset) == before
    assert not list(copied.workspace.root.glob(".*.partial"))
    assert not list(copied.workspace.cache.rglob("chosen.duckdb"))
    scores.write_bytes(whole)
    materialize.materialize(job)
    assert card(copied.workspace)[0]["pretty_name"] == "Another"


def test_a_lost_part_builds_the_dataset_again(built: Any, copied: Any) -> None:
    parts(copied.workspace)[0].unlink()
    (copied.workspace.dataset / "left over.txt").write_text("x")
    assert copied.dataset_job.current() is None
    assert not materialize.materialize(copied.dataset_job).reused
    for path, original in zip(parts(copied.workspace), parts(built.workspace), strict=True):
        assert path.read_bytes() == original.read_bytes()
    assert not (copied.workspace.dataset / "left over.txt").exists()


@pytest.mark.parametrize("name", ["Text", "Quality", "shard", "_row", "Dump"])
def test_a_column_that_sql_would_mistake_is_refused_at_once(
    tmp_path: Path,
    name: str,
    pipeline: Callable[..., Any],
    recipe: Any,
    make_parquet: Callable[..., Path],
    make_document: Callable[..., Any],
) -> None:
    make_parquet(tmp_path / "a.parquet", [make_document(0) | {name: "x"}], (pa.field(name, pa.string()),))
    changes = {"workspace": str(tmp_path / "workspace"), "source": SourceSettings(path=str(tmp_path / "a.parquet"))}
    with pytest.raises(BadShardError, match=f"column '{name}' has a name that the pipeline writes itself"):
        pipeline(recipe.model_copy(update=changes))


def test_shards_with_different_columns_make_one_dataset(
    tmp_path: Path,
    pipeline: Callable[..., Any],
    recipe: Any,
    make_parquet: Callable[..., Path],
    make_document: Callable[..., Any],
) -> None:
    one, two = pa.field("one", pa.string()), pa.field("two", pa.int64())
    whole, broken = pa.field("n", pa.int64()), pa.field("n", pa.float64())
    rows_a = [make_document(i, dump="A", one="x", n=i) for i in range(6)]
    rows_b = [make_document(i, dump="B", two=i, n=i / 2) for i in range(6, 12)]
    make_parquet(tmp_path / "source" / "a.parquet", rows_a, (one, whole))
    make_parquet(tmp_path / "source" / "b.parquet", rows_b, (two, broken))
    changes = {
        "workspace": str(tmp_path / "workspace"),
        "source": SourceSettings(path=str(tmp_path / "source")),
        "selection": recipe.selection.model_copy(update={"select_ratio": 1.0}),
    }
    built = pipeline(recipe.model_copy(update=changes))
    rows = [row for path in parts(built.workspace) for row in pq.read_table(path).to_pylist()]
    assert {row["id"]: (row["one"], row["two"], row["n"]) for row in rows} == {
        f"<urn:uuid:{i}>": ("x", None, i) if i < 6 else (None, i, i / 2) for i in range(12)
    }
    schemas = [pq.read_schema(path) for path in parts(built.workspace)]
    assert len(schemas) == 2  # one file for each dump
    assert schemas[0].equals(schemas[1])


@pytest.mark.parametrize(
    ("rows", "category"),
    [(0, "n<1K"), (999, "n<1K"), (1_000, "1K<n<10K"), (10**6, "1M<n<10M"), (10**11, "100B<n<1T")],
)
def test_size_categories(rows: int, category: str) -> None:
    assert size_category(rows) == category


def test_the_key_follows_files_and_settings(built: Any) -> None:
    job = built.dataset_job

    def key(shards: Any = job.shards, **changes: Any) -> str:
        given = built.recipe.materialize.model_copy(update=changes)
        recipe = built.recipe.model_copy(update={"materialize": given})
        return materialize.plan(built.workspace, shards, built.counts, built.blocks, recipe).key.fingerprint

    assert key() == key(job.shards[::-1]) == key(memory_limit="1GB") == job.key.fingerprint
    first, *others = job.shards
    changed = first.model_copy(update={"masks": first.masks.model_copy(update={"fingerprint": digest("other")})})
    assert len({key(), key([changed, *others]), key(others), key(title="x"), key(layout="flat")}) == 5


def test_types_that_nothing_unites_become_text() -> None:
    numbers = pa.schema([pa.field("a", pa.int64()), pa.field("b", pa.int64())])
    texts = pa.schema([pa.field("a", pa.string()), pa.field("b", pa.float64()), pa.field("c", pa.bool_())])
    expected = pa.schema([pa.field("a", pa.string()), pa.field("b", pa.float64()), pa.field("c", pa.bool_())])
    assert common_schema([numbers, texts]).equals(expected)
    assert common_schema([texts, numbers, texts]).equals(expected)


def test_the_dataset_goes_to_a_folder_of_its_own(copied: Any, pipeline: Callable[..., Any], tmp_path: Path) -> None:
    folder = tmp_path / "out" / "dataset"
    settings = copied.recipe.materialize.model_copy(update={"output": str(folder)})
    shutil.rmtree(copied.workspace.dataset)
    made = pipeline(copied.recipe.model_copy(update={"workspace": str(copied.workspace.root), "materialize": settings}))
    assert not copied.workspace.dataset.exists()
    assert (folder / "README.md").is_file()
    assert sorted(path.name for path in folder.iterdir()) == ["README.md", "data", "plots", "provenance.json"]
    assert str(folder) not in (folder / "provenance.json").read_text()
    assert made.dataset.fingerprint == copied.dataset.fingerprint
    assert made.dataset_job.current() is not None
    assert made.dataset_job.output.is_there
    assert made.dataset_job.output.shown == str(folder)
    made.dataset_job.output.check()
    next(folder.rglob("*.parquet")).unlink()
    assert made.dataset_job.current() is None
    materialize.materialize(made.dataset_job)
    assert made.dataset_job.current() is not None


@pytest.mark.parametrize("name", ["thesis.txt", "provenance.json"])
def test_a_folder_of_something_else_is_not_replaced(copied: Any, tmp_path: Path, name: str) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    settings = copied.recipe.materialize.model_copy(update={"output": str(folder)})
    output = materialize.Output.of(copied.workspace, settings)
    output.check()
    (folder / name).write_text("mine")
    with pytest.raises(materialize.OutputError, match=r"mine holds something else .*: give a new or empty folder"):
        output.check()
    job = copied.dataset_job.model_copy(
        update={"recipe": copied.recipe.model_copy(update={"materialize": settings}), "anew": True}
    )
    with pytest.raises(materialize.OutputError):
        materialize.materialize(job)
    assert (folder / name).read_text() == "mine"
