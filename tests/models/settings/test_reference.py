"""The settings: few, each of which a recipe sets or a page of the documentation advises on."""

import re
from pathlib import Path

import pytest
import yaml

from fineweb_mask.models.settings.reference import settings_of

ROOT = Path(__file__).resolve().parents[3]
MOST = 150
PAGES = {  # that advise on a section, besides the list of all settings
    "workspace": ("pipeline", "storage"),
    "source": ("pipeline", "quality", "raw_web", "reliability", "selectors"),
    "ingest": ("near_duplicates", "pipeline", "raw_web"),
    "quality": ("quality", "selectors"),
    "embedding": ("embeddings",),
    "selection": ("algorithm", "choosing", "selectors"),
    "materialize": ("dataset", "pipeline", "raw_web", "storage"),
    "report": ("tutorial",),
    "engine": ("scaling", "storage"),
}
CODE = re.compile(r"```.*?```|`[^`\n]+`", re.DOTALL)


def leaves() -> list[str]:
    """Return the keys of all settings but sections."""
    own = [setting.key for setting in settings_of()]
    return [key for key in own if not any(other.startswith((f"{key}.", f"{key}[")) for other in own)]


def keys_in(recipe: object, before: str = "") -> set[str]:
    """Return the keys that a recipe sets, as `leaves` has them."""
    if isinstance(recipe, list):
        return {key for one in recipe for key in keys_in(one, before)} or {before}
    if not isinstance(recipe, dict):
        return {before}
    kind = f"[{recipe.get('kind', 'fasttext')}]" if before == "quality.scorers" else ""
    start = f"{before}{kind}." if before else ""
    return {before}.union(*(keys_in(value, f"{start}{key}") for key, value in recipe.items()))


SET = {
    key
    for path in (ROOT / "deployments" / "recipes").glob("*.yaml")
    for key in keys_in(yaml.safe_load(path.read_text()))
}


def test_the_settings_are_few() -> None:
    assert len(leaves()) <= MOST


@pytest.mark.parametrize("key", leaves())
def test_a_setting_is_in_a_recipe_or_advised_on_a_page(key: str) -> None:
    pages = [(ROOT / "docs" / f"{name}.md").read_text() for name in PAGES[key.partition(".")[0]]]
    words = {word for page in pages for code in CODE.findall(page) for word in re.findall(r"\w+", code)}
    assert key in SET or key.rpartition(".")[2] in words
