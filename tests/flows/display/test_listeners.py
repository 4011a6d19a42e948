"""Progress of a run on a terminal and in the log."""

import io
import logging

import pytest
from rich.console import Console
from rich.progress import Progress

from fineweb_mask.flows.display.listeners import LOG_SECONDS, Bars, LogLines, SparseLines, listener, shown_as_bars
from fineweb_mask.models.runtime.progress import Step
from fineweb_mask.tasks.workspace.references import StageFile

FILE = StageFile(stage="score", name="shard-1", path="scores/shard-1.parquet", rows=7, bytes=9, fingerprint="f")
CACHED = FILE.model_copy(update={"cached": True, "name": "100% %s shard"})
PICKS, LAMBS = Step("greedy picks", 3, 50), Step("values of lamb", 1, 4)


@pytest.fixture
def progress():
    return Progress(console=Console(file=io.StringIO()))


@pytest.fixture
def clock(monkeypatch):
    """What the time is: a list of one number."""
    now = [0.0]
    monkeypatch.setattr("fineweb_mask.flows.display.listeners.monotonic", lambda: now[0])
    return now


@pytest.fixture
def logged(caplog, monkeypatch):
    """The lines of the run's log."""
    monkeypatch.setattr("prefect.logging.get_run_logger", lambda: logging.getLogger("run"))
    with caplog.at_level(logging.INFO, "run"):
        yield caplog


def bars_of(progress):
    return {task.description: (task.completed, task.total) for task in progress.tasks}


def test_a_stage_has_one_bar_that_grows_and_moves(progress):
    bars = Bars(progress)
    assert bars_of(progress) == {"starting": (0, None)}
    bars.on_stage("fit", 1)
    bars.on_job_end("fit", "shard-1", FILE)
    bars.on_stage("fit", 2)
    bars.on_stage("very_long_stage", 0)
    bars.on_stage("very_long_stage", 5)
    bars.on_job_end("fit", "shard-1", FILE)
    bars.on_job_end("very_long_stage", "shard-1", None)
    assert bars_of(progress) == {"fit": (2, 3), "very long stage": (1, 5)}


def test_a_stage_grows_while_loops_of_others_come_and_go(progress):
    """A bar's number is not its place among those that are shown."""
    bars = Bars(progress)
    bars.on_stage("score", 1)
    bars.on_job_progress("score", "shard-1", 0.5, (Step("documents", 1, 2),))
    bars.on_stage("embed", 1)
    bars.on_job_end("score", "shard-1", FILE)
    bars.on_stage("embed", 2)
    assert bars_of(progress) == {"score": (1, 1), "embed": (0, 3)}


def test_a_bar_counts_documents_and_moves_within_a_file(progress, clock):
    bars = Bars(progress)
    bars.on_stage("score", 2)
    clock[0] = 2.0
    bars.on_job_progress("score", "a", 0.25, (Step("documents", 1_000, 4_000), PICKS))
    assert bars_of(progress) == {"score": (0.25, 2), "  greedy picks": (3, 50)}
    assert progress.tasks[0].fields == {"amount": "1,000 documents, 0 of 2 files", "rate": "500/s"}
    bars.on_job_progress("score", "b", 0.5, (Step("documents", 1_000, 2_000),))
    assert progress.tasks[0].fields == {"amount": "2,000 of 6,000 documents", "rate": "1,000/s"}
    bars.on_job_end("score", "a", FILE.model_copy(update={"rows": 4_000, "cached": True}))
    assert progress.tasks[0].fields == {"amount": "5,000 of 6,000 documents", "rate": "500/s"}


def test_in_a_pipe_a_run_says_how_far_it_is_ever_more_rarely(logged, clock):
    said = []
    lines = SparseLines(said.append)
    lines.on_stage("score", 9)
    for clock[0] in range(0, 600, 10):
        lines.on_job_progress("score", "a", 0.25, (Step("documents", 1_000, 4_000),))
    lines.on_job_end("score", "a", FILE)
    assert said == [f"{at} min 0 s: score, 0 of 9 done, documents 1,000 of 4,000" for at in (1, 2, 4, 8)]
    assert logged.messages[0] == "score: 9 to do"  # as ever, for the Prefect UI


