"""A command whose output nobody reads any more, or cannot show every character, ends without a traceback."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

COMMAND = str(Path(sys.executable).with_name("fineweb-mask"))
SCRIPT = """
import sys
from fineweb_mask.flows.display.terminal import SafeConsole, echo
from fineweb_mask.flows.processes.output import flush_output, prepare_output
prepare_output()
code = 0
try:
    {}
except SystemExit as ended:
    code = ended.code
import os
os._exit(flush_output(code))
"""
LINES = "for _ in range(20_000): echo('x' * 100)"


def run(what, shell, **environment):
    script = [sys.executable, "-c", SCRIPT.format(what)]
    command = ["bash", "-c", f'set -o pipefail; "$@" {shell}', "bash", *script]
    return subprocess.run(
        command, env=os.environ | environment, capture_output=True, check=False, encoding="utf-8", errors="replace"
    )


@pytest.mark.parametrize(
    ("what", "shell", "code", "printed", "said"),
    [
        (LINES, "| head -1", 141, "x" * 100 + "\n", ""),
        ("sys.stdout.write('x')", "| { exec <&-; sleep 0.5; }", 141, "", ""),  # still in the buffer at the end
        (LINES, "> /dev/full", 1, "", "fineweb-mask: standard output: No space left on device\n"),
        ("for _ in range(20_000): echo('x' * 100, err=True)", "2>&1 >&3 3>&- | head -1", 0, "x" * 100 + "\n", ""),
        ("echo('x', err=True); echo('y')", "2>&-", 0, "y\n", ""),
    ],
)
def test_output_that_is_not_read_or_not_written(what, shell, code, printed, said):
    done = run(what, f"3>/dev/null {shell}")
    assert (done.returncode, done.stdout, done.stderr) == (code, printed, said)


@pytest.mark.parametrize(("encoding", "shown"), [("ascii", r"n\xe9e \u96ea"), ("utf-8", "née 雪")])
def test_what_an_encoding_lacks_is_shown_as_its_escape(encoding, shown):
    what = "echo('née 雪'); SafeConsole().print('née 雪'); echo('née 雪', err=True)"
    done = run(what, "", PYTHONIOENCODING=encoding)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{shown}\n" * 2, f"{shown}\n")


def test_a_command_ends_as_other_programs_do():
    command = f"{COMMAND} settings --all | true; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("141\n", "")
