"""Settings of the section `quality`."""

import pytest
from pydantic import ValidationError

from fineweb_mask.models.quality.registry import SCORERS
from fineweb_mask.models.settings.quality import (
    ColumnScorerSettings,
    EduScorerSettings,
    FastTextScorerSettings,
    FastTextTrainingSettings,
    LabelSettings,
    QualitySettings,
    SidecarScorerSettings,
    quality_note,
)


@pytest.mark.parametrize("kind", [{"kind": "edu"}, {"model": "m.bin"}])
@pytest.mark.parametrize(
    ("name", "says"),
    [
        *((name, f"the name '{name}' is taken") for name in ("quality", "row", "text", "shard")),
        *((name, "pattern") for name in ("Edu", "", "1st", 'x"; DROP TABLE y', "é", "a\n")),
    ],
)
def test_a_scorer_s_name_is_a_plain_one_and_that_of_no_column_of_the_dataset(kind, name, says):
    with pytest.raises(ValidationError, match=says):
        QualitySettings.model_validate({"scorers": [{**kind, "name": name}]})


@pytest.mark.parametrize(
    ("scorers", "says"),
    [
        ([{}], "needs either `model` or `labels`"),
        ([{"model": "a.bin", "name": "edu"}, {"kind": "edu"}], r"scorer names must differ, received \['edu', 'edu'\]"),
        ([{"kind": "edu", "weight": 0}], "every scorer has weight 0"),
        ([3], "type=union_tag_not_found"),
        ([{"kind": "edu", "positive_label": "x"}], "type=extra_forbidden"),
    ],
)
def test_scorers_of_one_name_of_no_kind_or_of_no_weight_are_refused(scorers, says):
    with pytest.raises(ValidationError, match=says):
        QualitySettings.model_validate({"scorers": scorers})


@pytest.mark.parametrize(
    ("scorers", "says"),
    [
        ([], "No quality is scored"),
        ([{"kind": "column", "column": "score"}], None),
    ],
)
def test_what_is_to_be_known_of_the_quality_is_said(scorers, says):
    settings = QualitySettings.model_validate({"scorers": scorers})
    note = quality_note({"source": {"path": "pages"}, "quality": settings.model_dump(mode="json")})
    assert note is None if says is None else says in note


@pytest.mark.parametrize(
    ("model", "values"),
    [
        (FastTextScorerSettings, {"model": "m.bin", "weight": float("nan")}),
        (FastTextScorerSettings, {"model": "", "labels": {"path": "l"}}),
        (EduScorerSettings, {"max_tokens": 2}),
        (ColumnScorerSettings, {"column": "c", "missing": float("nan")}),
        (LabelSettings, {"path": "l", "threshold": float("nan")}),
        (FastTextTrainingSettings, {"learning_rate": float("inf")}),
    ],
)
def test_an_impossible_value_is_refused(model, values):
    with pytest.raises(ValidationError, match=f"\n({'|'.join(values)})\n"):
        model.model_validate(values)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"path": "{shard}/{shard}.npy"}, "must name the source file once"),
        ({"path": "{shard}.csv"}, "must end in one of .npy"),
        ({"path": "{shard}.npy", "field": "score"}, "name the one with the score in .parquet"),
        ({"path": "s3://key:secret@host/{shard}.npy"}, "password"),
    ],
)
def test_a_sidecar_names_its_files_and_where_the_score_is_in_them(values, says):
    with pytest.raises(ValidationError, match=says):
        SidecarScorerSettings.model_validate(values)


def test_kinds_are_distinguished_each_has_its_class_and_fasttext_is_the_default():
    needed = {"column": {"column": "score"}, "fasttext": {"model": "m.bin"}, "perplexity": {"model": "m"}}
    given = [{"model": "m.bin"}, *({"kind": kind, **needed.get(kind, {})} for kind in SCORERS)]
    settings = QualitySettings.model_validate({"scorers": [{"name": f"s{n}", **one} for n, one in enumerate(given)]})
    assert [one.kind for one in settings.scorers] == ["fasttext", *SCORERS]
    assert QualitySettings.model_validate_json(settings.model_dump_json()) == settings
