"""Flows of a recipe from Python, as a user types them, and as commands."""

import pytest
import yaml

import fineweb_mask as fm
from fineweb_mask.flows.commands._recipe import settings_of, told_in
from fineweb_mask.flows.recipe import RecipeError, load_recipe
from fineweb_mask.tasks.comparison.variants import VariantError

RECIPE = {
    "workspace": "workspaces/x",
    "source": {"path": "corpus"},
    "quality": {"scorers": [{"kind": "column", "column": "score"}]},
    "selection": {"lamb": 0.4, "seed": 3},
}


def test_a_recipe_is_a_file_a_name_a_dictionary_or_settings(tmp_path):
    file = tmp_path / "recipe.yaml"
    file.write_text(yaml.safe_dump(RECIPE))
    expected = load_recipe(file)
    assert settings_of(file) == settings_of(str(file)) == settings_of(RECIPE) == settings_of(expected) == expected
    assert settings_of("sample") == load_recipe("sample")


def test_overrides_leave_a_section_s_other_settings():
    changed = settings_of(RECIPE, {"workspace": "w", "selection": {"lamb": 0.7, "metrics": {"disf": 1}}})
    assert (changed.workspace, changed.selection.lamb, changed.selection.seed) == ("w", 0.7, 3)
    assert changed.selection.metrics == {"disf": 1.0}  # no section: replaced
    assert settings_of(RECIPE, {}) == settings_of(RECIPE)
    assert settings_of(RECIPE, {"selection.lamb": 0.7, "selection": {"seed": 4}}) == settings_of(
        RECIPE, {"selection": {"lamb": 0.7, "seed": 4}}
    )


def test_what_is_wrong_is_said_with_its_key():
    with pytest.raises(RecipeError, match=r"^selection\.lamd: unknown setting; did you mean 'lamb'\?"):
        settings_of(RECIPE, {"selection": {"lamd": 1}})
    with pytest.raises(RecipeError, match=r"^source: is required$"):
        settings_of({name: section for name, section in RECIPE.items() if name != "source"})
    with pytest.raises(RecipeError, match=r"^refit takes .*'qualty'; did you mean 'quality'"):
        fm.curate(RECIPE, refit=["qualty"])


def test_a_docstring_is_the_help_of_a_command_and_of_its_options():
    said, helps = told_in(fm.compare)
    assert said.splitlines()[2].startswith("Example: fineweb-mask compare ")
    assert list(helps) == ["settings", "variants", "lambs", "label_column", "targets"]
    assert (
        helps["lambs"] == "Weights of quality to select by, too: 0,0.3,1 or 0:1:0.1 (from:to:step). One is recommended."
    )
    assert helps["targets"].endswith("(repeatable); a name may stand before it: NAME=FILE.")


def test_what_is_asked_for_is_checked_before_anything_is_started():
    for lambs in ([0.5, 2.0], "0.5,2.0"):
        with pytest.raises(VariantError, match=r"--lambs takes numbers from 0 to 1.*received '0.5,2.0'"):
            fm.compare(RECIPE, lambs=lambs)
    with pytest.raises(VariantError, match=r"nosuch"):
        fm.compare(RECIPE, variants=["random, nosuch"])
