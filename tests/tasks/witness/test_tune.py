"""The search over a workspace: what it draws, that it repeats, trials judged on one half and shown on the other."""

import json
import re

import numpy as np
import pytest

from fineweb_mask.models.errors import DataError
from fineweb_mask.models.settings import PipelineSelectionSettings
from fineweb_mask.tasks.source.discovery import find_files
from fineweb_mask.tasks.witness.tune import OWN, Search, TuneJob, shown, tune

pytestmark = pytest.mark.long

TRIALS = 3
SCORERS = {"quality.scorers.0.weight": ("space", 1.0), "quality.scorers.1.weight": ("quality", -0.5)}


@pytest.fixture(scope="module")
def job(selected, shards):
    settings = selected.recipe.selection.model_copy(update={"select_ratio": 0.25})
    root = str(selected.workspace.root)
    return TuneJob(root=root, shards=shards, settings=settings, weights={}, targets={}, trials=TRIALS)


@pytest.fixture(scope="module")
def found(job):
    return tune(job)


def changed(job, settings, **changes):
    content = job.settings.model_dump(exclude_unset=True) | settings
    return job.model_copy(update={"settings": PipelineSelectionSettings.model_validate(content), **changes})


def middle(asked):
    """Draw the middle of every range, and note the range."""

    def draw(name, low, high):
        asked[name] = (low, high)
        return (low + high) / 2

    return draw


def test_the_recipe_and_all_trials_are_on_the_page_the_best_first(job, found):
    trials = found.details["trials"]
    assert len(trials) == TRIALS
    assert OWN in {settings for settings, _, _ in trials}
    assert [gain for _, gain, _ in trials] == sorted((gain for _, gain, _ in trials), reverse=True)
    assert trials[0][0] == shown(found.details["best"])
    text = (job.folder / "index.html").read_text(encoding="utf-8")
    assert f"best of {TRIALS} trials" in text
    assert "partly luck" in text
    assert json.loads((job.folder / "metrics.json").read_text())["best"] == found.details["best"]


def test_the_same_trials_twice_and_others_with_another_seed(job, found):
    assert tune(job).cached
    again = tune(job.model_copy(update={"force": True}))
    assert again.details == found.details
    other = tune(changed(job, {"seed": 5}, trials=2, force=True))
    assert {row[0] for row in other.details["trials"]} & {row[0] for row in found.details["trials"]} == {OWN}


def test_the_gain_is_of_the_half_that_decided_nothing_with_every_reference(job, found):
    final, search = found.details["final"]["sets"]["pool"], Search(job)
    deciding, shown_half = (half["pool"] for half in (search.deciding, search.shown))
    texts = [
        {tuple(one.tokens.take(np.array([row])).ids.tolist()) for row in range(len(one.tokens.ends))}
        for one in (deciding, shown_half)
    ]
    assert not texts[0] & texts[1]
    assert final["documents"] + final["left_out"] == len(shown_half.tokens.ends)
    assert abs(len(shown_half.tokens.ends) - len(deciding.tokens.ends)) <= 1
    assert set(final["against"]) == {"tuned", OWN, "top_quality"}
    assert final["against"]["tuned"].keys() >= {"random", OWN, "top_quality"}
    said = "\n".join(found.details["said"])
    for reference in ("random", OWN, "top_quality"):
        assert re.search(rf"[+-][\d.]+% \(95% interval [+-][\d.]+% to [+-][\d.]+%\) {reference}", said)


def test_it_says_to_keep_the_recipe_unless_the_best_is_told_to_be_better(job, found):
    alone = tune(job.model_copy(update={"trials": 1, "force": True})).details
    assert alone["best"] == {}
    for details in (alone, found.details):
        verdict = details["final"]["sets"]["pool"]["against"]["tuned"][OWN]["verdict"]
        assert any(line.startswith("keep ") for line in details["said"]) == (verdict != "better")
        assert details is not alone or verdict == "no difference seen"


