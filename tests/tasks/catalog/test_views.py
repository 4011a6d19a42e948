"""The catalog's views show exactly the files that it was written for, wherever the workspace is."""

import os
import shutil
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fineweb_mask.tasks.catalog.query import answers, open_catalog
from fineweb_mask.tasks.catalog.views import NAME, VIEWS, catalog_files, is_current, write_catalog
from fineweb_mask.tasks.dedup.duplicates import no_duplicates
from fineweb_mask.tasks.workspace.records.runs import RunRecord
from fineweb_mask.tasks.workspace.references import NO_FILE, ShardFiles
from fineweb_mask.tasks.workspace.workspace import Workspace
from tests.tasks.dataset.conftest import make


def ask(folder, query):
    with duckdb.connect(str(folder / NAME), read_only=True) as connection:
        return connection.execute(query).fetchall()


@pytest.fixture
def folder(built, tmp_path):
    """A copy of the tiny workspace, with its catalog, in a folder with a hard name."""
    folder = tmp_path / "it's [a], *b"
    shutil.copytree(built.workspace.root, folder)
    write_catalog(Workspace(folder), built.report_job.shards)
    return folder


def test_the_views_hold_the_stages_rows_with_their_shard(built, folder):
    for stage, files in (("documents", built.documents), ("scores", built.scores), ("masks", built.masks)):
        expected = [(file.name, *row.values()) for file in files for row in built.read(file).to_pylist()]
        assert ask(folder, f"FROM {stage} ORDER BY shard, row") == expected
    both = ask(folder, "SELECT count(*) FROM documents JOIN masks USING (shard, row) JOIN scores USING (shard, row)")
    assert both == [(built.counts.documents_eligible,)]
    assert ask(folder, "SELECT count(*) FROM embeddings") == [(built.counts.documents_eligible,)]


def test_selected_is_the_dataset_with_shard_row_and_source_row(built, folder):
    files = sorted((built.workspace.dataset / "data").rglob("*.parquet"))
    dataset = pa.concat_tables([pq.read_table(file) for file in files])
    with duckdb.connect(str(folder / NAME), read_only=True) as connection:
        selected = connection.sql("FROM selected").to_arrow_table()
    assert selected.column_names == ["shard", "row", "source_row", *dataset.column_names]
    by_id = [("id", "ascending")]
    own = selected.drop(["shard", "row", "source_row"])
    assert own.sort_by(by_id).to_pylist() == dataset.sort_by(by_id).to_pylist()


def test_source_row_leads_to_the_row_of_the_source(built, folder):
    moved = 0
    for shard in built.shards:
        joined = f"""
            SELECT row, source_row, selected.text = source.text AND selected.id = source.id
            FROM selected JOIN read_parquet('{shard.url.removeprefix("file://")}', file_row_number = true) AS source
              ON source_row = file_row_number
            WHERE shard = '{shard.name}'
            """
        rows = ask(folder, joined)
        assert [same for *_, same in rows] == [True] * len(rows)
        moved += sum(row != source_row for row, source_row, _ in rows)
    assert moved  # rows were dropped before them


def test_fates_account_for_every_document(built, folder):
    counted = "SELECT shard, stage, reason, count(*) FROM fates WHERE stage <> 'select' GROUP BY ALL ORDER BY ALL"
    assert ask(folder, counted) == [
        ("b", "dedup", "duplicate", 2),
        ("b", "ingest", "duplicate", 1),
        ("b", "ingest", "too_short", 1),
    ]
    assert ask(folder, "SELECT count(*), sum(selected::INT) FROM fates") == [
        (built.counts.documents_in, built.counts.selected)
    ]
    [(rows, different)] = ask(folder, "SELECT count(*), count(DISTINCT (shard, source_row)) FROM fates")
    assert rows == different
    joined = "FROM documents JOIN scores USING (shard, row) JOIN masks USING (shard, row)"
    columns = "shard, row, url, quality, selected, inclusion, block"
    assert ask(folder, f"SELECT {columns} FROM fates WHERE stage = 'select' ORDER BY ALL") == ask(
        folder, f"SELECT {columns} {joined} WHERE block IS NOT NULL ORDER BY ALL"
    )
    shards = built.report_job.shards
    mask = folder / shards[0].masks.path
    table = pq.read_table(mask)
    blocks = [None, None, *table["block"].to_pylist()[2:]]
    pq.write_table(table.set_column(3, "block", pa.array(blocks, pa.string())), mask)
    bad = ask(folder, "SELECT shard, stage, count(*) FROM fates WHERE reason = 'bad_vector' GROUP BY ALL")
    assert bad == [(shards[0].documents.name, "embed", 2)]
    write_catalog(Workspace(folder), [one.model_copy(update={"masks": NO_FILE}) for one in shards])
    undecided = ask(folder, "SELECT stage, reason, count(*) FROM fates WHERE stage IS NULL GROUP BY ALL")
    assert undecided == [(None, None, built.counts.documents_eligible)]


