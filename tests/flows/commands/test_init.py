"""A recipe for a source, written by looking at it; it is one that runs, and what `run` makes for documents."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from fineweb_mask.flows.cli import app
from fineweb_mask.flows.commands.init import recipe_of_documents
from fineweb_mask.flows.pipeline.inputs import find_inputs
from fineweb_mask.flows.recipe import RecipeError, load_recipe
from fineweb_mask.models.errors import FinewebMaskError


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def init(*arguments, code=0):
    result = CliRunner().invoke(app, ["init", *arguments])
    assert result.exit_code == code, result.output
    return result.output


def corpus(**more):
    Path("my corpus").mkdir()
    columns = {"content": [f"text number {row} " * 20 for row in range(100)], "language": ["en"] * 100, **more}
    pq.write_table(pa.table(columns), "my corpus/a: b.parquet")
    return "my corpus"


def test_the_recipe_is_one_that_passes_every_check():
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


def test_without_a_score_it_is_said_that_none_decides():
    assert "no column of scores: diversity and near-duplicates alone decide" in init(corpus())
    settings = load_recipe("recipe.yaml")
    assert settings.quality.scorers == []
    assert settings.embedding.model == "static"  # nothing is downloaded
    first, *rest = Path("recipe.yaml").read_text().splitlines()
    assert Path(first.removeprefix("# yaml-language-server: $schema=")).is_file()
    assert any("kind: edu" in line for line in rest)


def test_the_recipe_of_documents_is_in_their_workspace_and_is_what_init_would_write():
    source = corpus()
    path, said = recipe_of_documents(source, None)
    assert path == Path("workspaces/my corpus/recipe.yaml")
    assert len(said) < 7
    assert said[0] == "documents  100; looked at 100 rows"
    assert said[-1].startswith("recipe     workspaces/my corpus/recipe.yaml: 25% of the documents, lamb 0.3")
    init(source, "--output", "own.yaml")
    own, made = load_recipe("own.yaml"), load_recipe(path)
    assert made == own.model_copy(update={"workspace": "workspaces/my corpus"})
    [shard] = find_inputs(made).shards
    assert shard.relative == "a: b.parquet"


def test_a_recipe_that_is_in_the_workspace_is_kept_with_what_was_changed_in_it():
    source = corpus()
    path, _ = recipe_of_documents(source, "here")
    path.write_text(path.read_text().replace("select_ratio: 0.25", "select_ratio: 0.4"))
    again, said = recipe_of_documents(f"./{source}/", "here")
    assert (again, load_recipe(again).selection.select_ratio) == (path, 0.4)
    assert said == ["recipe     here/recipe.yaml, of an earlier run; without it a new one is made"]
    with pytest.raises(RecipeError, match=r"here/recipe.yaml is the recipe of other documents than 'other.parquet'"):
        recipe_of_documents("other.parquet", "here")


@pytest.mark.parametrize(
    ("source", "workspace", "said"),
    [
        ("full/used", None, "received 'full/used', which is a workspace and no documents"),
        ("my corpus", "s3://bucket/w", "received 's3://bucket/w': write one with"),
        ("my corpus", "full", "holds '.*', and is"),
    ],
)
def test_no_recipe_is_written_where_none_can_be(source, workspace, said):
    corpus()
    Path("full/used").mkdir(parents=True)
    Path("full/used/.fineweb-mask").touch()
    with pytest.raises(FinewebMaskError, match=said):
        recipe_of_documents(source, workspace)
    assert [path.name for path in Path("full").iterdir()] == ["used"]


def test_a_recipe_that_is_there_is_not_replaced_unless_asked_for():
    source = corpus()
    assert "source.path: 'nowhere' does not exist" in init("nowhere", code=2)
    assert not Path("recipe.yaml").exists()
    Path("recipe.yaml").write_text("mine")
    assert "recipe.yaml exists: add --force" in init(source, code=2)
    assert Path("recipe.yaml").read_text() == "mine"
    init(source, "--force")
    init(source, "--output", "deeper/own.yaml")
    assert load_recipe("deeper/own.yaml").workspace == "workspaces/own"


def test_names_in_a_hostile_file_are_no_part_of_the_recipe():
    attack = "x'\"]: #\u2028\x85\nworkspace: /etc\nworkspace: /tmp"
    scores = {f"{attack} {name}score": [float(row) for row in range(100)] for name in "ab"}
    init(corpus(**scores, language=[attack + ", b" * 4_000] * 100))
    recipe = load_recipe("recipe.yaml")
    assert recipe.workspace == "workspaces/recipe"
    assert recipe.ingest.languages == [attack + ", b" * 4_000]
    assert recipe.quality.scorers[0].column.startswith(attack)
