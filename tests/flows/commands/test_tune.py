"""`fineweb-mask tune`: what is refused before any work, what a recipe lets it search, and what it prints."""

import pytest

from fineweb_mask.flows import tune as flow
from fineweb_mask.flows.recipe import load_recipe
from fineweb_mask.flows.tune import TuneSummary, check


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


def test_it_prints_what_was_found_in_lines_and_the_options_that_a_shell_takes(invoke, recipe, monkeypatch):
    said = ["best of 9 trials: --set selection.lamb=0.3", "pool\x1b[31m: better", "  +1.0% random"]
    found = TuneSummary.model_construct(best={}, said=said, page="w/tune/index.html", quarantined=[])
    monkeypatch.setattr(flow, "tune", lambda *_: found)
    done = invoke("tune", recipe, "--trials", "9")
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert (lines[0], lines[-1]) == (said[0], "page    w/tune/index.html")
    assert "\x1b" not in done.stdout
