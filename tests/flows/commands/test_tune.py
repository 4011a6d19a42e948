"""`fineweb-mask tune`: what is refused before any work, and what the recipe says."""

import pytest
import yaml

from fineweb_mask.flows.commands.tune import named, recipe_text
from fineweb_mask.flows.recipe import change, load_recipe, validate
from fineweb_mask.flows.tune import TuneSummary, as_overrides, weighed
from fineweb_mask.models.settings import PipelineSettings
from fineweb_mask.tasks.witness.tune import Trial


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--trials", "1"], "--trials must be at least 2"),
        (["--target", "nosuch.parquet"], "target nosuch: "),
        (["--set", "selection.budget=10"], "set select_ratio instead"),
        ([], "Missing option '--output'"),
    ],
)
def test_wrong_options_end_with_2_before_any_work(invoke, recipe, tmp_path, options, message):
    output = ["--output", str(tmp_path / "tuned.yaml")] if options else []
    done = invoke("tune", recipe, *output, *options)
    assert done.exit_code == 2
    assert message in done.stderr
    assert list(tmp_path.iterdir()) == [recipe]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("data/books.parquet", ("books", "data/books.parquet")),
        ("mine=data/books.parquet", ("mine", "data/books.parquet")),
        ("data/year=2024/a.jsonl.gz", ("a", "data/year=2024/a.jsonl.gz")),
        ("folder/", ("folder", "folder/")),
    ],
)
def test_a_target_has_the_name_of_its_file_or_one_of_its_own(text, expected):
    assert named(text) == expected


def test_a_recipe_takes_weights_of_scores_and_shares_of_groups():
    scorers = [{"model": "model.bin"}, {"kind": "column", "column": "length"}]
    selection = {"select_ratio": 0.1, "groups": {"column": "topic"}, "metrics": "disf"}
    content = {
        "workspace": "w",
        "source": {"path": "corpus", "extra_columns": ["length", "topic"]},
        "quality": {"scorers": scorers},
        "selection": selection,
    }
    settings = validate(PipelineSettings, content)
    assert weighed(settings) == {"fasttext": 1.0, "column": 1.0}
    shares = {"a": 1 / 3, "b": 2 / 3}
    trial = Trial(lamb=0.3, metrics={"disf": 1.0}, weights={"fasttext": 0.25, "column": 0.75}, shares=shares)
    change(content, as_overrides(settings, trial).items())
    found = validate(PipelineSettings, content)
    assert [one.weight for one in found.quality.scorers] == [0.25, 0.75]
    assert found.selection.groups.shares == shares


def test_the_recipe_has_the_best_trial_and_says_what_was_gained(tmp_path):
    settings = load_recipe("sample")
    trial = Trial(lamb=0.31, metrics={"facility": 0.7, "disf": 0.3}, weights={"fasttext": 1.0})
    effect = {"verdict": "better", "difference": -0.02, "visible": 0.01}
    measured = {"losses": {"random": [2.0]}, "against_random": {"tuned": effect}, "against_lengths": {}}
    found = TuneSummary.model_construct(
        trials=9,
        sets=["pool"],
        final={"sets": {"pool": measured}, "remarks": ["Few tokens."]},
        overrides=as_overrides(settings, trial),
    )
    text = recipe_text(settings, found)
    assert "the best of 9 trials" in text.splitlines()[0]
    assert "1.0% better" in text.splitlines()[1]
    assert text.splitlines()[2] == "# Few tokens."
    written = tmp_path / "tuned.yaml"
    written.write_text(text)
    hostile = "x\nworkspace: /etc"
    again = found.model_copy(update={"sets": [hostile], "final": {"sets": {hostile: measured}, "remarks": [hostile]}})
    assert len(recipe_text(settings, again).splitlines()) == len(text.splitlines())
    selection = load_recipe(written).selection
    assert (selection.lamb, selection.metrics, selection.budget_by) == (0.31, {"facility": 0.7, "disf": 0.3}, "tokens")
    assert yaml.safe_load(text)["selection"]["select_ratio"] == settings.selection.select_ratio
