"""`fineweb-mask tune`: what is refused before any work, what a recipe lets it search."""

import pytest

from fineweb_mask.flows import tune as flow
from fineweb_mask.flows.recipe import load_recipe
from fineweb_mask.flows.tune import check


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--trials", "0"], "greater than or equal to 1"),
        (["--target", "mine=nosuch.parquet"], "target mine: "),
        (["--set", "selection.budget=10"], "set select_ratio instead"),
    ],
)
def test_wrong_options_end_with_2_before_any_work(invoke, recipe, tmp_path, options, message):
    done = invoke("tune", recipe, *options)
    assert done.exit_code == 2
    assert message in done.stderr
    assert list(tmp_path.iterdir()) == [recipe]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("mine=data/books.parquet", ("mine", "data/books.parquet")),
        ("data/year=2024/a.jsonl.gz", ("a", "data/year=2024/a.jsonl.gz")),
        ("folder/", ("folder", "folder/")),
    ],
)
def test_a_target_has_the_name_of_its_file_or_one_of_its_own(recipe, monkeypatch, text, expected):
    monkeypatch.setattr(flow, "find_files", lambda path, _: [path])
    assert check(load_recipe(recipe), [text]) == {expected[0]: [expected[1]]}
