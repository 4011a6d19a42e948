"""The command line: usage, help and start-up."""

import re
import subprocess
import sys
from concurrent.futures import CancelledError
from importlib.metadata import version
from pathlib import Path

import pytest

from fineweb_mask.flows.cli import COMMANDS, app
from fineweb_mask.flows.commands._common import WRONG_USAGE

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("arguments", [["run"], ["run", "x.yaml", "--no-such-option"], ["no-such-command"], []])
def test_wrong_usage_ends_with_2(invoke, arguments):
    result = invoke(*arguments)
    assert result.exit_code == WRONG_USAGE
    assert "Usage:" in result.output


def test_help_lists_every_command_in_its_group(invoke):
    lines = [line.strip("│╭╮╰╯─ ") for line in invoke("--help").stdout.splitlines()]
    places = [lines.index(group) for group in COMMANDS]
    assert places == sorted(places)
    for (_group, commands), first, last in zip(COMMANDS.items(), places, [*places[1:], len(lines)], strict=True):
        shown = [line.split()[0] for line in lines[first + 1 : last] if re.match(r"[a-z-]+  ", line)]
        own = [command.__name__.replace("_", "-") for command in commands]
        assert shown == own


def test_a_command_that_is_misspelt_is_answered_with_what_was_meant(invoke):
    result = invoke("complare")
    assert result.exit_code == WRONG_USAGE
    assert "Did you mean 'compare'?" in result.output


def test_every_command_has_help_with_an_example(invoke):
    names = [command.name or command.callback.__name__ for command in app.registered_commands]
    assert "run" in names
    for name in names:
        result = invoke(name, "--help")
        assert result.exit_code == 0
        assert f"Example: fineweb-mask {name}" in result.stdout


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, CancelledError])
def test_an_interruption_that_no_command_handles_has_its_exit_code(invoke, monkeypatch, interruption):
    def interrupted(_section):
        raise interruption

    monkeypatch.setattr("fineweb_mask.models.settings.reference.settings_of", interrupted)
    result = invoke("settings", "source")
    assert result.exit_code == 130
    assert "interrupted; run the same command again to resume" in result.stderr


def test_the_example_of_run_is_about_a_recipe_that_is_there(invoke):
    words = invoke("run", "--help").stdout.split()
    example = words[words.index("Example:") :]
    assert (ROOT / example[3]).is_file()


def test_version_and_help_start_at_once_without_the_heavy_packages(call, tmp_path):
    finished = call("--version", cwd=tmp_path)
    assert (finished.returncode, finished.stdout, finished.stderr) == (0, f"{version('fineweb-mask')}\n", "")
    heavy = "{'torch', 'prefect', 'duckdb', 'pyarrow'}"
    code = f"import sys, fineweb_mask.flows.cli; print(sorted({heavy} & set(sys.modules)))"
    loaded = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert loaded.stdout.strip() == "[]"
