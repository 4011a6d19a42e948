"""Errors and pages of the commands: what is printed, and the exit codes."""

import json
import shlex
from concurrent.futures import CancelledError
from pathlib import Path

import pytest
import typer
from pydantic import BaseModel
from typer.testing import CliRunner

from fineweb_mask.flows.commands._common import FAILED, RESUME, WRONG_USAGE, Result, begin, verb
from fineweb_mask.flows.display.terminal import echo
from fineweb_mask.models.errors import SettingsError

ROOT = Path(__file__).resolve().parents[3]
BUG = "this should not happen, please report it with what --verbose prints: ValueError: "


class Found(BaseModel):
    number: int


@verb
def example(number: int) -> Result:
    """Find a number."""
    return Result(Found(number=number), lambda: echo(f"found {number}"), code=number)


@pytest.mark.parametrize(("arguments", "code", "said"), [("3", 3, "found 3\n"), ("0 --json", 0, '{"number":0}\n')])
def test_a_function_with_an_answer_is_a_command(arguments, code, said):
    app = typer.Typer()
    app.command()(example)
    done = CliRunner().invoke(app, arguments.split())
    assert (done.exit_code, done.output) == (code, said)
    shown = CliRunner().invoke(app, ["--help"]).output
    assert all(word in shown for word in ("Find a number.", "number", "--json", "--verbose"))


@pytest.mark.parametrize(
    ("error", "started", "code", "message"),
    [
        (SettingsError("mend\x1b this"), None, WRONG_USAGE, "mend\\x1b this"),
        (SettingsError("mend this"), RESUME, FAILED, "mend this"),
        (
            FileNotFoundError(2, "No such file or directory", "a.txt"),
            RESUME,
            FAILED,
            "a.txt: No such file or directory",
        ),
        (KeyboardInterrupt(), RESUME, 130, "interrupted; run the same command again to resume"),
        (KeyboardInterrupt(), "stopped; nothing is lost", 130, "stopped; nothing is lost"),
        (KeyboardInterrupt(), None, 130, "interrupted"),
        (CancelledError(), None, 130, "interrupted"),
        (typer.Exit(WRONG_USAGE), RESUME, WRONG_USAGE, ""),
        (ValueError("broken\nSee:\nhttps://example.org"), None, FAILED, f"{BUG}broken See: https://example.org"),
    ],
)
def test_an_error_is_printed_once_in_a_line_and_of_a_bug_its_type(error, started, code, message, capsys):
    @verb
    def fails() -> Result:
        if started is not None:
            begin(started)
        raise error

    answer = json.dumps({"status": "failed", "error": message}) + "\n" if message else ""
    for as_json in (False, True):
        with pytest.raises(typer.Exit) as ended:
            fails(as_json=as_json)
        assert ended.value.exit_code == code
        printed = capsys.readouterr()
        assert printed.err == (f"fineweb-mask: {message}\n" if message else "")
        assert printed.out == (answer if as_json else "")


RUN = "run {recipe} --json"
DIFF = "diff nowhere nowhere --json"
TRAIN = "train-quality --input data_samples/labels.parquet --output {new}.bin --json"
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
        "--until materialise": "received 'materialise'; did you mean 'materialize'?",
        "--shards 3/2": "--shards: a share is I/N, such as 2/8 for the second of eight, received '3/2'",
        "--shards 1/2 --until score": "--shards: of --until it takes only ingest, received 'score'",
        "--workspace hf://datasets/x/y": "workspace: hf:// can be a source only: on the hub every file would be",
    },
    "compare {recipe} --json": {
        "--variants mean_field,nosuch": "selectors may be all, mean_field, policy_gradient",
        "--variants ,": "name at least one selector",
        "--variants mean_field[lamb=2]": "lamb: input should be less than or equal to 1",
        "--variants random[budget=2]": "takes KEY=VALUE of metrics, lamb,",
        "--variants theirs=nosuch.parquet": "variant theirs: ",
        "--lambs 0,2": "--lambs takes numbers from 0 to 1",
        "--label-column nosuch": "label column 'nosuch' must be among the documents' columns",
    },
    "tune {recipe} --json": {
        "--target mine=nosuch.parquet": "target mine: ",
        "--set selection.budget=10": "set select_ratio instead",
    },
    DIFF: {
        "": "nowhere is no workspace: no run was started there",
        "--tolerance 1.5": "--tolerance must be a share from 0 to 1, received 1.5",
    },
    TRAIN: {
        "--input none.parquet": "the labels 'none.parquet' do not exist",
        "--score-column grade": "set score_column to one of ['text', 'score'",
        "--held-out 1.5": "held_out: input should be less than 1, received 1.5",
        "--epochs 0": "epochs: input should be greater than or equal to 1, received 0",
        "--output model": "the model's name must end in .bin",
    },
    "verify nowhere --json": {"": "nowhere must be a"},
    "verify {tmp_path} --json": {"": "is neither a dataset nor a workspace with one"},
    "push nowhere me/data --json": {"": "nowhere must be a"},
    "export nowhere --format parquet --json": {"": "nowhere must be a"},
    "export {tmp_path} --format parquet --json": {"": "is neither a dataset nor a workspace with one"},
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
