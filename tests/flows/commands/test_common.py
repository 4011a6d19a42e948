"""Errors and pages of the commands: what is printed, and the exit codes."""

import json
import shlex
import webbrowser
from pathlib import Path

import pytest
import typer
from pydantic import BaseModel
from typer.testing import CliRunner

from fineweb_mask.flows.commands import _common
from fineweb_mask.flows.commands._common import (
    FAILED,
    QUARANTINED,
    WRONG_USAGE,
    Answer,
    begin,
    page_answer,
    verb,
)
from fineweb_mask.flows.display.terminal import echo
from fineweb_mask.flows.recipe import load_recipe
from fineweb_mask.flows.summary import PageSummary
from fineweb_mask.models.errors import SettingsError
from fineweb_mask.tasks.workspace.workspace import Workspace

ROOT = Path(__file__).resolve().parents[3]
BUG = "this should not happen, please report it with what --verbose prints: ValueError: "


class Found(BaseModel):
    number: int


@verb
def example(number: int, *, fails: str = "") -> Answer:
    """Find a number."""
    if fails == "before":
        raise SettingsError("mend this")
    begin("interrupted; nothing is lost")
    if fails:
        raise {"after": SettingsError("mend this"), "bug": ValueError("a bug"), "signal": KeyboardInterrupt()}[fails]
    return Answer(Found(number=number), lambda: echo(f"found {number}"), code=number)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ("3", 3, "found 3"),
        ("0 --json", 0, '{"number":0}'),
        ("3 --fails before", WRONG_USAGE, "fineweb-mask: mend this"),
        ("3 --fails after", FAILED, "fineweb-mask: mend this"),
        ("3 --fails bug", FAILED, f"fineweb-mask: {BUG}a bug"),
        ("3 --fails signal", 130, "fineweb-mask: interrupted; nothing is lost"),
        ("3 --fails after --json", FAILED, '{"status": "failed", "error": "mend this"}'),
    ],
)
def test_a_function_with_an_answer_is_a_command(arguments, code, said):
    app = typer.Typer()
    app.command()(example)
    done = CliRunner().invoke(app, arguments.split())
    assert (done.exit_code, said) == (code, done.output.splitlines()[-1])
    shown = CliRunner().invoke(app, ["--help"]).output
    assert all(word in shown for word in ("Find a number.", "--fails", "--json"))


UNWRITABLE = UnicodeEncodeError("utf-8", "a\udcff", 1, 2, "surrogates not allowed")


@pytest.mark.parametrize(
    ("error", "begun", "code", "message"),
    [
        (SettingsError("mend\x1b this"), False, WRONG_USAGE, "mend\\x1b this"),
        (SettingsError("mend this"), True, FAILED, "mend this"),
        (FileNotFoundError(2, "No such file or directory", "a.txt"), True, FAILED, "a.txt: No such file or directory"),
        (KeyboardInterrupt(), True, 130, "interrupted; run the same command again to resume"),
        (KeyboardInterrupt(), False, 130, "interrupted"),
        (typer.Exit(WRONG_USAGE), True, WRONG_USAGE, ""),
        (ValueError("broken\nSee:\nhttps://example.org"), False, FAILED, f"{BUG}broken See: https://example.org"),
        (UNWRITABLE, True, FAILED, "an argument or a name has to be in UTF-8, received 'a\\udcff'"),
    ],
)
def test_an_error_is_printed_once_in_a_line_and_of_a_bug_its_type(error, begun, code, message, capsys):
    @verb
    def fails() -> Answer:
        if begun:
            begin()
        raise error

    with pytest.raises(typer.Exit) as ended:
        fails(as_json=True)
    assert ended.value.exit_code == code
    printed = capsys.readouterr()
    assert printed.err.removeprefix("fineweb-mask: ").strip() == message
    assert printed.out == (json.dumps({"status": "failed", "error": message}) + "\n" if message else "")


