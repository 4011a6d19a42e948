"""A recipe for a source, written by looking at it; it is one that runs, and what `run` makes for documents."""

import os
import pty
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from fineweb_mask.flows.cli import app
from fineweb_mask.flows.commands.setup.init import CLASSIFIER, recipe_of_documents
from fineweb_mask.flows.pipeline.inputs import find_inputs
from fineweb_mask.flows.recipe import RecipeError, load_recipe
from fineweb_mask.models.errors import FinewebMaskError
from tests.tasks.hub_server import HubServer


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def init(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["init", *arguments])
    assert result.exit_code == code, result.output
    return result.output


def corpus(**more: list[object]) -> str:
    Path("my corpus").mkdir()
    columns = {"content": [f"text number {row} " * 20 for row in range(100)], "language": ["en"] * 100, **more}
    pq.write_table(pa.table(columns), "my corpus/a: b.parquet")
    return "my corpus"


def test_the_recipe_is_one_that_passes_every_check(tmp_path: Path) -> None:
    said = init(corpus(edu_score=[float(row) for row in range(99)] + [None]))
    assert said.startswith("reads      1 file, 0.0 MiB: 1 .parquet\n")
    assert "documents  100; looked at 100 rows" in said
    assert "quality    edu_score (0 to 98)" in said
    assert said.rstrip().endswith("next:\n  fineweb-mask run recipe.yaml")
    settings = load_recipe("recipe.yaml")
    assert [shard.relative for shard in find_inputs(settings).shards] == ["a: b.parquet"]
    [scorer] = settings.quality.scorers
    assert (scorer.kind, scorer.column, scorer.missing) == ("column", "edu_score", 0.0)
    assert settings.source.text_column == "content"
    assert settings.ingest.languages == ["en"]
    assert settings.selection.select_ratio == 0.25  # of few documents
    assert settings.materialize.layout == "flat"


def test_without_a_score_rules_are_named_and_what_they_are_not_is_said(tmp_path: Path) -> None:
    assert "rules say whether a text is prose, not whether it is good" in init(corpus())
    settings = load_recipe("recipe.yaml")
    assert [scorer.kind for scorer in settings.quality.scorers] == ["rules"]
    assert settings.embedding.model == "static"  # nothing is downloaded
    assert "kind: edu" in Path("recipe.yaml").read_text()


@pytest.mark.parametrize(("answer", "kind"), [("y", "edu"), ("\n", "rules")])
def test_in_a_terminal_the_classifier_is_offered_where_the_hub_has_it(tmp_path: Path, answer: str, kind: str) -> None:
    source = corpus()
    with HubServer(tmp_path / "hub") as hub:
        hub.write(f"{CLASSIFIER}/main", "model.safetensors", bytes(3 * 2**20))
        hub.write(f"{CLASSIFIER}/main", "pytorch_model.bin", bytes(9 * 2**20))
        said = in_terminal("init", source, answer=answer, HF_ENDPOINT=hub.url)
    assert "3.0 MiB to download, and about" in said
    assert [scorer.kind for scorer in load_recipe("recipe.yaml").quality.scorers] == [kind]


def test_in_a_terminal_nothing_is_asked_without_a_hub() -> None:
    source = corpus()
    for environment in ({"HF_HUB_OFFLINE": "1"}, {"HF_ENDPOINT": "http://127.0.0.1:9"}):
        assert "Score by it" not in in_terminal("init", source, "--force", **environment)
    assert [scorer.kind for scorer in load_recipe("recipe.yaml").quality.scorers] == ["rules"]


def in_terminal(*arguments: str, answer: str = "", **environment: str) -> str:
    """Run the command in a new terminal, in which something is typed; return what it shows."""
    ours, theirs = pty.openpty()
    os.write(ours, f"{answer}\n".encode())
    command = [Path(sys.executable).with_name("fineweb-mask"), *arguments]
    with os.fdopen(theirs, "wb") as terminal:
        process = subprocess.Popen(
            command, stdin=terminal, stdout=terminal, stderr=terminal, env=os.environ | environment
        )
    shown = b""
    while True:
        try:
            shown += os.read(ours, 4096)
        except OSError:  # its other end is closed
            break
    os.close(ours)
    assert process.wait(60) == 0, shown
    return shown.decode()


