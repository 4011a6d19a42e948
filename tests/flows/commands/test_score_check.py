"""`fineweb-mask score-check`: what is refused before any work, what is told, and the exit status."""

import pytest

from fineweb_mask.flows.commands import score_check as module
from fineweb_mask.flows.score_check import ScoreCheckSummary
from fineweb_mask.tasks.audit.score_check import DAMAGE


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--by", "dump"], "is no workspace: no run was started there"),
        (["--by", "dump", "--pages", 0], "--pages must be at least 1"),
        ([], "Missing option '--by'"),
    ],
)
def test_wrong_options_end_with_2_before_any_work(invoke, tmp_path, options, message):
    done = invoke("score-check", tmp_path, *options)
    assert done.exit_code == 2
    assert message in done.stderr
    assert not list(tmp_path.iterdir())


def summary(**changes):
    score = {"mean": 0.1, "deviation": 0.5, "of_the_best": 0.25, "prefers_page": dict.fromkeys(DAMAGE, 0.75)}
    group = {"group": "a [b]", "documents": 1234, "share": 0.4, "agreement": None, "scores": {"quality": score}}
    fields = {
        "by": "source",
        "scores": {"quality": {"between_groups": 0.31, "group_auc": 0.852, "deviation": 1.0}},
        "groups": [group],
        "warnings": ["w"],
        "advice": ["do"],
        "page": "p/index.html",
    }
    return ScoreCheckSummary.model_construct(**fields | changes)


def test_what_is_told(capsys):
    module._tell(summary())
    said = capsys.readouterr().out
    assert "a [b]" in said
    assert "1,234" in said
    assert "75% lines" in said
    assert "quality: 31% of the variance is between groups; source alone tells the best tenth with AUC 0.85" in said
    assert said.index("warning  w") < said.index("advice   do") < said.index("page     p/index.html")


def test_many_groups_are_cut_and_one_that_is_not_of_text_has_no_preference(capsys):
    [group] = summary().groups
    group["scores"]["quality"]["prefers_page"] = {}
    module._tell(summary(groups=[group] * 25, warnings=[]))
    said = capsys.readouterr().out
    assert "and 5 smaller groups, on the page" in said
    assert "lines" not in said.partition("inside:")[0]
