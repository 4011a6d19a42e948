"""Card: the hub can read its header, and no text from the web breaks its Markdown."""

import re
from typing import Any

import pytest
import yaml

from fineweb_mask.tasks.dataset.card import size_category
from tests.tasks.conftest import HOSTILE_DUMPS, parts, read_card


def test_the_card_s_header_is_what_the_hub_reads(built: Any) -> None:
    header, body = read_card(built.workspace)
    assert "`repeats`" not in body
    assert header["size_categories"] == ["n<1K"]
    assert header["license"] == "odc-by"
    [config] = header["configs"]
    assert config["config_name"] == "default"
    [files] = config["data_files"]
    assert files["split"] == "train"
    matched = {path.relative_to(built.workspace.dataset) for path in built.workspace.dataset.glob(files["path"])}
    assert matched == {path.relative_to(built.workspace.dataset) for path in parts(built.workspace)}
    assert f"\n{built.counts.selected} documents (" in body
    assert "| `space` |" in body


def test_hostile_titles_do_not_break_the_header(copied: Any) -> None:
    title = 'x: "y"\n---\n# [z]'
    copied.making.with_settings(title=title, license="no: [t").write()
    text = (copied.workspace.dataset / "README.md").read_text(encoding="utf-8")
    header = next(yaml.safe_load_all(text.removeprefix("---\n").split("\n---\n")[0]))
    assert header["pretty_name"] == title
    assert header["license"] == "no: [t"


def test_hostile_dumps_do_not_break_the_card_s_table(hostile_dumps: Any) -> None:
    _, body = read_card(hostile_dumps.workspace)
    lines = body.split("| dump | documents | selected | share |\n")[1].split("\n\n")[0].splitlines()[1:]
    assert len(lines) == len(HOSTILE_DUMPS) - 2
    for line in lines:
        assert re.fullmatch(r"\| `([^`|]|\\\|)*` \| \d \| \d \| 100\.0% \|", line)
    assert r"| `a\|b'c' \| d` | 1 | 1 | 100.0% |" in lines


def test_the_recipe_in_the_card_makes_the_dataset_again(hostile_dumps: Any) -> None:
    _, body = read_card(hostile_dumps.workspace)
    recipe = yaml.safe_load(body.split("```yaml\n")[1].split("```")[0])
    again = type(hostile_dumps.recipe).model_validate(recipe | {"workspace": hostile_dumps.recipe.workspace})
    assert again.model_copy(update={"engine": hostile_dumps.recipe.engine}) == hostile_dumps.recipe


@pytest.mark.parametrize(
    ("rows", "category"),
    [
        (0, "n<1K"),
        (999, "n<1K"),
        (1_000, "1K<n<10K"),
        (10**6 - 1, "100K<n<1M"),
        (10**6, "1M<n<10M"),
        (10**11, "100B<n<1T"),
        (10**13, "100B<n<1T"),
    ],
)
def test_size_categories(rows: int, category: str) -> None:
    assert size_category(rows) == category
