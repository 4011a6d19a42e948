"""What a recipe reads: columns that files and settings spell differently are one, from the source to the dataset."""

import json
import logging

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from fineweb_mask.flows.curate import pipeline, prepare
from fineweb_mask.flows.pipeline.dataset import materialize
from fineweb_mask.flows.pipeline.inputs import check_inputs, find_inputs
from fineweb_mask.flows.pipeline.selection import select
from fineweb_mask.tasks.source.columns import ColumnError, remember_columns
from fineweb_mask.tasks.workspace.records.runs import LastRun
from fineweb_mask.tasks.workspace.workspace import Workspace
from tests.flows.pipeline.run_here import RunHere, recipe_of, text_of

KINDS = ["wiki", "books", None]


def rows_of(name):
    """Rows as a program wrote them whose names of columns are each of a spelling of its own."""
    text, identifier, meta, year = {
        "a": ("text", "id", "meta", "year"),
        "b": ("Text", "ID", "Meta", "YEAR"),
        "c": ("TEXT", "Id", "META", "Year"),
    }[name]
    return [
        {text: text_of(ord(name), at), identifier: f"{name}{at}", year: 2020 + at % 2}
        | {meta: {"kind": KINDS[at % 3], "score": at / 30}}
        for at in range(30)
    ]


@pytest.fixture
def corpus(tmp_path):
    """Three files of one table, as three programs wrote them."""
    folder = tmp_path / "corpus"
    folder.mkdir()
    pq.write_table(pa.Table.from_pylist(rows_of("a")), folder / "a.parquet")
    other = [row | {"YEAR": float(row["YEAR"])} for row in rows_of("b")]
    pq.write_table(pa.Table.from_pylist(other), folder / "b.parquet")
    lines = rows_of("c")
    lines[3]["Year"] = float("nan")
    (folder / "c.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return folder


def checked(tmp_path, corpus, scorer=None, **sections):
    scorer = scorer or {"kind": "column", "column": "META.Score"}
    recipe = recipe_of(tmp_path / "w", corpus, quality={"scorers": [scorer]}, **sections)
    return recipe, check_inputs(recipe).shards


def dataset_of(tmp_path):
    return ds.dataset(tmp_path / "w" / "dataset" / "data", format="parquet").to_table()


def test_a_column_is_one_from_the_source_to_the_dataset(tmp_path, corpus):
    kind = "Meta.Kind"
    recipe, shards = checked(
        tmp_path,
        corpus,
        materialize={"layout": kind},
        report={"by": ["year", kind]},
    )
    run = RunHere(recipe, shards=shards)
    pipeline(run)
    table = dataset_of(tmp_path)
    assert table.schema.field("year").type == pa.float64()  # as one of the files has it
    assert {path.name for path in (tmp_path / "w" / "dataset" / "data").iterdir()} == {"wiki", "books", "unknown"}
    for row in table.to_pylist():
        at = int(row["id"][1:])
        assert row[kind] == KINDS[at % 3]
        assert row["year"] == (None if row["id"] == "c3" else 2020 + at % 2)
    assert (table.num_rows, run.quarantined) == (45, {})


@pytest.mark.parametrize("name", ["meta.none", "none.kind"])
def test_a_path_that_leads_nowhere_is_refused(tmp_path, corpus, name):
    with pytest.raises(ColumnError, match=rf"materialize\.layout: no document will have a column '{name}', it may be"):
        checked(tmp_path, corpus, materialize={"layout": name})


@pytest.mark.parametrize("ids", [True, False])
def test_annotations_without_ids_are_said_to_be_by_place(tmp_path, corpus, caplog, ids):
    for name in "abc":
        lines = [({"id": f"{name}{at}"} if ids else {}) | {"q": at / 30} for at in range(30)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, reversed(lines) if ids else lines)))
    recipe, shards = checked(tmp_path, corpus, {"kind": "sidecar", "path": f"{tmp_path}/{{shard}}.jsonl", "field": "q"})
    run = RunHere(recipe, shards=shards)
    with caplog.at_level(logging.WARNING):
        materialize(run, select(run, prepare(run)))
    assert ("the annotations 'sidecar' of 3 files are joined by place, not by id" in caplog.text) == (not ids)
    for row in dataset_of(tmp_path).to_pylist():
        assert row["sidecar"] == pytest.approx(int(row["id"][1:]) / 30)


def test_the_columns_stay_while_the_corpus_grows_and_are_those_of_another_corpus(tmp_path):
    corpus, workspace = tmp_path / "corpus", Workspace(tmp_path / "w")
    corpus.mkdir()
    LastRun(settings=recipe_of(workspace.root, corpus), folder=str(tmp_path), source={}).save(workspace)
    (workspace.root / ".fineweb-mask").touch()

    def columns(**source):
        settings = recipe_of(workspace.root, corpus)
        settings = settings.model_copy(update={"source": settings.source.model_copy(update=source)})
        found = find_inputs(settings)
        remember_columns(workspace, settings, found.shards)
        assert len({shard.columns for shard in found.shards}) == 1
        return dict(found.shards[0].columns)

    def write(name, **values):
        pq.write_table(pa.table({"text": [text_of(0)], **values}), corpus / f"{name}.parquet")

    write("a", site=["x"])
    assert columns() == {"site": "string"}
    write("b", site=["x"], rank=[1])
    assert columns() == {"site": "string"}
    assert columns(extra_columns=["rank"]) == {"rank": "int64"}
    assert columns() == {"site": "string"}
    write("a", place=[1.5])  # another corpus: none of the files that were there
    assert columns() == {"place": "double", "site": "string", "rank": "int64"}
