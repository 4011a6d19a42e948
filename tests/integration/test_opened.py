"""A finished workspace in Python: tables that pandas, Arrow and DuckDB read, and what a notebook shows."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import Dataset, load_dataset

import fineweb_mask as fm
from fineweb_mask.tasks.catalog.query import QueryError


def test_what_a_run_made_is_read_as_tables(finished):
    with fm.open(finished) as workspace:
        [[selected]] = workspace.sql("SELECT count(*) FROM masks WHERE selected").fetchall()
        assert workspace.selected.count("*").fetchall() == [(selected,)]
        frame = workspace.selected.project("id, quality").limit(3).df()
        assert list(frame.columns) == ["id", "quality"]
        dataset = Dataset(workspace.selected.project("id, quality").to_arrow_table())
        assert (dataset.column_names, len(dataset)) == (["id", "quality"], selected)
        assert len(workspace.selected) == selected
        assert pa.table(workspace.selected["id"]).num_rows == selected
        assert workspace.sql("FROM scores").limit(5).to_arrow_table().num_rows == 5
        assert workspace.sql("FROM documents").filter("language = 'en'").count("*").fetchall()[0][0] > selected
        fates = dict(workspace.fates.aggregate("reason, count(*)").fetchall())
        assert fates["selected"] == selected
        [(vector,)] = workspace.sql("FROM embeddings").project("embedding").limit(1).fetchall()
        assert len(vector) == workspace.settings.embedding.static_dimensions
        assert workspace.sql("FROM runs").count("*").fetchall()[0][0] >= 1
        assert (workspace.dataset / "README.md").is_file()
        assert workspace.report.is_file()
        assert f"{selected:,} selected>" in repr(workspace)
        assert str(finished) in workspace._repr_html_()


def test_every_folder_of_the_dataset_is_loaded_by_datasets(finished, tmp_path):
    data = next((finished / "dataset").glob("data*"))
    part = next(folder for folder in data.iterdir() if folder.is_dir())
    with fm.open(finished) as workspace:
        [[selected]] = workspace.selected.count("*").fetchall()
    dump = sum(pq.read_metadata(file).num_rows for file in part.glob("*.parquet"))
    for place, options, rows in (
        (finished / "dataset", {}, selected),
        (finished / "dataset", {"data_dir": data.name}, selected),
        (finished / "dataset", {"data_dir": f"{data.name}/{part.name}"}, dump),
        (data, {}, selected),
        (part, {}, dump),
    ):
        loaded = load_dataset(str(place), split="train", cache_dir=str(tmp_path), **options)
        assert len(loaded) == rows, (place, options)


def test_a_lost_catalog_is_made_again_and_a_statement_that_writes_is_refused(workspace):
    (workspace / "catalog.duckdb").unlink()
    with fm.open(str(workspace)) as opened, pytest.raises(QueryError, match="is refused: the catalog is read-only"):
        opened.sql("DELETE FROM documents")


def test_a_folder_that_is_no_workspace_is_named(tmp_path):
    with pytest.raises(fm.WorkspaceError, match="is no workspace: no run was started there"):
        fm.open(tmp_path)
