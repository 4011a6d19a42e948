"""Weights of scores and shares of groups over a workspace: measured on one half, shown on the other, and cached."""

import json
from typing import Any

import pytest

from fineweb_mask.models.errors import DataError
from fineweb_mask.tasks.witness import weightings as module
from fineweb_mask.tasks.witness.weightings import WeightingsJob, weigh

MODELS = 10


@pytest.fixture(scope="module")
def scores(selected: Any, shards: Any) -> WeightingsJob:
    return WeightingsJob(
        root=str(selected.workspace.root),
        shards=shards,
        settings=selected.recipe.selection.model_copy(update={"select_ratio": 0.25}),
        weights={"space": 1.0, "quality": 1.0},  # the only score, and what is made of it: of every weighting the same
        targets={},
        models=MODELS,
    )


@pytest.fixture(scope="module")
def shares(scores: WeightingsJob) -> WeightingsJob:
    return changed(scores, weights={}, by="topic")


def changed(job: WeightingsJob, **fields: Any) -> WeightingsJob:
    """Return a job with other fields, and a key of its own."""
    return WeightingsJob(**{name: getattr(job, name) for name in type(job).model_fields} | fields)


@pytest.fixture(scope="module", params=["scores", "shares"])
def job(request: Any) -> Any:
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="module")
def found(job: WeightingsJob) -> Any:
    return weigh(job)


def test_weights_are_learned_from_as_many_selections_as_asked(job: WeightingsJob, found: Any) -> None:
    details = found.details
    assert details["weights"].keys() == (job.weights.keys() or {"sea", "kitchen", "space"})
    assert sum(details["weights"].values()) == pytest.approx(1)
    assert len(details["tried"]) == MODELS
    assert details["measured_on"] == (["pool"] if job.weights else ["pool", "groups"])
    losses = [one["loss"] for one in details["tried"]]
    assert len(set(losses)) == (1 if job.weights else MODELS)
    assert min(losses) <= details["predicted"] <= max(losses)
    assert -1 <= details["rank_correlation"] <= 1


def test_what_was_found_is_shown_beside_the_plain_choice_and_random(job: WeightingsJob, found: Any) -> None:
    arms = found.details["final"]["sets"]["pool"]["against_random"].keys()
    assert arms == {"found", "equal weights" if job.weights else "the corpus's shares", "top_quality"}
    final = found.details["final"]["sets"]["pool"]
    corpus, halves = job.read(100_000)
    assert final["documents"] + final["left_out"] == len(halves.final["pool"].sample.sizes)
    assert len(corpus.held_out["pool"].sample.sizes) == sum(
        len(half["pool"].sample.sizes) for half in (halves.deciding, halves.final)
    )


def test_each_kind_has_a_page_of_its_own_which_is_found_again(job: WeightingsJob, found: Any) -> None:
    assert job.folder.name == ("score-weights" if job.weights else "group-shares")
    text = (job.folder / "index.html").read_text(encoding="utf-8")
    assert f"{MODELS} selections by random weights" in text
    assert "rank correlation of" in text
    assert json.loads((job.folder / "metrics.json").read_text())["weights"] == found.details["weights"]
    assert weigh(job).cached


def test_it_is_found_again_whatever_does_not_matter(scores: WeightingsJob) -> None:
    """Random and highest scores ask for no metric; other weights of the recipe are no other search."""
    for key, value, same in (("lamb", 0.123, True), ("seed", 99, False), ("select_ratio", 0.3, False)):
        other = changed(scores, settings=scores.settings.model_copy(update={key: value}))
        assert (other.key == scores.key) is same
    assert changed(scores, weights={"space": 0.5, "quality": 1.0}).key == scores.key


def test_too_few_or_too_many_groups_are_named(shares: WeightingsJob, monkeypatch: Any) -> None:
    monkeypatch.setattr(module, "MOST_GROUPS", 2)
    with pytest.raises(DataError, match="'topic' has 3 values: shares are learned of 2 to 2"):
        weigh(changed(shares, models=11))
