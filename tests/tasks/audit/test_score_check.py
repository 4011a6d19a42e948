"""Scores inside groups: what recognises the source is told from what orders its documents."""

import json

import numpy as np
import pyarrow as pa
import pytest

from fineweb_mask.models.errors import DataError
from fineweb_mask.models.settings import SourceSettings
from fineweb_mask.models.settings.quality import ColumnScorerSettings
from fineweb_mask.tasks.audit import score_check as module
from fineweb_mask.tasks.audit.score_check import ScoreCheckJob, check_groups, score_check
from fineweb_mask.tasks.inference.scorers import QualityModel
from fineweb_mask.tasks.reporting.page import some

SOURCES = ("sea", "kitchen", "space")  # texts of a seed are of the topic of its remainder by 3: see `sentence`
DOCUMENTS = 240


@pytest.fixture(scope="module")
def scored(recipe, pipeline, make_document, make_parquet, tmp_path_factory):
    """Three sources: one topic each, which the scorer `space` tells; `flat` is constant in one, `noise` is random."""
    folder = tmp_path_factory.mktemp("scored")
    dice = np.random.default_rng(0)
    rows = [
        make_document(
            seed,
            source=sorted(SOURCES)[seed % 3],
            flat=0.5 if seed % 3 == 0 else dice.normal(),
            noise=dice.normal(),
        )
        for seed in range(DOCUMENTS)
    ]
    extra = (pa.field("source", pa.string()), pa.field("flat", pa.float64()), pa.field("noise", pa.float64()))
    make_parquet(folder / "source" / "a.parquet", rows[:150], extra)
    make_parquet(folder / "source" / "b.parquet", rows[150:], extra)
    return pipeline(
        recipe.model_copy(
            update={"workspace": str(folder / "workspace"), "source": SourceSettings(path=str(folder / "source"))}
        )
    )


def job_of(built, by="source", models=None, quality=None, **fields):
    return ScoreCheckJob(
        root=built.workspace.address,
        shards=built.selection_shards,
        models=models or built.models,
        statistics=built.statistics,
        settings=quality or built.recipe.quality,
        by=by,
        **fields,
    )


@pytest.fixture(scope="module")
def found(scored):
    return score_check(job_of(scored)).details


def test_a_score_that_says_the_source_is_warned_of_and_the_setting_named(found):
    assert found["scores"]["quality"]["between_groups"] > 0.8
    assert found["scores"]["quality"]["group_auc"] > 0.75
    assert found["warnings"][0].startswith("quality mostly says the source: ")
    assert found["advice"][0].startswith("set quality.by: source, so that")


def test_groups_are_counted_and_their_parts_of_the_best_add_up(scored, found):
    assert [(one["group"], one["documents"]) for one in found["groups"]] == [(name, 80) for name in sorted(SOURCES)]
    assert found["documents"] == found["population"] == DOCUMENTS
    best = {one["group"]: one["scores"]["quality"]["of_the_best"] for one in found["groups"]}
    assert sum(best.values()) == pytest.approx(1)
    assert max(best, key=best.get) == "space"
    total = sum(one["documents"] * one["scores"]["quality"]["mean"] for one in found["groups"])
    assert total == pytest.approx(0, abs=1e-3 * DOCUMENTS)


def test_pages_are_scored_again_with_their_damaged_copies(found):
    assert found["pages"] == 3 * module.PAGES_OF_GROUP
    for group in found["groups"]:
        asked = group["scores"]["quality"]["prefers_page"]
        assert list(asked) == list(module.DAMAGE)
        assert all(0 <= share <= 1 for share in asked.values())
    space = next(one for one in found["groups"] if one["group"] == "space")["scores"]["quality"]["prefers_page"]
    assert space["boilerplate"] > 0.9  # which has no word of the topic that the scorer likes


def test_its_page_has_every_group_and_is_found_again(scored, found):
    job = job_of(scored)
    text = (job.folder / "index.html").read_text(encoding="utf-8")
    assert "quality mostly says the source" in text
    assert all(text.count(name) >= 2 for name in SOURCES)
    assert json.loads((job.folder / "metrics.json").read_text())["groups"] == found["groups"]
    assert score_check(job).cached
    assert job_of(scored, by="dump").key != job.key


