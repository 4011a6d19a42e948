"""`fineweb-mask score-weights` and `group-shares`: what is refused before any work, and what is told."""

import shlex

import pytest

from fineweb_mask.flows.commands.weightings import _tell
from fineweb_mask.flows.recipe import load_recipe
from fineweb_mask.flows.weightings import WeightingsSummary


@pytest.mark.parametrize(
    ("command", "options", "message"),
    [
        ("score-weights", [], "there must be two scores or more to weigh"),
        ("group-shares", [], "set selection.groups.column, whose values get shares"),
        ("group-shares", ["--models", "9"], "--models must be at least 10"),
        ("group-shares", ["--target", "nosuch.parquet"], "target nosuch: "),
    ],
)
def test_wrong_options_end_with_2_before_any_work(invoke, recipe, tmp_path, command, options, message):
    groups = ["--set", "selection.groups.column=dump", "--set", "selection.metrics=pairwise"] if options else []
    done = invoke(command, recipe, *groups, *options)
    assert done.exit_code == 2
    assert message in done.stderr
    assert list(tmp_path.iterdir()) == [recipe]


def test_what_is_told_can_be_set(capsys):
    effect = {"verdict": "better", "difference": -0.02, "visible": 0.01}
    measured = {"losses": {"random": [2.0]}, "against_random": {"found": effect}, "against_lengths": {}}
    found = WeightingsSummary.model_construct(
        weights={"a b": 0.25, "it's": 0.75},
        predicted=0.98,
        rank_correlation=0.5,
        measured_on=["pool"],
        final={"sets": {"pool": measured}},
        overrides={"selection.groups.shares": {"a b": 0.25, "it's": 0.75}, "selection.budget_by": "tokens"},
        page="p",
    )
    _tell(load_recipe("sample"), found)
    said = capsys.readouterr().out
    assert "it's 0.750, a b 0.250" in said
    assert "rank correlation of 0.50" in said
    assert "1.0% better" in said
    line = next(line for line in said.splitlines() if line.startswith("to use them"))
    sets = [value for value in shlex.split(line)[3:] if value != "--set"]
    column = ["selection.groups.column=dump", "selection.metrics=pairwise"]
    assert load_recipe("sample", [*column, *sets]).selection.groups.shares == {"a b": 0.25, "it's": 0.75}