def test_columns_of_the_source_that_are_named_as_decisions_are_left_out(built, folder):
    path = folder / built.documents[2].path
    table = pq.read_table(path)
    for name in ("stage", "reason", "space"):  # a scorer's name, too
        table = table.append_column(name, pa.array(["theirs"] * table.num_rows))
    pq.write_table(table, path)
    write_catalog(Workspace(folder), built.report_job.shards)
    assert ask(folder, "SELECT count(*) FROM fates WHERE stage = 'theirs' OR reason = 'theirs'") == [(0,)]
    assert ask(folder, "SELECT typeof(space) FROM fates LIMIT 1") == [("FLOAT",)]


def test_a_catalog_can_be_read_from_anywhere_and_moved(folder, tmp_path, monkeypatch):
    [count] = ask(folder, "SELECT count(*) FROM selected")
    assert os.fsencode(tmp_path) not in (folder / NAME).read_bytes()
    moved = tmp_path / "moved"
    folder.rename(moved)
    for here, path in ((tmp_path, "moved/" + NAME), (moved, NAME), (Path("/"), str(moved / NAME))):
        monkeypatch.chdir(here)
        assert ask(Path(path).parent, "SELECT count(*) FROM selected") == [count]
    monkeypatch.chdir(moved)
    with duckdb.connect() as connection:  # attached to another: from the workspace's folder
        connection.execute(f"ATTACH '{NAME}' AS other (READ_ONLY)")
        assert connection.execute("SELECT count(*) FROM other.selected").fetchall() == [count]


def test_a_shard_that_left_is_not_shown_and_a_query_of_one_shard_reads_one_file(built, folder):
    first = built.documents[0]
    for shard in built.documents[1:]:
        (folder / shard.path).write_bytes(b"not read")
    assert ask(folder, f"SELECT count(*) FROM documents WHERE shard = '{first.name}'") == [(first.rows,)]
    write_catalog(Workspace(folder), built.report_job.shards[:1])
    assert ask(folder, "SELECT shard, count(*) FROM documents GROUP BY ALL") == [(first.name, first.rows)]
    assert ask(folder, "SELECT DISTINCT shard FROM selected") == [(first.name,)]


def test_stages_without_files_are_empty_views(built, folder):
    write_catalog(Workspace(folder), [ShardFiles(documents=file) for file in built.documents])
    for view in ("scores", "masks", "embeddings", "selected", "runs", "duplicates"):
        assert ask(folder, f"SELECT count(*) FROM {view}") == [(0,)]
    assert ask(folder, "SELECT count(*) FROM documents")[0][0] == built.counts.documents_ingested
    write_catalog(Workspace(folder), [])
    assert {row[0] for row in ask(folder, "SHOW TABLES")} == set(VIEWS)


def test_columns_of_one_shard_only_are_null_elsewhere(built, folder):
    path = folder / built.documents[2].path
    table = pq.read_table(path)
    pq.write_table(table.append_column("tags", pa.array([["x"]] * table.num_rows)), path)
    write_catalog(Workspace(folder), built.report_job.shards)
    found = ask(folder, "SELECT shard, count(*), count(tags) FROM documents GROUP BY shard ORDER BY shard")
    assert found == [(file.name, file.rows, 0) for file in built.documents[:2]] + [
        ("b", table.num_rows, table.num_rows)
    ]


