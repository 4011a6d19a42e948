"""SQL over the catalog: formats of the results, and statements that are refused."""

import csv
import io
import json
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fineweb_mask.tasks.catalog.query import QueryError, answers, open_catalog
from fineweb_mask.tasks.catalog.views import write_catalog
from fineweb_mask.tasks.storage.atomic import tree_files
from fineweb_mask.tasks.workspace.workspace import Workspace

VALUES = """
    SELECT 1 AS a, 'x,"y"' AS b, NULL AS c, [1.5, NULL] AS d, {'k': 'v'} AS e, '\\xAA'::BLOB AS f, '' AS g,
           'nan'::DOUBLE AS h, 12345678901234567890123::HUGEINT AS i, TIMESTAMP '2024-01-02 03:04:05' AS j, 2 AS a
    """


@pytest.fixture(scope="module")
def workspace(built, tmp_path_factory):
    folder = tmp_path_factory.mktemp("query") / "it's"
    shutil.copytree(built.workspace.root, folder)
    write_catalog(Workspace(folder), built.report_job.shards)
    return folder


def ask(workspace, sql, form="json"):
    stream = io.BytesIO()
    with open_catalog(Workspace(workspace), "1GB") as connection:
        for answer in answers(connection, sql):
            getattr(answer, f"write_{form}")(stream)
    return stream.getvalue()


def rows(workspace, sql):
    return json.loads(ask(workspace, sql))


REFUSED = [
    "COPY (SELECT 1) TO '{workspace}/documents/new.csv'",
    "WITH written AS (COPY (SELECT 1) TO '{workspace}/new.csv') SELECT * FROM written",
    "FROM query('WITH written AS (COPY (SELECT 1) TO ''{workspace}/new.csv'') FROM written')",
    "EXPORT DATABASE '{workspace}/new'",
    "SELECT 1) AS a; COPY (SELECT 1) TO '{workspace}/new.csv'; SELECT * FROM (SELECT 1",
    "FROM '/etc/passwd'",
    "FROM read_csv('{workspace}/../secret.csv')",
    "FROM read_parquet('s3://bucket/x.parquet')",
    "FROM enable_logging(storage_path = '{workspace}/log')",
    "ATTACH ':memory:' AS other",
    "INSTALL httpfs",
    "SET lock_configuration = false",
    "CREATE TEMP TABLE t AS SELECT 1",
    "WITH gone AS (DELETE FROM stored.losses RETURNING *) FROM gone",
    "SELECT 1; DROP VIEW documents",
    "PIVOT documents ON dump USING count(*)",
    "SELEC 1",
    "-- nothing",
]
ALLOWED = [
    "/* ; */ SELECT 1 AS a; -- 'é;雪'",
    "WITH t AS (SELECT 1 AS a) FROM t",
    "DESCRIBE masks",
    "SUMMARIZE scores",
    "SHOW TABLES",
    "FROM (SELECT 1 AS x) PIVOT (count(*) FOR x IN (1, 2))",
]


def test_only_reading_the_workspace_is_allowed(workspace):
    (workspace.parent / "secret.csv").write_text("secret\n1\n")
    content = {path: path.read_bytes() for path in tree_files(workspace.parent)}
    changed = {path: path.stat().st_mtime_ns for path in content}
    inside, outside = (str(folder).replace("'", "''") for folder in (workspace, workspace.parent))
    for sql in REFUSED:
        with pytest.raises(QueryError) as refused:
            ask(workspace, sql.format(workspace=inside, outside=outside))
        assert "secret\n" not in str(refused.value), sql
        assert {path: path.stat().st_mtime_ns for path in tree_files(workspace.parent)} == changed, sql
    assert {path: path.read_bytes() for path in content} == content
    for sql in ALLOWED:
        assert rows(workspace, sql), sql


