"""Interrupt the command by SIGTERM as by Ctrl-C, and tell which it was."""

import signal
from types import FrameType

_terminations: list[int] = []


def interrupt_on_sigterm() -> None:
    """Have SIGTERM interrupt this process like Ctrl-C, so that Prefect also stops its processes."""
    signal.signal(signal.SIGTERM, _interrupt)


def interrupted_code() -> int:
    """Return the exit code of a command that was interrupted: 128 and the signal's number, as in a shell."""
    return 128 + (_terminations[0] if _terminations else signal.SIGINT)


def _interrupt(number: int, _: FrameType | None) -> None:
    """Interrupt the command, even if it ignores Ctrl-C as a background job of a script."""
    _terminations.append(number)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.raise_signal(signal.SIGINT)
