"""What a recipe reads: columns that files and settings spell differently are one, from the source to the dataset."""

import json
import logging

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from fineweb_mask.flows.curate import pipeline
from fineweb_mask.flows.pipeline.inputs import check_inputs
from fineweb_mask.models.settings import PipelineSettings
from fineweb_mask.tasks.source.columns import ColumnError
from tests.flows.pipeline.run_here import RunHere
from tests.flows.pipeline.test_losses import text_of

KINDS = ["wiki", "books", None]


def rows_of(name, year):
    texts = [text_of([len(name), year, number]) for number in range(30)]
    return [
        {"text": text, "id": f"{name}{at}", "meta": {"kind": KINDS[at % 3], "score": at / 30}, "year": year + at % 2}
        for at, text in enumerate(texts)
    ]


@pytest.fixture
def corpus(tmp_path):
    """Three files of one table, as three programs wrote them."""
    folder = tmp_path / "corpus"
    folder.mkdir()
    pq.write_table(pa.Table.from_pylist(rows_of("a", 2020)), folder / "a.parquet")
    other = [
        {"Text": row["text"], "ID": row["id"], "Meta": row["meta"], "YEAR": float(row["year"])}
        for row in rows_of("bb", 2020)
    ]
    pq.write_table(pa.Table.from_pylist(other), folder / "b.parquet")
    lines = [
        {"TEXT": row["text"], "Id": row["id"], "META": row["meta"], "Year": row["year"]} for row in rows_of("ccc", 2020)
    ]
    lines[3]["Year"] = float("nan")
    (folder / "c.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return folder


def recipe(tmp_path, corpus, **sections):
    content = {
        "workspace": str(tmp_path / "w"),
        "source": {"path": str(corpus)},
        "ingest": {"min_chars": 20},
        "quality": {"scorers": [{"kind": "column", "column": "META.Score"}]},
        "embedding": {"static_dimensions": 16},
        "selection": {"select_ratio": 0.5, "solver": "top_quality", "device": "cpu"},
    }
    return PipelineSettings.model_validate(content | sections)


def test_a_column_is_one_from_the_source_to_the_dataset(tmp_path, corpus):
    sections = {
        "ingest": {"min_chars": 20, "groups": ["year", "meta.kind"]},
        "materialize": {"layout": "Meta.Kind"},
        "report": {"by": ["YEAR", "meta.KIND"]},
    }
    found = check_inputs(recipe(tmp_path, corpus, **sections))
    assert found.settings.materialize.layout == found.settings.report.by[1] == found.settings.ingest.groups[1]
    assert found.settings.report.by[0] == "year"
    run = RunHere(found.settings, shards=found.shards)
    pipeline(run)
    table = ds.dataset(tmp_path / "w" / "dataset" / "data", format="parquet").to_table()
    kind = found.settings.materialize.layout
    assert table.schema.field("year").type == pa.int64()
    assert {path.name for path in (tmp_path / "w" / "dataset" / "data").iterdir()} == {"wiki", "books", "unknown"}
    for row in table.to_pylist():
        at = int(row["id"].lstrip("abc"))
        assert row[kind] == KINDS[at % 3]
        assert row["year"] == (None if row["id"] == "ccc3" else 2020 + at % 2)
    assert table.num_rows == 45
    assert not run.quarantined


@pytest.mark.parametrize("name", ["meta.none", "none.kind", "meta.kind.more"])
def test_a_path_that_leads_nowhere_is_refused(tmp_path, corpus, name):
    with pytest.raises(ColumnError, match=rf"materialize\.layout: no document will have a column '{name}', it may be"):
        check_inputs(recipe(tmp_path, corpus, materialize={"layout": name}))


@pytest.mark.parametrize(("ids", "told"), [(True, False), (False, True)])
def test_annotations_without_ids_are_said_to_be_by_place(tmp_path, corpus, caplog, ids, told):
    for number, name in enumerate(("a", "b", "c")):
        rows = rows_of("abc"[number] * (number + 1), 2020)
        lines = [({"id": row["id"]} if ids else {}) | {"q": row["meta"]["score"]} for row in rows]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, reversed(lines) if ids else lines)))
    scorer = {"kind": "sidecar", "path": f"{tmp_path}/{{shard}}.jsonl", "field": "q"}
    found = check_inputs(recipe(tmp_path, corpus, quality={"scorers": [scorer]}))
    with caplog.at_level(logging.WARNING):
        pipeline(RunHere(found.settings, shards=found.shards))
    assert ("the annotations 'sidecar' of 3 files are joined by place, not by id" in caplog.text) == told
    table = ds.dataset(tmp_path / "w" / "dataset" / "data", format="parquet").to_table()
    assert all(row["sidecar"] == pytest.approx(int(row["id"].lstrip("abc")) / 30) for row in table.to_pylist())
