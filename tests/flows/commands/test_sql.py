"""`fineweb-mask sql` and `verify` as they appear on a screen: web text is shown, never obeyed."""

import json
import os
import re

import pyarrow as pa
import pytest
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text
from typer.testing import CliRunner

from fineweb_mask.flows.cli import app
from fineweb_mask.flows.commands import sql
from fineweb_mask.flows.commands.sql import CELL_CHARACTERS, LISTED_CHARACTERS
from fineweb_mask.flows.display.terminal import visible
from fineweb_mask.models.schemas import documents_schema
from fineweb_mask.tasks.catalog.views import write_catalog
from fineweb_mask.tasks.workspace.references import ShardFiles, StageKey
from fineweb_mask.tasks.workspace.workspace import Workspace
from tests.tasks.stage_files import write_table

HOSTILE = {
    "escape": "\x1b[31mred\x1b[0m \x9b2J \x07",
    "markup": "[red]x[/red] [link=https://evil.test]l[/link] :smile:",
    "bidi": "abc\u202edef\u2066\u200b",
    "lines": "a\nb\r\tc\x00d",
    "wide": "雪" * 50,
    "long": "x" * 5000,
    "none": None,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """a workspace of one shard of hostile texts, as far as ingest."""
    workspace = Workspace(tmp_path_factory.mktemp("sql") / "workspace")
    key = StageKey(stage="ingest", version=1, settings="s", inputs="i")
    schema = documents_schema([pa.field("\x1b[1m[b]", pa.string())])
    same = {"n_chars": 1, "content_hash": b"0" * 16}
    rows = [
        {"row": row, "source_row": row, "id": name, "text": text, "\x1b[1m[b]": text} | same
        for row, (name, text) in enumerate(HOSTILE.items())
    ]
    file = write_table(workspace, "documents", "a", pa.Table.from_pylist(rows, schema=schema), key, dropped={})
    (workspace.root / "run.json").write_text("{}")
    write_catalog(workspace, [ShardFiles(documents=file)])
    return workspace.root


@pytest.fixture
def ask(folder, monkeypatch):
    """Ask as a user does; `width` is that of a terminal."""

    def call(*arguments, width=None):
        if width is not None:
            monkeypatch.setattr(sql, "console", lambda: Console(force_terminal=True, width=width, no_color=True))
        return CliRunner().invoke(app, ["sql", str(folder), *map(str, arguments)])

    return call


def test_text_of_the_web_is_shown_and_not_obeyed(ask):
    result = ask("SELECT * FROM documents")
    assert result.exit_code == 0, result.output
    steering = {character for character in result.stdout if visible(character) != character}
    assert steering == {"\n"}
    for shown in (r"\x1b[31mred\x1b[0m \x9b2J \x07", HOSTILE["markup"], r"abc\u202edef\u2066\u200b", "NULL"):
        assert shown in result.stdout
    assert r"a\nb\r\tc\x00d" in result.stdout
    assert r"\x1b[1m[b]" in result.stdout.splitlines()[0]
    assert "x" * CELL_CHARACTERS + "…" in result.stdout
    assert "x" * (CELL_CHARACTERS + 1) not in result.stdout


def test_a_table_fits_the_terminal(ask):
    result = ask("SELECT shard, row, id, text FROM documents", width=60)
    lines = [Text.from_ansi(line).plain for line in result.stdout.splitlines()]
    assert max(cell_len(line) for line in lines) <= 60
    assert len(lines) == 1 + len(HOSTILE)
    assert lines[0].startswith("shard  row  id      text")  # the widest give way, the others keep their width
    assert re.search("雪 ?…", lines[5])


def test_columns_that_do_not_fit_are_listed(ask):
    result = ask("SELECT * FROM documents WHERE id IN ('long', 'wide')", width=80)
    assert result.stdout.count("row 1") == result.stdout.count("row 2") == 1
    assert result.stdout.replace("\n", "").count("x") >= LISTED_CHARACTERS
    assert result.stdout.count("雪") == 100


def test_rows_that_are_left_out_are_counted_and_sql_can_be_several_or_come_from_standard_input(folder, ask):
    result = ask("SELECT id FROM documents", "--limit", "2")
    assert result.stdout.splitlines()[-1] == "2 of 7 rows, 5 more: --limit, or --format csv"
    assert ask("SELECT id FROM documents WHERE false").stdout.splitlines() == ["id", "no rows"]
    piped = CliRunner().invoke(app, ["sql", str(folder), "-"], input="SELECT count(*) AS n FROM documents")
    assert piped.stdout.split() == ["n", "7"]
    several = ask("SELECT 1 AS one; SELECT 2 AS two")
    assert several.stdout.split() == ["one", "1", "two", "2"]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (
            ["FROM nosuch"],
            1,
            "the catalog has: fates, documents, dropped, duplicates, scores",
        ),
        (["SELECT nosuch FROM documents"], 1, '"nosuch" not found'),
        (["SELECT text::INTEGER FROM documents"], 1, r"Could not convert string '\x1b[31mred"),
        (["DROP VIEW documents"], 1, "DROP is refused: the catalog is read-only"),
        (["SELECT 1; SELECT 2", "--format", "csv"], 1, "--format csv takes one statement, received 2"),
        (["SELECT 1", "--format", "xml"], 2, "--format takes one of table, csv, json, parquet, received 'xml'"),
        (["SELECT 1", "--output", "x"], 2, "--output goes with --format csv, json or parquet"),
    ],
)
def test_what_is_wrong_is_said(ask, arguments, code, message):
    result = ask(*arguments)
    assert result.exit_code == code
    assert message in " ".join(result.stderr.split("\n")) or message in result.stderr
    assert "\x1b[31m" not in result.stderr
    if code == 1 and "--format" not in arguments:
        assert json.loads(ask(*arguments, "--json").stdout)["status"] == "failed"


def test_a_catalog_that_cannot_be_brought_up_to_date_is_used_with_a_warning(folder, ask):
    os.utime(folder / "run.json", (2_000_000_000, 2_000_000_000))
    try:
        result = ask("SELECT count(*) AS n FROM documents")
    finally:
        os.utime(folder / "run.json", (1, 1))
    assert result.exit_code == 0
    assert "the catalog is older than the last run, and cannot be rebuilt" in result.stderr
    assert result.stdout.split() == ["n", "7"]