def test_runs_are_seen_as_they_end_oldest_first(built, folder):
    workspace = Workspace(folder)
    facts = {"select_ratio": 0.25, "lamb": 0.5, "solver": "mean_field", "recipe": {"a": {"b": 1}}, "version": "1"}
    first = RunRecord(flow="curate", stages_run=["ingest"], **facts)
    first.end(workspace)
    write_catalog(workspace, built.report_job.shards)
    later = RunRecord(flow="select", status="failed", error="ValueError: it's\n\x1b[31m", flow_run="ab-cd", **facts)
    later.started = later.started.replace(year=later.started.year + 1)
    path = later.end(workspace)
    assert path.name.endswith("-ab.json")
    assert ask(folder, "SELECT flow, status, error, stages_run, recipe->>'$.a.b', flow_run FROM runs") == [
        ("curate", "done", None, ["ingest"], "1", None),
        ("select", "failed", "ValueError: it's\n\x1b[31m", [], "1", "ab-cd"),
    ]
    [(started, seconds)] = ask(folder, "SELECT started, seconds FROM runs LIMIT 1")
    assert started == first.started.replace(tzinfo=None)
    assert seconds < 60


def test_a_catalog_is_current_until_a_run_begins(folder):
    workspace = Workspace(folder)
    assert not is_current(workspace)
    (folder / "run.json").write_text("{}")
    os.utime(folder / "run.json", ns=(1, 1))
    assert is_current(workspace)
    os.utime(folder / "run.json")
    assert not is_current(workspace)


def test_the_log_of_an_interrupted_session_does_not_change_the_new_catalog(built, folder):
    for name in (f"{NAME}.wal", f".{NAME}.x.partial.wal"):
        (folder / name).write_bytes(b"left behind")
    write_catalog(Workspace(folder), built.report_job.shards)
    assert not [path.name for path in folder.iterdir() if ".wal" in path.name or "partial" in path.name]
    assert ask(folder, "SELECT count(*) FROM masks")


ROWS = [[("D0", True), ("D1", False), ("D0", True)]] * 2
NAMES = ("br[1]", "star*", "new\nline", 'it\'s "x"', "ü\u202e名", "per%41cent", "dump=D9", "{a,b}", "#;&$HOME ~")
LIKE = {"br[1]": "br1", "star*": "stars", "{a,b}": "a"}
"""Folders that a name finds if it is read as a pattern."""


@pytest.mark.parametrize("name", NAMES)
def test_catalog_and_dataset_are_of_this_folder(tmp_path, name):
    root = tmp_path / name / "ws"
    making = make(root, ROWS)
    if name in LIKE:
        shutil.copytree(root, tmp_path / LIKE[name] / "ws")
    made = making.written()
    files = [file for one in made.partitions for file in (root / one.path).parent.rglob("*.parquet")]
    found = [row for file in files for row in pq.ParquetFile(file).read().to_pylist()]
    assert len(found) == 4
    assert {row["dump"] for row in found} == {"D0"}
    workspace = Workspace(root)
    RunRecord(flow="curate", select_ratio=0.1, lamb=0.5, solver="random", recipe={}, version="1").end(workspace)
    shards = [shard.model_copy(update={"duplicates": no_duplicates(shard.name)}) for shard in making.shards]
    write_catalog(workspace, shards)
    assert catalog_files(root, "scores") == {shard.scores.path for shard in making.shards}
    with open_catalog(workspace, "1GB") as connection:
        asked = "SELECT count(*), max(row), max(dump) FROM documents JOIN masks USING (shard, row)"
        [answer] = answers(connection, asked)
        assert answer.preview(9, characters=9).rows == [("6", "2", "D1")]
        [answer] = answers(connection, "SELECT count(*), min(flow) FROM runs")
        assert answer.preview(9, characters=9).rows == [("1", "curate")]
    assert ask(root, "SELECT count(*), max(row), max(dump) FROM documents") == [(6, 2, "D1")]
