"""Card: the hub can read its header, and no text from the web breaks its Markdown."""

import re

import pytest
import yaml

from fineweb_mask.tasks.materialize import size_category
from tests.tasks.conftest import HOSTILE_DUMPS, parts, read_card
from tests.tasks.dataset.conftest import make


def test_the_card_s_header_is_what_the_hub_reads(built):
    header, body = read_card(built.workspace)
    assert header["size_categories"] == ["n<1K"]
    assert (header["license"], header["language"]) == ("odc-by", ["en"])
    [config] = header["configs"]
    assert config["config_name"] == "default"
    [files] = config["data_files"]
    assert files["split"] == "train"
    matched = {path.relative_to(built.workspace.dataset) for path in built.workspace.dataset.glob(files["path"])}
    assert matched == {path.relative_to(built.workspace.dataset) for path in parts(built.workspace)}
    assert f"\n{built.counts.selected} documents (" in body
    assert "| `space` |" in body


def test_a_title_and_a_licence_are_told_if_they_are_given_and_cannot_break_the_header(tmp_path):
    title = 'x: "y"\n---\n# [z]'
    making = make(tmp_path, [[("A", True)]], title=title, license="no: [t")
    making.write()
    text = (making.workspace.dataset / "README.md").read_text(encoding="utf-8")
    header = next(yaml.safe_load_all(text.removeprefix("---\n").split("\n---\n")[0]))
    assert (header["pretty_name"], header["license"]) == (title, "no: [t")
    make(tmp_path, [[("A", True)]], layout="flat").write()
    header, body = read_card(making.workspace)
    assert not {"license", "source_datasets"} & header.keys()
    assert header["pretty_name"] == "Selected documents"
    assert "# Selected documents" in body
    assert "`data/part-*.parquet`" in body


def test_hostile_dumps_do_not_break_the_card_s_table(hostile_dumps):
    _, body = read_card(hostile_dumps.workspace)
    lines = body.split("| dump | documents | selected | share |\n")[1].split("\n\n")[0].splitlines()[1:]
    assert len(lines) == len(HOSTILE_DUMPS) - 2
    for line in lines:
        assert re.fullmatch(r"\| ([^!-/:-@\[-`{-~]|\\.)* \| \d \| \d \| 100\.0% \|", line)
    assert r"| a\|b\`c\` \| d | 1 | 1 | 100.0% |" in lines


def test_the_recipe_in_the_card_makes_the_dataset_again(hostile_dumps):
    _, body = read_card(hostile_dumps.workspace)
    recipe = yaml.safe_load(body.split("```yaml\n")[1].split("```")[0])
    assert recipe["source"]["path"] == "source"
    assert recipe["quality"]["scorers"][0]["labels"]["path"] == "labels.parquet"
    made = hostile_dumps.recipe
    recipe["source"]["path"] = made.source.path
    recipe["quality"]["scorers"][0]["labels"]["path"] = made.quality.scorers[0].labels.path
    again = type(made).model_validate(recipe | {"workspace": made.workspace})
    assert again.model_copy(update={"engine": made.engine}) == made


def test_no_folder_of_this_machine_is_published(built):
    folder = built.workspace.dataset
    for text in ((folder / "README.md").read_text(), (folder / "provenance.json").read_text()):
        assert built.recipe.source.path not in text
        assert str(built.workspace.root.parent.parent) not in text


def test_languages_are_those_of_the_selected_documents(hostile_dumps):
    header, _ = read_card(hostile_dumps.workspace)
    assert header["language"] == ["de", "fr"]
    assert hostile_dumps.dataset.details["languages"] == [
        {"language": "de", "documents": 8, "selected": 8},
        {"language": "fr", "documents": 8, "selected": 8},
        {"language": "unknown", "documents": 8, "selected": 8},
    ]


@pytest.mark.parametrize(("rows", "category"), [(999, "n<1K"), (1_000, "1K<n<10K"), (10**13, "100B<n<1T")])
def test_size_categories(rows, category):
    assert size_category(rows) == category