def test_bars_are_shown_on_the_console_while_the_block_runs_also_where_it_fails():
    screen = io.StringIO()
    before = listener.get()
    assert isinstance(before, LogLines)
    with shown_as_bars(Console(file=screen, force_terminal=True, width=100)):
        assert isinstance(listener.get(), Bars)
        listener.get().on_stage("ingest", 2)
        listener.get().on_job_end("ingest", "shard-1", FILE)
    assert listener.get() is before
    assert all(word in screen.getvalue() for word in ("starting", "ingest"))
    with pytest.raises(ValueError, match="broken"), shown_as_bars(Console(file=io.StringIO())):
        raise ValueError("broken")
    assert listener.get() is before


def test_log_lines_say_what_is_done_and_do_not_grow_with_what_is_cached(logged):
    lines = LogLines()
    lines.on_stage("score", 2)
    lines.on_job_end("score", "shard-1", FILE.model_copy(update={"seconds": 1.25}))
    lines.on_job_end("score", "shard-1", CACHED)
    lines.on_job_end("score", "shard-1", None)
    assert logged.messages == [
        "score: 2 to do",
        "score: shard-1, 7 rows, 1.2 s, 6 rows/s",
        "score: 100% %s shard, 7 rows, cached",
    ]
    for _ in range(2_499):
        lines.on_job_end("score", "shard-1", CACHED)
    assert len(logged.messages) == 2 + 22
    assert logged.messages[-1] == "score: 2000 files cached"


def test_a_long_loop_has_a_bar_below_its_stage_s_until_the_job_ends(progress):
    bars = Bars(progress)
    bars.on_stage("select", 2)
    bars.on_job_progress("select", "a", 0.1, (LAMBS, PICKS))
    bars.on_job_progress("select", "b", 0.0, (PICKS,))
    assert [(task.description, task.completed, task.total) for task in progress.tasks] == [
        ("select", 0.1, 2),
        ("  values of lamb", 1, 4),
        ("    greedy picks", 3, 50),
        ("  greedy picks", 3, 50),
    ]
    bars.on_job_progress("select", "a", 0.2, (LAMBS._replace(done=2),))
    bars.on_job_end("select", "b", FILE)
    assert bars_of(progress) == {"select": (1.2, 2), "  values of lamb": (2, 4)}
    bars.on_job_end("select", "a", None)
    bars.on_job_end("select", "a job without progress", FILE)
    assert bars_of(progress) == {"select": (3, 2)}


def test_a_new_bar_is_drawn_with_its_progress_at_once(progress, monkeypatch):
    """Another thread draws the screen, also between two calls."""
    bars = Bars(progress)
    bars.on_stage("select", 1)
    add, added = progress.add_task, []
    monkeypatch.setattr(progress, "add_task", lambda *given, **fields: added.append(fields) or add(*given, **fields))
    bars.on_job_progress("select", "a", 0.1, (PICKS,))
    assert added == [{"completed": 3, "total": 50, "amount": "3 of 50", "rate": ""}]


def test_log_lines_report_the_progress_of_a_long_job_every_30_seconds(logged, clock):
    lines = LogLines()
    for clock[0] in (0.0, 10.0, LOG_SECONDS, LOG_SECONDS + 1, 2 * LOG_SECONDS):
        lines.on_job_progress("select", "100% %s shard", 0.1, (LAMBS, PICKS._replace(done=int(clock[0]))))
        lines.on_job_progress("select", "no active loop", 0.1, ())
    lines.on_job_end("select", "100% %s shard", None)
    lines.on_job_progress("select", "100% %s shard", 0.1, (PICKS,))
    assert logged.messages == [
        "select: 100% %s shard, values of lamb 1 of 4, greedy picks 30 of 50",
        "select: 100% %s shard, values of lamb 1 of 4, greedy picks 60 of 50",
    ]
