"""A finished workspace in Python: tables that pandas, Arrow and DuckDB read, and what a notebook shows."""

import shutil

import pytest

import fineweb_mask as fm
from fineweb_mask.tasks.catalog.query import QueryError


def test_what_a_run_made_is_read_as_tables(finished):
    with fm.open(finished) as workspace:
        [[selected]] = workspace.sql("SELECT count(*) FROM masks WHERE selected").fetchall()
        assert workspace.selected.count("*").fetchall() == [(selected,)]
        frame = workspace.selected.project("id, quality").limit(3).df()
        assert list(frame.columns) == ["id", "quality"]
        assert workspace.scores.limit(5).to_arrow_table().num_rows == 5
        assert workspace.documents.filter("language = 'en'").count("*").fetchall()[0][0] > selected
        [(vector,)] = workspace.embeddings.project("embedding").limit(1).fetchall()
        assert len(vector) == workspace.settings.embedding.static_dimensions
        assert workspace.runs.count("*").fetchall()[0][0] >= 1
        assert (workspace.dataset / "README.md").is_file()
        assert workspace.report.is_file()
        assert f"{selected:,} selected>" in repr(workspace)
        assert str(finished) in workspace._repr_html_()


def test_a_workspace_is_opened_again_after_a_run_and_in_one_line(workspace):
    before = fm.open(workspace)
    selected = before.selected.count("*").fetchall()
    settings = {**before.settings.model_dump(mode="json"), "workspace": str(workspace)}
    fm.curate(settings, {"selection": {"select_ratio": 0.1}})
    [[fewer]] = fm.open(workspace, memory_limit="1GB").selected.count("*").fetchall()
    assert 0 < fewer < selected[0][0]
    assert before.masks.count("*").fetchall() == fm.open(workspace).masks.count("*").fetchall()
    before.close()


def test_a_lost_catalog_is_made_again_and_a_statement_that_writes_is_refused(workspace):
    (workspace / "catalog.duckdb").unlink()
    with fm.open(str(workspace)) as opened, pytest.raises(QueryError, match="is refused: the catalog is read-only"):
        opened.sql("DELETE FROM documents")


def test_a_folder_that_is_no_workspace_is_named(tmp_path):
    with pytest.raises(fm.WorkspaceError, match="is no workspace: no run was started there"):
        fm.open(tmp_path)


def test_a_damaged_file_is_named_before_it_is_read(workspace):
    damaged = next((workspace / "scores").glob("*.parquet"))
    content = bytearray(damaged.read_bytes())
    content[200] ^= 1
    damaged.write_bytes(content)
    with fm.open(workspace) as opened, pytest.raises(QueryError, match="delete the file, and run the recipe again"):
        opened.scores.fetchall()
    with fm.open(shutil.copytree(workspace, workspace.with_name("again")), verify=False) as opened:
        assert opened.masks.limit(1).fetchall()
