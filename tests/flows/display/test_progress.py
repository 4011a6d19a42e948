"""Progress of a run on a terminal and in a pipe."""

import io

import pytest
from rich.console import Console

from fineweb_mask.flows.display.progress import LISTED_JOBS, Screen, StageProgress, screen, shown_on
from fineweb_mask.models.runtime.progress import Step
from fineweb_mask.tasks.workspace.references import StageFile

FILE = StageFile(stage="score", name="shard-1", path="scores/shard-1.parquet", rows=7, bytes=9, fingerprint="f")
PICKS, LAMBS = Step("greedy picks", 3, 50), Step("values of lamb", 1, 4)


def file(rows, *, cached=False):
    return FILE.model_copy(update={"rows": rows, "cached": cached})


@pytest.fixture
def clock(monkeypatch):
    """What the time is: a list of one number."""
    now = [0.0]
    monkeypatch.setattr("fineweb_mask.flows.display.progress.monotonic", lambda: now[0])
    return now


def places(stage):
    return [bar[:3] for bar in stage.bars()]


def test_progress_counts_built_and_cached_files_separately():
    stage = StageProgress("score", jobs=10)
    for one in (file(1000), file(2000, cached=True), file(3000), None):
        stage.end("a", one)
    stage.since, stage.until = 0.0, 20.0
    assert (stage.percent, stage.cached) == (40.0, 1)
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


def test_a_bar_counts_documents_and_moves_within_a_file(clock):
    stage = StageProgress("score", jobs=2, begun=0.0)
    clock[0] = 2.0
    stage.report("a", 0.25, (Step("documents", 1_000, 4_000), PICKS))
    assert stage.bars() == [
        ("score", 0.25, 2, "1,000 documents, 0 of 2 files", "500/s", "2 s"),
        ("  greedy picks", 3, 50, "3 of 50", "", ""),
    ]
    stage.report("b", 0.5, (Step("documents", 1_000, 2_000),))
    assert stage.bars()[0][3:5] == ("2,000 of 6,000 documents", "1,000/s")
    stage.end("a", file(4_000, cached=True))
    assert stage.bars() == [("score", 1.5, 2, "5,000 of 6,000 documents", "500/s", "2 s")]


def test_a_long_loop_has_a_bar_below_its_stage_s_until_the_job_ends():
    stage = StageProgress("very_long_stage", jobs=2)
    stage.report("a", 0.1, (LAMBS, PICKS))
    stage.report("b", 0.0, (PICKS,))
    assert places(stage) == [
        ("very long stage", 0.1, 2),
        ("  values of lamb", 1, 4),
        ("    greedy picks", 3, 50),
        ("  greedy picks", 3, 50),
    ]
    stage.report("a", 0.2, (LAMBS._replace(done=2),))
    stage.end("b", FILE)
    assert places(stage) == [("very long stage", 1.2, 2), ("  values of lamb", 2, 4)]
    stage.end("a", None)
    stage.end("a job without progress", FILE)
    assert places(stage) == [("very long stage", 3, 2)]


def test_in_a_pipe_a_run_says_how_far_it_is_ever_more_rarely(clock):
    said = []
    shown, stage = Screen(said.append), StageProgress("score", jobs=9)
    for clock[0] in range(0, 600, 10):
        stage.report("a", 0.25, (Step("documents", 1_000, 4_000),))
        shown.show(stage)
    assert said == [f"{at} min 0 s: score, 0 of 9 done, documents 1,000 of 4,000" for at in (1, 2, 4, 8)]


def test_bars_are_shown_on_the_console_while_the_block_runs_also_where_it_fails():
    drawn = io.StringIO()
    with shown_on(Console(file=drawn, force_terminal=True, width=100)):
        shown = screen.get()
        assert list(shown.bars) == [""]
        for name in ("ingest", "score", "ingest"):  # each has its place
            shown.show(StageProgress(name, jobs=2))
        assert list(shown.bars) == ["ingest", "score"]
    assert screen.get() is None
    assert all(word in drawn.getvalue() for word in ("ingest", "score", "0 of 2"))
    with pytest.raises(ValueError, match="broken"), shown_on(Console(file=io.StringIO())):
        raise ValueError("broken")
    assert screen.get() is None