def test_settings_are_locked_while_it_is_open(workspace):
    with open_catalog(Workspace(workspace), "1GB") as connection:
        for name in ("enable_external_access", "autoload_known_extensions", "allow_persistent_secrets"):
            assert connection.execute(f"SELECT current_setting('{name}')").fetchall() == [(False,)]
        assert connection.execute("SELECT current_setting('memory_limit')").fetchall() == [("953.6 MiB",)]
        with pytest.raises(Exception, match="configuration has been locked"):
            connection.execute("SET memory_limit = '4GB'")


def test_json_is_one_array_of_objects(workspace):
    row = [
        1,
        'x,"y"',
        None,
        [1.5, None],
        {"k": "v"},
        "\\xAA",
        "",
        None,
        12345678901234567890123,
        "2024-01-02 03:04:05",
        2,
    ]
    assert rows(workspace, VALUES) == [dict(zip([*"abcdefghij", "a_1"], row, strict=True))]
    assert rows(workspace, "SELECT 1 WHERE false") == []
    many = ask(workspace, "SELECT range AS n FROM range(2500)")
    assert [row["n"] for row in json.loads(many)] == list(range(2500))
    assert many.count(b"\n") == 2502


def test_csv_distinguishes_null_from_an_empty_text(workspace):
    text = ask(workspace, VALUES, "csv").decode()
    [header, row] = csv.reader(io.StringIO(text))
    assert header == [*"abcdefghij", "a_1"]
    assert row == [
        *("1", 'x,"y"', "", "[1.5,null]", '{"k":"v"}', "\\xAA", "", "nan", "12345678901234567890123"),
        *("2024-01-02 03:04:05", "2"),
    ]
    assert ',"x,""y""",,' in text
    assert ask(workspace, "SELECT 1 AS a WHERE false", "csv") == b'"a"\n'


def test_parquet_keeps_the_types(workspace):
    table = pq.read_table(io.BytesIO(ask(workspace, "FROM documents ORDER BY shard, row", "parquet")))
    types = [table.schema.field(name).type for name in ("row", "content_hash", "token_count")]
    assert types == [pa.uint32(), pa.binary(), pa.int64()]
    assert table.num_rows == rows(workspace, "SELECT count(*) AS n FROM documents")[0]["n"]
    empty = pq.read_table(io.BytesIO(ask(workspace, "FROM masks WHERE false", "parquet")))
    assert (empty.num_rows, empty.column_names) == (0, ["shard", "row", "selected", "inclusion", "block"])


def test_float16_vectors_are_read(built, workspace):
    found = rows(workspace, "SELECT shard, row, embedding FROM embeddings ORDER BY shard, row")
    expected = [(file.name, row) for file in built.embeddings for row in built.read(file).to_pylist()]
    assert [(row["shard"], row["row"]) for row in found] == [(shard, row["row"]) for shard, row in expected]
    vectors = np.array([row["embedding"] for row in found], dtype=np.float32)
    assert np.array_equal(vectors, np.array([row["embedding"] for _, row in expected], dtype=np.float32))


def test_a_preview_cuts_rows_and_values_and_says_how_many_more(workspace):
    with open_catalog(Workspace(workspace), "1GB") as connection:
        sql = "SELECT range AS n, repeat('é', 500) AS t, [1, 2] AS l, NULL AS x FROM range(9)"
        [answer] = answers(connection, sql)
        preview = answer.preview(4, characters=10)
        assert preview.columns == ["n", "t", "l", "x"]
        assert preview.numeric == [True, False, False, False]
        assert preview.rows == [(str(n), "é" * 10, "[1, 2]", None) for n in range(4)]
        assert preview.more == 5
        assert answer.preview(9, characters=10).more == 0
        first, second = answers(connection, "SELECT 1 AS a; SELECT 2 AS b")
        assert (first.columns, second.columns) == (["a"], ["b"])


def test_a_file_that_is_not_a_catalog_is_an_error(tmp_path):
    (tmp_path / "catalog.duckdb").write_bytes(b"not a database" * 1000)
    with pytest.raises(QueryError, match="cannot be opened"), open_catalog(Workspace(tmp_path), "1GB"):
        pass
