"""Progress of a run on a terminal and in a pipe."""

import io

import pytest
from rich.console import Console

from fineweb_mask.flows.display.progress import LISTED_JOBS, Screen, StageProgress
from fineweb_mask.models.runtime.progress import Step
from fineweb_mask.tasks.workspace.references import StageFile

FILE = StageFile(stage="score", name="shard-1", path="scores/shard-1.parquet", rows=7, bytes=9, fingerprint="f")
PICKS = Step("greedy picks", 3, 50)


def file(rows, *, cached=False):
    return FILE.model_copy(update={"rows": rows, "cached": cached})


@pytest.fixture
def clock(monkeypatch):
    """What the time is: a list of one number."""
    now = [0.0]
    monkeypatch.setattr("fineweb_mask.flows.display.progress.monotonic", lambda: now[0])
    return now


def test_progress_counts_built_and_cached_files_separately():
    stage = StageProgress("score", jobs=10)
    for one in (file(1000), file(2000, cached=True), file(3000), None):
        stage.end("a", one)
    stage.since, stage.until = 0.0, 20.0
    assert stage.percent == 40.0
    assert stage.describe() == (
        "4 of 10 done, 1 cached, 1 quarantined, 6,000 documents, 200 documents/s, about 1 min 0 s left"
    )


def test_the_time_that_is_left_counts_what_a_running_job_has_taken_and_of_many_jobs_some_are_listed():
    stage = StageProgress("fit", jobs=2)
    stage.end("a", file(0))  # in no time
    stage.since -= 60
    stage.report("encoder", 0.5, ())
    assert stage.describe() == "1 of 2 done, about 20 s left"
    steps = {f"job {number}": (Step("greedy picks", number, 9),) for number in range(LISTED_JOBS + 1)}
    text = StageProgress("select", jobs=9, steps=steps).describe()
    assert text.endswith(f"greedy picks {LISTED_JOBS - 1} of 9, ...")


def test_in_a_pipe_a_run_says_how_far_it_is_ever_more_rarely(clock, capsys):
    shown, stage = Screen(), StageProgress("score", jobs=9)
    for clock[0] in range(0, 600, 10):
        stage.report("a", 0.25, (Step("documents", 1_000, 4_000),))
        shown.show(stage)
    said = capsys.readouterr().err.splitlines()
    assert said == [f"{at} min 0 s: score, 0 of 9 done, documents 1,000 of 4,000" for at in (1, 2, 4, 8)]


def test_on_a_terminal_each_stage_has_a_bar_that_moves_within_a_job():
    shown, stage = Screen(bars=True), StageProgress("score", jobs=2)
    assert [task.description for task in shown.bars.tasks] == ["starting"]
    stage.report("a", 0.25, (Step("documents", 1_000, 4_000), PICKS))
    for one in (StageProgress("ingest", jobs=2), stage, stage):  # each has its place
        shown.show(one)
    drawn = io.StringIO()
    Console(file=drawn, width=150).print(shown.bars)
    first, second = drawn.getvalue().splitlines()
    assert (first.split()[0], second.split()[0]) == ("ingest", "score")
    assert "0 of 2 done, documents 1,000 of 4,000, greedy picks 3 of 50" in second
    assert [task.percentage for task in shown.bars.tasks] == [0, 12.5]