def with_columns(scored, by=None):
    """Quality of two columns of numbers, whose scores stand beside the first scorer's in a workspace of its own."""
    scorers = [
        *scored.recipe.quality.scorers,
        *(ColumnScorerSettings(name=f"of_{name}", column=name) for name in ("flat", "noise")),
    ]
    return scored.recipe.quality.model_copy(update={"scorers": scorers, "by": by})


@pytest.fixture(scope="module")
def several(scored):
    """The same shards with three scores, and the quality of all."""
    import pyarrow.parquet as pq

    from fineweb_mask.tasks.fit import models as fit
    from fineweb_mask.tasks.score import score
    from tests.tasks import jobs

    quality = with_columns(scored, by="source")
    models = [*scored.models, *(QualityModel(settings=one, path="", fingerprint="") for one in quality.scorers[1:])]
    statistics_job = jobs.statistics_job(scored.workspace, scored.documents, models, quality)
    statistics = fit.fit_statistics(statistics_job)
    scores = [score(jobs.score_job(scored.workspace, file, models, statistics, quality)) for file in scored.documents]
    assert {"of_flat", "of_noise"} <= set(pq.read_schema(scored.workspace.resolve(scores[0])).names)
    shards = [
        shard.model_copy(update={"scores": file}) for shard, file in zip(scored.selection_shards, scores, strict=True)
    ]
    job = job_of(scored, models=models, quality=quality).model_copy(update={"shards": shards, "statistics": statistics})
    return score_check(job).details


def test_a_constant_score_and_scorers_that_disagree_are_named_with_their_groups(several):
    """The first of the sources, whose documents have the same number, and all whose numbers are random."""
    assert "of_flat is nearly constant inside kitchen: its order there is noise" in several["warnings"]
    assert any(warning.startswith("the scores do not agree inside ") for warning in several["warnings"])
    assert any(advice.startswith("label 200 documents of kitchen") for advice in several["advice"])
    assert several["scores"].keys() == {"quality", "space", "of_flat", "of_noise"}


def test_scores_that_do_not_read_the_text_are_not_asked_about_damage(several):
    for group in several["groups"]:
        assert group["scores"]["of_noise"]["prefers_page"] == {}
        assert group["scores"]["space"]["prefers_page"] != {}
        assert group["scores"]["quality"]["prefers_page"] != {}


@pytest.mark.parametrize(
    ("by", "message"),
    [
        ("nosuch", "--by nosuch: no document has a group there: name one of dump, url, date, file_path, language"),
        ("text", "--by text: "),
        ("dump", "--by dump: 1 of its 1 values have 30 documents or more: at least two are needed"),
    ],
)
def test_columns_that_have_no_groups_are_refused(make_workspace, make_document, by, message):
    rows = [make_document(seed, dump="one") for seed in range(40)]
    built = make_workspace(f"refused-{by}", {"a.parquet": (rows, [])})
    with pytest.raises(DataError, match=message):
        score_check(job_of(built, by))


def test_a_column_with_too_many_values_is_refused_before_any_page_is_scored(scored, monkeypatch):
    monkeypatch.setattr(module, "MOST_GROUPS", 100)
    monkeypatch.setattr(module, "_preferences", None)
    for call in (
        lambda: check_groups(scored.workspace, scored.selection_shards, "id"),
        lambda: score_check(job_of(scored, "id")),
    ):
        with pytest.raises(DataError, match="--by id: it has 150 values in 150 documents, which are no groups"):
            call()


def test_small_groups_are_counted_and_not_judged(make_workspace, make_document):
    rows = [
        make_document(seed, dump="large" if seed < 40 else "larger" if seed < 90 else "small") for seed in range(99)
    ]
    details = score_check(job_of(make_workspace("small", {"a.parquet": (rows, [])}), "dump")).details
    assert [one["group"] for one in details["groups"]] == ["larger", "large"]
    assert details["small_groups"] == 9


def test_many_names_are_shortened():
    assert some([str(number) for number in range(6)]) == "0, 1, 2, 3, 4 and 1 others"