def test_the_recipe_of_documents_is_in_their_workspace_and_is_what_init_would_write() -> None:
    source = corpus()
    path, said = recipe_of_documents(source, None, None)
    assert path == Path("workspaces/my corpus/recipe.yaml")
    assert len(said) < 7
    assert said[0] == "documents  100; looked at 100 rows"
    assert said[-1].startswith("recipe     workspaces/my corpus/recipe.yaml: 25% of the documents, lamb 0.3")
    init(source, "--output", "own.yaml")
    own, made = load_recipe("own.yaml"), load_recipe(path)
    assert made == own.model_copy(update={"workspace": "workspaces/my corpus"})
    [shard] = find_inputs(made).shards
    assert shard.relative == "a: b.parquet"


def test_a_recipe_that_is_in_the_workspace_is_kept_with_what_was_changed_in_it() -> None:
    source = corpus()
    path, _ = recipe_of_documents(source, "here", None)
    path.write_text(path.read_text().replace("select_ratio: 0.25", "select_ratio: 0.4"))
    again, said = recipe_of_documents(f"./{source}/", "here", None)
    assert (again, load_recipe(again).selection.select_ratio) == (path, 0.4)
    assert said == ["recipe     here/recipe.yaml, of an earlier run; without it a new one is made"]
    with pytest.raises(RecipeError, match=r"here/recipe.yaml is the recipe of other documents than 'other.parquet'"):
        recipe_of_documents("other.parquet", "here", None)


def test_a_look_at_documents_leaves_their_workspace_alone(tmp_path: Path) -> None:
    source = corpus()
    path, said = recipe_of_documents(source, None, tmp_path)
    assert path == tmp_path / "recipe.yaml"
    assert not any("recipe" in line for line in said)
    assert [shard.relative for shard in find_inputs(load_recipe(path)).shards] == ["a: b.parquet"]
    assert not Path("workspaces").exists()


def test_a_workspace_is_not_taken_for_documents() -> None:
    Path("used").mkdir()
    Path("used/.fineweb-mask").touch()
    with pytest.raises(RecipeError, match="received 'used', which is a workspace and no documents"):
        recipe_of_documents("used", None, None)


@pytest.mark.parametrize("workspace", ["s3://bucket/w", "full"])
def test_no_recipe_is_written_where_no_workspace_of_this_machine_can_be(workspace: str) -> None:
    source = corpus()
    Path("full").mkdir()
    Path("full/thesis.txt").write_text("mine")
    with pytest.raises(FinewebMaskError, match=r"received 's3://bucket/w': write one with|holds 'thesis.txt', and is"):
        recipe_of_documents(source, workspace, None)
    assert [path.name for path in Path("full").iterdir()] == ["thesis.txt"]


def test_a_recipe_that_is_there_is_not_replaced_unless_asked_for() -> None:
    source = corpus()
    Path("recipe.yaml").write_text("mine")
    assert "recipe.yaml exists: add --force" in init(source, code=2)
    assert Path("recipe.yaml").read_text() == "mine"
    init(source, "--force")
    init(source, "--output", "deeper/own.yaml")
    assert load_recipe("deeper/own.yaml").workspace == "workspaces/own"


def test_names_in_a_hostile_file_are_no_part_of_the_recipe() -> None:
    attack = "x'\"]: #\u2028\x85\nworkspace: /etc\nworkspace: /tmp"
    scores = {f"{attack} {name}score": [float(row) for row in range(100)] for name in "ab"}
    init(corpus(**scores, language=[attack + ", b" * 4_000] * 100))
    recipe = load_recipe("recipe.yaml")
    assert recipe.workspace == "workspaces/recipe"
    assert recipe.ingest.languages == [attack + ", b" * 4_000]
    assert recipe.quality.scorers[0].column.startswith(attack)


def test_a_source_that_does_not_exist_is_named() -> None:
    assert "source.path: 'nowhere' does not exist" in init("nowhere", code=2)
    assert not Path("recipe.yaml").exists()


def test_the_schema_that_the_recipe_names_is_there() -> None:
    init(corpus())
    first, *_ = Path("recipe.yaml").read_text().splitlines()
    assert Path(first.removeprefix("# yaml-language-server: $schema=")).is_file()