RUN = "run {recipe} --json"
DIFF = "diff nowhere nowhere --json"
WRONG = {  # arguments of a command, with what they add to it, and the message
    f"{RUN} --set": {
        "source.path=tests/flows": "source.path: no ",
        r"""'source.path="a\0b"'""": "source.path: must hold no NUL character",
        "quality.scorers.0.labels.path=README.md": "labels: the labels 'README.md' cannot be",
        "quality.scorers.0.labels.score_column=grade": "set score_column to one of",
        "materialize.layout=lang": "materialize.layout: no document will have a column 'lang'",
        "report.by=[kind]": "report.by.0: no document will have a column 'kind'",
        "materialize.output=tests": "would be replaced: give a new or empty folder",
        "materialize.output=hf://datasets/x/y": "materialize.output: hf:// can be a source only",
    },
    RUN: {
        "--refit everything": "--refit takes one of encoder, quality, selection, received 'everything'",
        "--shards 3/2": "--shards: a share is I/N, such as 2/8 for the second of eight, received '3/2'",
        "--shards 1/2 --until score": "--shards takes no --refit, no --refresh",
        "--until materialise": "received 'materialise'; did you mean 'materialize'?",
        "--workspace hf://datasets/x/y": "workspace: hf:// can be a source only: on the hub every file would be",
    },
    "compare {recipe} --json": {
        "--variants mean_field,nosuch": "selectors may be all, mean_field, policy_gradient",
        "--variants ,": "name at least one selector",
        "--variants mean_field[lamb=2]": "lamb: input should be less than or equal to 1",
        "--variants random[budget=2]": "takes KEY=VALUE of metrics, lamb,",
        "--variants theirs=nosuch.parquet": "variant theirs: ",
        "--lambs 0,2": "from 0 to 1, at most 201",
        "--label-column nosuch": "label column 'nosuch' must be among the documents' columns",
    },
    "tune {recipe} --json": {
        "--target mine=nosuch.parquet": "target mine: ",
        "--set selection.budget=10": "set select_ratio instead",
    },
    DIFF: {
        "": "name a workspace, a dataset or WORKSPACE@RUN",
        "--tolerance 1.5": "--tolerance must be a share from 0 to 1, received 1.5",
    },
    "export nowhere --format parquet --json": {"": "nowhere must be a"},
    "export {tmp_path} --format parquet --json": {"": "is neither a dataset nor a workspace with one"},
    "verify nowhere --json": {"": "nowhere must be a"},
    "verify {tmp_path} --json": {"": "is neither a dataset nor a workspace with one"},
    "push nowhere me/data --json": {"": "nowhere must be a"},
    "push {tmp_path} me/data --json": {"": "is neither a dataset nor a workspace with one"},
}
OF_A_WORKSPACE = {"why": "https://example.org", "sql": "'SELECT 1'", "status": "", "gc": "", "report": ""}
WRONG |= {
    f"{command} {place} {more} --json": {"": "is no workspace: no run was started there"}
    for command, more in OF_A_WORKSPACE.items()
    for place in ("{tmp_path}", "nowhere")
}


@pytest.mark.parametrize(
    ("command", "message"), [(f"{start} {end}", said) for start, ends in WRONG.items() for end, said in ends.items()]
)
def test_wrong_arguments_end_with_2_and_one_line_before_any_work(
    invoke, recipe, tmp_path, monkeypatch, command, message
):
    monkeypatch.chdir(ROOT)
    (mine := tmp_path / "mine" / "notes.txt").parent.mkdir()
    mine.write_text("mine")
    places = {"recipe": recipe, "tmp_path": tmp_path, "mine": mine.parent, "new": tmp_path / "new"}
    done = invoke(*(word.format(**places) for word in shlex.split(command)))
    assert done.exit_code == WRONG_USAGE == 2, done.output
    assert message in done.stderr
    answer = json.loads(done.stdout.splitlines()[-1])
    assert answer["status"] == "failed"
    assert message in answer["error"]
    assert "Traceback" not in done.output
    assert sorted(tmp_path.rglob("*")) == [mine.parent, mine, recipe]


@pytest.mark.parametrize("quarantined", [{}, {"a": "why"}])
def test_a_page_at_a_url_is_opened_from_its_local_copy(bucket, recipe, monkeypatch, quarantined):
    for name in ("index.html", "plots/a.png"):
        bucket.write(f"ws/compare/{name}", name.encode())
    settings = load_recipe(recipe, workspace=f"{bucket.url}/ws")
    workspace = Workspace(settings.workspace)
    page = workspace.root / "compare" / "index.html"
    summary = PageSummary.of(workspace, quarantined, [], page=page, metrics="metrics.json", documents=1)
    opened = []
    monkeypatch.setattr(_common, "open_page", opened.append)
    shown = verb(lambda: page_answer(settings, summary, lambda: None, show=True))
    with pytest.raises(typer.Exit) as ended:
        shown()
    assert ended.value.exit_code == (QUARANTINED if quarantined else 0)
    [copied] = map(Path, opened)
    assert copied.read_text() == "index.html"
    assert (copied.parent / "plots" / "a.png").read_text() == "plots/a.png"


@pytest.mark.parametrize(
    ("place", "opened", "works"),
    [
        ("a page/index.html", "file://{root}/a%20page/index.html", True),
        ("a page/index.html", "file://{root}/a%20page/index.html", False),
        ("s3://bucket/index.html", None, True),
    ],
)
def test_a_page_is_opened_or_its_place_is_printed(tmp_path, capsys, monkeypatch, place, opened, works):
    asked: list[str] = []
    monkeypatch.setattr(webbrowser, "open", lambda url: asked.append(url) or works)
    monkeypatch.chdir(tmp_path)
    _common.open_page(place)
    assert asked == ([] if opened is None else [opened.format(root=tmp_path)])
    assert (f"open {place} yourself" in capsys.readouterr().err) == (opened is None or not works)
