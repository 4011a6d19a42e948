"""The settings: few, each of which a recipe sets or a page of the documentation advises on."""

import re
from pathlib import Path
from typing import get_args

import pytest
import yaml

from fineweb_mask.models.errors import SettingsError
from fineweb_mask.models.settings.quality import ScorerSettings
from fineweb_mask.models.settings.reference import KINDS, REQUIRED, settings_of

ROOT = Path(__file__).resolve().parents[3]
MOST = 125
CODE = re.compile(r"```.*?```|`[^`\n]+`", re.DOTALL)
PAGES = [page.read_text() for page in (ROOT / "docs").glob("*.md") if page.name != "settings.md"]
ADVISED_ON = {word for page in PAGES for code in CODE.findall(page) for word in re.findall(r"\w+", code)}


def leaves():
    """Return the keys of all settings but sections."""
    own = [setting.key for setting in settings_of()]
    return [key for key in own if not any(other.startswith((f"{key}.", f"{key}[")) for other in own)]


def keys_in(recipe, before=""):
    """Return the keys that a recipe sets, without the kinds of scorers."""
    if isinstance(recipe, list):
        return {key for one in recipe for key in keys_in(one, before)} or {before}
    if not isinstance(recipe, dict):
        return {before}
    start = f"{before}." if before else ""
    return {before}.union(*(keys_in(value, f"{start}{key}") for key, value in recipe.items()))


SET = {
    key
    for path in (ROOT / "deployments" / "recipes").glob("*.yaml")
    for key in keys_in(yaml.safe_load(path.read_text()))
}


def test_the_settings_are_few_and_each_is_in_a_recipe_or_advised_on_a_page():
    assert len(leaves()) <= MOST
    for key in leaves():
        assert KINDS.sub("", key) in SET or key.rpartition(".")[2] in ADVISED_ON, key


@pytest.mark.parametrize("settings", get_args(get_args(ScorerSettings)[0]), ids=str)
def test_every_setting_of_every_scorer_is_found_with_its_kind(settings):
    fields = get_args(settings)[0].model_fields
    kind = fields["kind"].default
    for name, field in fields.items():
        found = [one for one in settings_of(f"quality.scorers.{name}") if one.key.endswith(f"].{name}")]
        own = [one for one in found if {kind, "*"} & set(re.findall(r"[\w*]+", one.key))]
        assert [(one.meaning, one.default == REQUIRED) for one in own] == [(field.description, field.is_required())]
    with pytest.raises(SettingsError, match=r"there is no setting 'quality\.scorers\.other'"):
        settings_of("quality.scorers.other")
