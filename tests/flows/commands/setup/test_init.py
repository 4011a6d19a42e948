"""A recipe for a source, written by looking at it; it is one that runs."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from fineweb_mask.flows.cli import app
from fineweb_mask.flows.pipeline.inputs import find_inputs
from fineweb_mask.flows.recipe import load_recipe


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
    assert "1 file, 0.0 MiB, 100 documents" in said
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


def test_without_a_score_a_model_is_named_and_said(tmp_path: Path) -> None:
    assert "the recipe names a model, which is downloaded" in init(corpus())
    [scorer] = load_recipe("recipe.yaml").quality.scorers
    assert scorer.model == "HuggingFaceFW/fineweb-edu-classifier"


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
