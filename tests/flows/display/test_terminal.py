"""Tables and texts on a terminal."""

import io
import logging

import pytest
from rich.console import Console
from rich.progress import Progress

from fineweb_mask.flows.display.terminal import (
    SafeConsole,
    echo,
    logs_made_visible,
    new_table,
    print_line,
    print_paths,
    print_quarantined,
    print_selections,
    visible,
)
from fineweb_mask.flows.summary import PageSummary
from fineweb_mask.tasks.workspace.records.runs import QuarantinedShard


def test_control_and_invisible_characters_are_escaped():
    assert visible("\x1b[31m \u202e\u200b née 雪\n") == r"\x1b[31m \u202e\u200b née 雪\n"
    assert visible("a\nb\t", keep="\n") == "a\nb\\t"


def test_lines_are_printed_as_they_are():
    screen = io.StringIO()
    console = Console(file=screen, width=20)
    print_line(console, "[red]x[/red] " + "y" * 30)
    print_paths(console, page="a/b.html")
    console.print(new_table("stage", "files"))
    lines = [line.rstrip() for line in screen.getvalue().splitlines()]
    assert lines == ["[red]x[/red] " + "y" * 30, "page     a/b.html", "stage  files"]


def test_no_number_of_a_table_of_selections_is_cut(capsys):
    metrics = {"pairwise": -0.0341, "facility": 0.4896, "disf": -34.51, "near_duplicates": 0.012}
    row = metrics | {"mean_quality": 0.77, "teaching": 0.014, "effective_topics": 19.74, "objective": -1.4437}
    of = {"status": "done", "workspace": "w", "page": "p", "metrics": "m", "documents": 9}
    summary = PageSummary(**of, quarantined=[], stages=[])
    print_selections(
        "selector", [("quality_sampling", row | {"gap": 1.19, "seconds": 123.4})], list(metrics)[:3], summary
    )
    header, line, *_ = capsys.readouterr().out.splitlines()
    assert header.split()[-5:] == ["learned", "topics", "J", "gap", "seconds"]
    assert line.split()[4:] == ["-34.51", "1.2%", "+1.4%", "19.7", "-1.4437", "119%", "123.4"]
    unknown = row | {"teaching": None, "effective_topics": None, "gap": None, "seconds": 2}
    print_selections("selector", [("a", row | {"gap": 0.1, "seconds": 1}), ("b", unknown)], [], summary)
    assert capsys.readouterr().out.splitlines()[0].split()[-5:] == ["learned", "topics", "J", "gap", "seconds"]
    print_selections("selector", [("b[lamb=0]", unknown)], [], summary)
    header, line, *_ = capsys.readouterr().out.splitlines()
    assert header.split() == ["selector", "quality", "near-dup", "J", "seconds"]
    assert line.split()[0] == "b[lamb=0]"  # not taken for markup


HOSTILE = "a\x1b[31mb\x9bc\u202ed"
SHOWN = "a\\x1b[31mb\\x9bc\\u202ed"


@pytest.mark.parametrize("force_terminal", [False, True])
def test_nothing_that_is_printed_controls_the_terminal(force_terminal, capsys):
    echo(f"{HOSTILE}\nnext", err=True)
    assert capsys.readouterr().err == f"{SHOWN}\nnext\n"
    stream = io.StringIO()
    console = SafeConsole(file=stream, force_terminal=force_terminal, width=200)
    table = new_table(HOSTILE, "rows")
    table.add_row(HOSTILE, "1")
    console.print(table)
    print_line(console, HOSTILE)
    print_paths(console, page=HOSTILE)
    print_quarantined(console, [QuarantinedShard(shard=HOSTILE, reason=HOSTILE)])
    with Progress(console=console) as progress:
        progress.add_task(HOSTILE)
    printed = stream.getvalue()
    assert printed.count(SHOWN) >= 2  # a table and a bar cut it to its width on a terminal, colours part it
    assert "a\x1b" not in printed
    assert not {"\x9b", "\u202e"} & set(printed)
    assert ("\x1b[" in printed) == force_terminal  # its own colours


def test_a_log_shows_the_control_characters_of_names_and_errors():
    stream = io.StringIO()
    logger = logging.getLogger("tests.visible")
    handler = logging.StreamHandler(stream)
    logger.addHandler(handler)
    try:
        logs_made_visible()
        logs_made_visible()
        assert len(handler.filters) == 2
        logger.warning("%s: %d", HOSTILE, 3)
        logger.error("failed", exc_info=ValueError(HOSTILE))
    finally:
        logger.removeHandler(handler)
    logged = stream.getvalue()
    assert logged.startswith(f"{SHOWN}: 3\nfailed\nValueError: ")
    assert f"ValueError: {SHOWN}\n" in logged
    assert not {"\x1b", "\x9b", "\u202e"} & set(logged)


@pytest.mark.parametrize("name", ["prefect.task_runs", "APILogWorker"])
@pytest.mark.parametrize(("verbose", "shown"), [(False, []), (True, ["ended", "failed"])])
def test_what_prefect_says_of_task_runs_and_of_its_own_threads_is_logged_if_asked_for(name, verbose, shown):
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    logging.getLogger("tests.task_runs").addHandler(handler)
    logs_made_visible(verbose=verbose)
    for level, text in ((logging.INFO, "ended"), (logging.ERROR, "failed")):
        handler.handle(logging.LogRecord(name, level, "", 0, text, (), None))
    assert stream.getvalue().split() == shown
