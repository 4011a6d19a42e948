"""The command line: usage, help and start-up."""

import re
from concurrent.futures import CancelledError
from importlib.metadata import version
from pathlib import Path

import pytest

from fineweb_mask.flows.cli import COMMANDS
from fineweb_mask.flows.commands._common import WRONG_USAGE

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run"], "Usage:"),
        (["run", "x.yaml", "--no-such-option"], "Usage:"),
        ([], "Usage:"),
        (["complare"], "Did you mean 'compare'?"),
        (["tune", "x.yaml", "--trials", "0"], "greater than or equal to 1"),
    ],
)
def test_wrong_usage_ends_with_2(invoke, arguments, said):
    result = invoke(*arguments)
    assert result.exit_code == WRONG_USAGE
    assert said in result.output


def test_help_lists_every_command_in_its_group_and_each_has_help_with_an_example(invoke):
    lines = [line.strip("│╭╮╰╯─ ") for line in invoke("--help").stdout.splitlines()]
    places = [lines.index(group) for group in COMMANDS]
    assert places == sorted(places)
    for (_group, commands), first, last in zip(COMMANDS.items(), places, [*places[1:], len(lines)], strict=True):
        shown = [line.split()[0] for line in lines[first + 1 : last] if re.match(r"[a-z-]+  ", line)]
        assert shown == [command.__name__.replace("_", "-") for command in commands]
        for name in shown:
            words = invoke(name, "--help").stdout.split()
            example = words[words.index("Example:") :]
            assert example[1:3] == ["fineweb-mask", name]
            assert name != "run" or (ROOT / example[3]).is_file()


def test_the_command_prints_its_version(call, tmp_path):
    finished = call("--version", cwd=tmp_path)
    assert (finished.returncode, finished.stdout, finished.stderr) == (0, f"{version('fineweb-mask')}\n", "")


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, CancelledError])
def test_an_interrupted_command_has_the_exit_code_of_it(invoke, monkeypatch, interruption):
    def interrupted(_section):
        raise interruption

    monkeypatch.setattr("fineweb_mask.models.settings.reference.settings_of", interrupted)
    result = invoke("settings", "source")
    assert result.exit_code == 130
    assert result.stderr == "fineweb-mask: interrupted\n"
