"""The command: what it refuses before any work starts, and how it says so."""

import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from fineweb_mask.flows.cli import app
from fineweb_mask.flows.commands._common import ENVIRONMENT_DEFAULTS, WRONG_USAGE

ROOT = Path(__file__).resolve().parents[2]
COMMAND = Path(sys.executable).with_name("fineweb-mask")


@pytest.fixture
def recipe(tmp_path):
    content = yaml.safe_load((ROOT / "deployments" / "recipes" / "sample.yaml").read_text())
    content["workspace"] = str(tmp_path / "workspace")
    content["source"]["path"] = str(ROOT / "data_samples" / "corpus")
    content["quality"]["scorers"][0]["labels"]["path"] = str(ROOT / "data_samples" / "labels.parquet")
    file = tmp_path / "recipe.yaml"
    file.write_text(yaml.safe_dump(content))
    return file


@pytest.fixture
def invoke(monkeypatch):
    for name, value in ENVIRONMENT_DEFAULTS.items():  # what the command sets is gone after the test
        monkeypatch.setenv(name, value)

    def call(*arguments):
        return CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "200"})

    return call


def run(*arguments, cwd):
    return subprocess.run(
        [COMMAND, *map(str, arguments)], cwd=cwd, capture_output=True, text=True, check=False, timeout=60
    )


@pytest.mark.parametrize("as_json", [False, True])
def test_a_wrong_recipe_ends_with_2_and_nothing_is_created(recipe, as_json, tmp_path):
    finished = run("run", recipe, "--set", "selection.lamd=0.3", *(["--json"] if as_json else []), cwd=tmp_path)
    assert finished.returncode == WRONG_USAGE == 2
    assert finished.stderr.startswith("fineweb-mask: selection.lamd: unknown setting; did you mean 'lamb'?")
    assert "Traceback" not in finished.stderr
    assert list(tmp_path.iterdir()) == [recipe]
    if as_json:
        *_, last = finished.stdout.splitlines()
        assert json.loads(last) == {
            "status": "failed",
            "error": finished.stderr.removeprefix("fineweb-mask: ").strip(),
        }
    else:
        assert finished.stdout == ""


def test_a_missing_source_ends_with_2_and_nothing_is_created(recipe, invoke, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    result = invoke("run", recipe, "--set", "source.path=no/such/corpus")
    assert result.exit_code == WRONG_USAGE
    assert result.stderr.startswith("fineweb-mask: source.path: 'no/such/corpus' does not exist")
    assert result.stdout == ""
    assert list(tmp_path.iterdir()) == [recipe]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--set", "source.path=no/corpus"], "source.path: 'no/corpus' does not exist"),
        (["--set", "source.path=tests/flows"], "source.path: no "),
        (["--set", "source.path=nosuch://x"], "nosuch"),
        (["--set", "quality.scorers.0.labels.path=no/labels.parquet"], "labels: the labels 'no/labels"),
        (["--set", "quality.scorers.0.labels.path=README.md"], "labels: the labels 'README.md' cannot be"),
        (["--set", "quality.scorers.0.labels.text_column=body"], "set text_column to one of"),
        (["--set", "quality.scorers.0.labels.score_column=grade"], "set score_column to one of"),
        (["--set", "quality.scorers.0.model=no/model.bin"], "quality.scorers.0.model: 'no/model.bin' does not exist"),
        (["--set", "materialize.layout=lang"], "materialize.layout: no document will have a column 'lang'"),
        (["--set", "report.by=[kind]"], "report.by.0: no document will have a column 'kind'"),
        (["--refit", "everything"], "--refit takes one of encoder, quality, received 'everything'"),
        (["--workspace", "https://example.org/x"], "workspace: https:// can only be read: give a folder or s3://"),
        (["--workspace", "hf://datasets/x/y"], "workspace: hf:// can be a source only: on the hub every file would be"),
        (["--workspace", "abc://bucket/x"], "abc://bucket/x: Protocol not known: abc"),
        (["--set", "selection.lamb"], "--set takes section.key=value, received 'selection.lamb'"),
    ],
)
def test_wrong_settings_end_with_2_and_name_the_key(recipe, invoke, arguments, message, monkeypatch, tmp_path):
    monkeypatch.chdir(ROOT)
    result = invoke("run", recipe, *arguments, "--json")
    assert result.exit_code == WRONG_USAGE
    assert message in result.stderr
    *_, last = result.stdout.splitlines()
    answer = json.loads(last)
    assert answer["status"] == "failed"
    assert message in answer["error"]
    assert not (tmp_path / "workspace").exists()


def test_a_missing_recipe_ends_with_2(invoke, tmp_path):
    result = invoke("run", tmp_path / "none.yaml")
    assert result.exit_code == WRONG_USAGE
    assert "cannot read the recipe" in result.stderr


