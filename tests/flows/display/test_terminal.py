"""Tables and texts on a terminal."""

import io

from rich.console import Console

from fineweb_mask.flows.display.terminal import new_table, print_line, print_paths, visible


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
