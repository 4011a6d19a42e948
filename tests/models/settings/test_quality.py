"""Settings of the section `quality`."""

import pytest
from pydantic import ValidationError

from fineweb_mask.models.quality.registry import SCORERS
from fineweb_mask.models.settings.quality import QualitySettings, quality_note

EDU, MODEL, ENDLESS = {"kind": "edu"}, {"model": "m.bin"}, float("nan")
TAKEN = [(name, f"the name '{name}' is taken") for name in ("quality", "row", "text", "shard")]
NAMES = [*TAKEN, *((name, "pattern") for name in ("Edu", "", "1st", 'x"; DROP TABLE y', "é", "a\n"))]
SIDECARS = [
    ({"path": "{shard}/{shard}.npy"}, "must name the source file once"),
    ({"path": "{shard}.csv"}, "must end in one of .npy"),
    ({"path": "{shard}.npy", "field": "score"}, "name the one with the score in .parquet"),
    ({"path": "s3://key:secret@host/{shard}.npy"}, "password"),
]
WRONG = [
    *(([kind | {"name": name}], says) for name, says in NAMES for kind in (EDU, MODEL)),
    *(([{"kind": "sidecar", **values}], says) for values, says in SIDECARS),
    ([MODEL | {"name": "edu"}, EDU], r"scorer names must differ, received \['edu', 'edu'\]"),
    ([EDU | {"weight": 0}], "every scorer has weight 0"),
    ([3], "type=union_tag_not_found"),
    ([EDU | {"positive_label": "x"}], "type=extra_forbidden"),
    ([{}], "needs either `model` or `labels`"),
    ([{"model": "", "labels": {"path": "l"}}], r"\[fasttext\]\.model\n"),
    ([MODEL | {"weight": ENDLESS}], r"\[fasttext\]\.weight\n"),
    ([EDU | {"max_tokens": 2}], r"\[edu\]\.max_tokens\n"),
    ([{"kind": "column", "column": "c", "missing": ENDLESS}], r"\[column\]\.missing\n"),
    ([{"labels": {"path": "l", "threshold": ENDLESS}}], r"labels\.threshold\n"),
]


@pytest.mark.parametrize(("scorers", "says"), WRONG, ids=str)
def test_scorers_that_cannot_be_are_refused_with_their_setting(scorers, says):
    with pytest.raises(ValidationError, match=says):
        QualitySettings.model_validate({"scorers": scorers})


@pytest.mark.parametrize(
    ("scorers", "says"), [([], "No quality is scored"), ([{"kind": "column", "column": "score"}], None)]
)
def test_what_is_to_be_known_of_the_quality_is_said(scorers, says):
    settings = QualitySettings.model_validate({"scorers": scorers})
    note = quality_note({"source": {"path": "pages"}, "quality": settings.model_dump(mode="json")})
    assert note is None if says is None else says in note


def test_kinds_are_distinguished_each_has_its_class_and_fasttext_is_the_default():
    needed = {"column": {"column": "score"}, "fasttext": {"model": "m.bin"}, "perplexity": {"model": "m"}}
    given = [{"model": "m.bin"}, *({"kind": kind, **needed.get(kind, {})} for kind in SCORERS)]
    settings = QualitySettings.model_validate({"scorers": [{"name": f"s{n}", **one} for n, one in enumerate(given)]})
    assert [one.kind for one in settings.scorers] == ["fasttext", *SCORERS]
    assert QualitySettings.model_validate_json(settings.model_dump_json()) == settings
