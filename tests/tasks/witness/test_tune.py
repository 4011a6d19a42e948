"""The search over a workspace: trials judged on one half, shown on the other; what a recipe takes of it."""

import json
import re
from typing import Any

import pytest

from fineweb_mask.models.errors import DataError
from fineweb_mask.models.settings import PipelineSelectionSettings
from fineweb_mask.tasks.source.discovery import find_files
from fineweb_mask.tasks.witness.tune import OWN, TUNED, Trial, TuneJob, _page, _Search, changed, tune

TRIALS = 7


@pytest.fixture(scope="module")
def job(selected: Any, shards: Any) -> TuneJob:
    settings = selected.recipe.selection.model_copy(update={"select_ratio": 0.25})
    return TuneJob(
        root=str(selected.workspace.root),
        shards=shards,
        settings=settings,
        weights={},
        targets={},
        trials=TRIALS,
        minutes=5,
    )


@pytest.fixture(scope="module")
def found(job: TuneJob) -> Any:
    return tune(job)


def search_of(job: TuneJob) -> _Search:
    return _Search(job, *job.read(100_000))


def test_the_recipe_is_tried_first_and_the_best_is_named(job: TuneJob, found: Any) -> None:
    trials = found.details["trials"]
    assert len(trials) == TRIALS
    assert trials[0]["lamb"] == job.settings.lamb
    assert trials[0]["metrics"] == job.settings.metric_weights
    best = min(trials, key=lambda one: one["loss"])
    assert {key: value for key, value in best.items() if key != "loss"} == found.details["best"]
    assert len({one["lamb"] for one in trials}) == TRIALS


def test_the_final_figures_are_of_documents_that_the_search_did_not_see(job: TuneJob, found: Any) -> None:
    final = found.details["final"]["sets"]["pool"]
    assert {TUNED, OWN, "top_quality"} <= set(final["against_random"])
    search = search_of(job)
    sizes = {
        name: one["pool"].sample.sizes.tolist()
        for name, one in (("deciding", search._halves.deciding), ("final", search._halves.final))
    }
    assert final["documents"] + final["left_out"] == len(sizes["final"])
    assert abs(len(sizes["final"]) - len(sizes["deciding"])) <= 1


def test_the_page_says_what_was_tried(job: TuneJob, found: Any) -> None:
    text = (job.folder / "index.html").read_text(encoding="utf-8")
    assert f"Best of {TRIALS} trials: lamb" in text
    assert "partly luck" in text
    assert json.loads((job.folder / "metrics.json").read_text())["best"] == found.details["best"]
    assert tune(job).cached


def test_hostile_names_are_text_on_the_page(found: Any) -> None:
    attack = "<img src=x onerror=alert(1)> | `a` </script><script>alert(1)</script> [l](javascript:alert(1))"
    details = json.loads(json.dumps(found.details).replace('"pool"', json.dumps(attack)))
    details["best"]["shares"] = details["trials"][1]["shares"] = {attack: 1.0}  # a group's name, of the corpus
    page = _page(details)
    text = page.html()
    assert text.count("&lt;img src=x onerror=alert(1)&gt;") > 3
    assert "<img src=x" not in text
    assert "<script>alert" not in text
    markup = re.sub(r"(?<!\\)`[^`]*`", "", page.markdown())  # without code, which is not obeyed
    assert "<img" not in markup.replace(r"\<img", "")
    assert "[l](" not in markup
    assert all("/" not in figure.name for figure in page.figures)


def test_no_trial_begins_after_the_time(job: TuneJob) -> None:
    trials, losses = search_of(job).run(50, until=0.0)
    assert len(trials) == len(losses) == 2  # the recipe's own and one other


def test_weights_of_scores_and_shares_of_groups_are_searched_where_there_are_several(job: TuneJob) -> None:
    groups = {"groups": {"column": "topic"}, "metrics": "pairwise", "budget_by": "tokens"}
    settings = PipelineSelectionSettings.model_validate(job.settings.model_dump(exclude_unset=True) | groups)
    changes = {"settings": settings, "by": "topic", "weights": {"space": 1.0, "quality": 1.0}}
    search = search_of(job.model_copy(update=changes))
    assert search.dimensions == 1 + 3 + 2 + 3
    trials, _ = search.run(4, until=1e12)
    for one in trials[1:]:
        assert sum(one.shares.values()) == pytest.approx(1)
        assert set(one.shares) == {"sea", "kitchen", "space"}
        assert sum(one.weights.values()) == pytest.approx(1, abs=0.01)
    chosen = search._corpus.groups[search.select(trials[2])]
    tokens = search._tokens[search.select(trials[2])]
    shares = {name: tokens[chosen == name].sum() / tokens.sum() for name in trials[2].shares}
    assert shares == pytest.approx(trials[2].shares, abs=0.05)


def test_a_target_decides_alone(job: TuneJob, make_parquet: Any, make_document: Any, tmp_path: Any) -> None:
    path = make_parquet(tmp_path / "theirs.parquet", [make_document(9_000 + seed) for seed in range(80)])
    search = search_of(job.model_copy(update={"targets": {"theirs": find_files(str(path), "target")}}))
    assert search._halves.names == ["theirs"]
    assert len(search._halves.deciding["theirs"].sample.sizes) == 20


def test_a_trial_becomes_settings(job: TuneJob) -> None:
    settings = changed(job.settings, Trial(lamb=0.25, metrics={"disf": 0.4, "pairwise": 0.6}))
    assert (settings.lamb, settings.metric_weights, settings.budget_by) == (
        0.25,
        {"disf": 0.4, "pairwise": 0.6},
        "tokens",
    )
    assert settings.select_ratio == 0.25


def test_a_budget_that_leaves_too_little_to_compare_with_is_refused_before_any_trial(job: TuneJob) -> None:
    settings = job.settings.model_copy(update={"select_ratio": 0.9})
    with pytest.raises(DataError, match="select a smaller share"):
        search_of(job.model_copy(update={"settings": settings}))
    tiny = job.settings.model_copy(update={"select_ratio": 0.01})
    with pytest.raises(DataError, match=r"the recipe's selection has [0-9,]+ tokens, .* at least 10,000 are needed"):
        search_of(job.model_copy(update={"settings": tiny}))


def test_too_small_a_corpus_is_named(built: Any) -> None:
    job = TuneJob(
        root=str(built.workspace.root),
        shards=built.selection_shards,
        settings=built.recipe.selection,
        weights={},
        targets={},
        trials=3,
        minutes=1,
    )
    with pytest.raises(DataError, match="use a larger corpus"):
        tune(job)
