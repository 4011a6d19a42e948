"""`fineweb-mask tune`: the names of its targets."""

import pytest

from fineweb_mask.flows import tune as flow
from fineweb_mask.flows.recipe import load_recipe
from fineweb_mask.flows.tune import check


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