def test_weights_of_scores_and_shares_of_groups_are_searched_where_there_are_several(job):
    groups = {"groups": {"column": "topic"}, "metrics": "pairwise", "budget_by": "tokens"}
    search = Search(changed(job, groups, weights=SCORERS))
    asked: dict[str, tuple[float, float]] = {}
    trial = search.suggested(middle(asked))
    metrics = {"pairwise", "facility", "disf"}
    assert {"lamb", *metrics, *SCORERS, "share sea", "share kitchen", "share space"} <= set(asked)
    assert [asked[key] for key in SCORERS] == [(0, 2), (-1, 0)]
    assert [trial[key] for key in SCORERS] == [1.0, -0.5]
    shares = trial["selection.groups.shares"]
    assert sum(shares.values()) == pytest.approx(1, abs=1e-9)

    trial["selection.groups.shares"] = wanted = {"sea": 0.5, "kitchen": 0.3, "space": 0.2}
    places = search.select(trial)
    chosen, tokens = search.corpus.groups[places], search.corpus.pool.lengths[places]
    assert {name: tokens[chosen == name].sum() / tokens.sum() for name in wanted} == pytest.approx(wanted, abs=0.03)
    trial["quality.scorers.1.weight"], trial["selection.lamb"] = 0.0, 1.0
    space = search.corpus.groups[search.select(trial | {"selection.groups.shares": {"sea": 0.5, "space": 0.5}})]
    assert set(space) == {"sea", "space"}

    asked.clear()  # without groups and several scores
    one_score = dict(list(SCORERS.items())[:1])
    trial = Search(job.model_copy(update={"weights": one_score})).suggested(middle(asked))
    assert metrics | {"lamb"} <= set(asked)
    assert not {name for name in asked if name.startswith(("share", "quality"))}
    assert set(trial) == {f"selection.{name}" for name in ("lamb", "metrics", "solver", "budget_by")}


def test_equal_shares_are_the_recipes_own_where_it_says_so(job):
    search = Search(changed(job, {"groups": {"column": "topic", "shares": "equal"}, "metrics": "disf"}))
    groups, tokens = search.corpus.groups[search.select({})], search.corpus.pool.lengths[search.select({})]
    shares = [tokens[groups == name].sum() / tokens.sum() for name in ("sea", "kitchen", "space")]
    assert shares == pytest.approx([1 / 3] * 3, abs=0.03)


def test_a_trial_that_fails_says_why_and_the_search_goes_on(job, monkeypatch):
    select = Search.select
    monkeypatch.setattr(Search, "select", lambda self, trial: select(self, trial)[: None if not trial else 30])
    details = tune(job.model_copy(update={"trials": 2, "force": True})).details
    assert [gain is None for _, gain, _ in details["trials"]] == [False, True]
    assert "failed: every selection must have" in details["trials"][1][2]
    assert details["best"] == {}


def test_a_target_decides_alone_and_its_hostile_name_is_text_on_the_page(job, make_parquet, make_document, tmp_path):
    path = make_parquet(tmp_path / "theirs.parquet", [make_document(9_000 + seed) for seed in range(80)])
    theirs = find_files(str(path), "target")
    attack = "<img src=x onerror=alert(1)> | `a` </script><script>alert(1)</script> [l](javascript:alert(1))"
    with_target = job.model_copy(update={"trials": 1, "targets": {attack: theirs}})
    search = Search(with_target)
    assert search.names == [attack]
    assert len(search.deciding[attack].sizes) == 40
    tune(with_target)
    text = (job.folder / "index.html").read_text(encoding="utf-8")
    assert text.count("&lt;img src=x onerror=alert(1)&gt;") > 1
    assert "<img src=x" not in text
    assert "<script>alert" not in text
    markup = re.sub(r"(?<!\\)`[^`]*`", "", (job.folder / "index.md").read_text(encoding="utf-8"))  # without code
    assert "<img" not in markup.replace(r"\<img", "")
    assert "[l](" not in markup


@pytest.mark.parametrize(
    ("select_ratio", "message"),
    [(0.9, "select a smaller share"), (0.01, r"the recipe's selection has [0-9,]+ tokens, .* at least 10,000")],
)
def test_a_budget_that_cannot_be_compared_is_refused_before_any_trial(job, select_ratio, message):
    with pytest.raises(DataError, match=message):
        tune(changed(job, {"select_ratio": select_ratio, "near_duplicates": None}))