@pytest.mark.parametrize("arguments", [["run"], ["run", "x.yaml", "--no-such-option"], ["no-such-command"], []])
def test_wrong_usage_ends_with_2(invoke, arguments):
    result = invoke(*arguments)
    assert result.exit_code == WRONG_USAGE
    assert "Usage:" in result.output


def test_every_command_has_help_with_an_example(invoke):
    names = [command.name or command.callback.__name__ for command in app.registered_commands]
    assert "run" in names
    for name in names:
        result = invoke(name, "--help")
        assert result.exit_code == 0
        assert f"Example: fineweb-mask {name}" in result.stdout


def test_the_example_of_run_is_about_a_recipe_that_is_there(invoke):
    words = invoke("run", "--help").stdout.split()
    example = words[words.index("Example:") :]
    assert (ROOT / example[3]).is_file()


def test_version_and_help_start_at_once_without_the_heavy_packages(tmp_path):
    finished = run("--version", cwd=tmp_path)
    assert (finished.returncode, finished.stdout, finished.stderr) == (0, f"{version('fineweb-mask')}\n", "")
    heavy = "{'torch', 'prefect', 'duckdb', 'pyarrow'}"
    code = f"import sys, fineweb_mask.flows.cli; print(sorted({heavy} & set(sys.modules)))"
    loaded = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert loaded.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--input", "none.parquet"], "the labels 'none.parquet' do not exist"),
        (["--score-column", "grade"], "set score_column to one of ['text', 'score'"),
        (["--held-out", "1.5"], "held_out: input should be less than 1, received 1.5"),
        (["--set", "epoch=3"], "training.epoch: unknown setting; did you mean 'epochs'?"),
        (["--set", "epochs"], "--set takes section.key=value, received 'epochs'"),
        (["--autotune", "0"], "training.autotune_seconds: input should be greater than or equal to 1"),
        (["--output", "model"], "the model's name must end in .bin"),
        (["--teacher", "fasttext"], "teacher.scorer: a fasttext scorer needs either `model` or `labels`"),
        (["--teacher-model", "x.bin"], "--teacher-model needs --teacher KIND"),
        (["--teacher", "nosuch", "--teacher-model", "x.bin"], "teacher.scorer"),
        (["--teacher", "fasttext", "--teacher-model", "none.bin"], "model: 'none.bin' does not exist"),
    ],
)
def test_wrong_training_options_end_with_2(invoke, arguments, message, tmp_path):
    start = ["train-quality", "--input", ROOT / "data_samples" / "labels.parquet", "--output", tmp_path / "m.bin"]
    result = invoke(*start, *arguments, "--json")
    assert result.exit_code == WRONG_USAGE
    assert message in result.stderr
    assert message in json.loads(result.stdout.splitlines()[-1])["error"]
    assert list(tmp_path.iterdir()) == []


def test_labels_of_one_class_fail_before_training_and_say_which_threshold(invoke, tmp_path):
    labels = ROOT / "data_samples" / "labels.parquet"
    result = invoke("train-quality", "--input", labels, "--output", tmp_path / "m.bin", "--threshold", "9")
    assert result.exit_code == 1
    assert "same side of the threshold: set threshold, now 9, between the scores" in result.stderr
    assert not (tmp_path / "m.bin").exists()


def test_a_workspace_at_a_url_that_is_out_of_reach_is_told_before_anything_starts(invoke, recipe, bucket):
    done = invoke("run", recipe, "--workspace", "s3://no-such-bucket-here/x", "--json")
    assert done.exit_code == 2
    assert "s3://no-such-bucket-here/x does not exist" in json.loads(done.stdout)["error"]
    done = invoke("run", recipe, "--set", "materialize.output=s3://no-such-bucket-here/x")
    assert done.exit_code == 2
    assert "s3://no-such-bucket-here/x does not exist" in done.stderr
    assert bucket.names() == {}


def test_an_output_that_holds_something_else_is_not_replaced(invoke, recipe, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("mine")
    done = invoke("run", recipe, "--set", f"materialize.output={tmp_path / 'mine'}")
    assert done.exit_code == 2
    assert "materialize.output:" in done.stderr
    assert "would be replaced: give a new or empty folder" in done.stderr
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "mine"


def test_the_status_of_a_url(invoke, bucket):
    done = invoke("status", f"{bucket.url}/nothing")
    assert done.exit_code == 2
    assert f"{bucket.url}/nothing is no workspace in which a run was begun" in done.stderr
    done = invoke("status", "s3://user:hunter2@bucket/x")
    assert done.exit_code == 2
    assert "put credentials in the environment" in done.stderr
    assert "hunter2" not in done.stderr
