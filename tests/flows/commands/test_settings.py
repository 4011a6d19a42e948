"""The list of all settings on the terminal, as a page of the docs, and as a schema for editors."""

import json
from pathlib import Path

import jsonschema
import pytest
import yaml
from typer.testing import CliRunner

from fineweb_mask.flows.cli import app

ROOT = Path(__file__).resolve().parents[3]
RECIPES = ROOT / "deployments" / "recipes"


def printed(*arguments):
    result = CliRunner().invoke(app, ["settings", *arguments], env={"COLUMNS": "100"})
    assert result.exit_code == 0, result.output
    return result.stdout


def test_a_section_is_listed_with_type_default_and_meaning():
    lines = printed("selection").splitlines()
    assert "selection.lamb  number from 0 to 1, default 0.3" in lines
    assert lines[lines.index("selection.lamb  number from 0 to 1, default 0.3") + 1].startswith("    Weight of quality")
    assert not any(line.startswith("source.") for line in lines)
    assert "source.path  text, required" in printed().splitlines()


def test_one_setting_can_be_looked_up_and_one_of_every_scorer():
    for key in ("selection.lamb", "lamb"):
        first, meaning = printed(key).splitlines()
        assert first == "selection.lamb  number from 0 to 1, default 0.3"
        assert meaning.strip().startswith("Weight of quality")
    every = printed("quality.scorers.model").splitlines()
    assert sum(line.startswith("quality.scorers[") for line in every) > 2


@pytest.mark.parametrize(
    ("key", "answer"),
    [
        ("selector", "there is no setting 'selector' (did you mean 'selection'?): name one, or a section: source"),
        ("selection.lambda", "did you mean 'selection.lamb'?"),
        ("zzzzzz", "there is no setting 'zzzzzz': name one, or a section: source, ingest"),
    ],
)
def test_a_setting_that_does_not_exist_is_answered_with_those_that_do(key, answer):
    result = CliRunner().invoke(app, ["settings", key])
    assert result.exit_code == 2
    assert answer in result.stderr


@pytest.mark.parametrize(
    ("option", "file"), [("--markdown", "docs/settings.md"), ("--schema", "deployments/recipes/recipe.schema.json")]
)
def test_the_page_of_the_docs_and_the_schema_for_editors_are_what_is_printed(option, file):
    assert (ROOT / file).read_text() == printed(option), f"write it again: fineweb-mask settings {option} > {file}"


def test_recipes_name_the_schema_and_fit_it():
    schema = jsonschema.Draft202012Validator(json.loads((RECIPES / "recipe.schema.json").read_text()))
    for recipe in RECIPES.glob("*.yaml"):
        text = recipe.read_text()
        assert text.startswith("# yaml-language-server: $schema=recipe.schema.json\n")
        schema.validate(yaml.safe_load(text))
    with pytest.raises(jsonschema.ValidationError, match="lamda"):
        schema.validate({**yaml.safe_load(text), "selection": {"lamda": 0.5}})
