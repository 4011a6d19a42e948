"""What a run shows in the UI, without a server."""

import pytest

from flows.artifacts import StageProgress, _certificate, _duration, _escaped, _plots
from tasks.lake import StageFile


def file(rows: int, *, reused: bool = False) -> StageFile:
    return StageFile(stage="embed", name="s", path="p", rows=rows, bytes=1, fingerprint="f", reused=reused)


def test_progress_counts_what_was_built_apart_from_what_was_there():
    stage = StageProgress("embed", jobs=10, since=0.0)
    for one in (file(1000), file(2000, reused=True), file(3000), None):
        stage.count(one)
    stage.until = 20.0
    assert stage.percent == 40.0
    assert stage.describe() == (
        "4 of 10 done, 1 already there, 1 set aside, 6,000 documents, 200 documents/s, about 1 min 0 s left"
    )


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0.4, "0 s"), (59.6, "1 min 0 s"), (3599.0, "59 min 59 s"), (90_000, "25 h 0 min")]
)
def test_durations(seconds, shown):
    assert _duration(seconds) == shown


@pytest.mark.parametrize("text", ["<img src=x>", "[a](javascript:b)", "**a**", "a | b", "`a`", "# a", "www.a.b"])
def test_every_mark_is_escaped(text):
    plain = _escaped(text)
    assert plain.replace("\\", "") == text
    assert all(plain[place - 1] == "\\" for place, c in enumerate(plain) if c in "<>[]()*|`#.:" and place)


def test_line_ends_cannot_break_out_of_a_table():
    assert _escaped("a\n\n# b\r\nc") == "a \\# b c"


def block(name: str, documents: int, objective: float, bound: float | None) -> dict:
    gap = None if bound is None else bound - objective
    return {
        "name": name,
        "documents": documents,
        "objective": objective,
        "random_objective": 0.0,
        "upper_bound": bound,
        "gap": gap,
    }


def test_certificate_names_the_widest_gap_and_weighs_the_mean():
    title, claim, table = _certificate([block("a", 100, 0.5, 0.5), block("b", 300, 0.7, 0.72)])
    assert title == "## Certificate"
    assert claim == "No selection of this size can be more than 2.0000% better, in any block."
    assert table.splitlines()[-1] == r"mean | 0.650000 | 0.000000 | 0.665000 | 1.5000%"


def test_certificate_of_a_solver_without_a_bound_claims_nothing():
    _, claim, table = _certificate([block("a", 100, 0.5, None)])
    assert claim == "This solver gives no bound on the best possible."
    assert table.splitlines()[-1] == r"mean | 0.500000 | 0.000000 | \- | \-"


def test_no_plots_without_a_report(tmp_path):
    assert _plots(tmp_path) == []
