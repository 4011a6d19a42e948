"""Signals interrupt a command, also where Python drops the exception."""

import subprocess
import sys
import textwrap

import pytest

SCRIPT = """
    import signal
    from fineweb_mask.flows.processes.signals import handle_signals, interrupted_code, raise_if_interrupted

    def raise_signal():
        signal.raise_signal(signal.{name})

    class Dropped:
        def __del__(self):
            raise_signal()  # Python prints and drops what is raised here

    handle_signals()
    raise_if_interrupted()
    try:
        {what}
        print("goes on")
        raise_if_interrupted()
    except KeyboardInterrupt:
        print("interrupted", interrupted_code())
"""


def run(what, name):
    script = textwrap.dedent(SCRIPT).format(what=what, name=name)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return done.stdout


@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_a_signal_interrupts_or_where_its_exception_is_dropped_does_so_at_the_next_look(name, code):
    assert run("raise_signal()", name) == f"interrupted {code}\n"
    assert run("Dropped()", name) == f"goes on\ninterrupted {code}\n"


def test_a_background_job_of_a_script_ignores_ctrl_c():
    ignored = "signal.signal(signal.SIGINT, signal.SIG_IGN); handle_signals(); raise_signal()"
    assert run(ignored, "SIGINT") == "goes on\n"
