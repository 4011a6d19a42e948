"""Interrupt the command by SIGTERM as by Ctrl-C, tell which it was, and lose neither."""

import signal
from types import FrameType

_received: list[int] = []


def handle_signals() -> None:
    """Have SIGTERM and Ctrl-C interrupt this process; a background job of a script ignores Ctrl-C, as it should."""
    signal.signal(signal.SIGTERM, _interrupt)
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, _interrupt)


def interrupted_code() -> int:
    """Return the exit code of a command that was interrupted: 128 and the signal's number, as in a shell."""
    return 128 + (_received[0] if _received else signal.SIGINT)


def raise_if_interrupted() -> None:
    """Raise KeyboardInterrupt if a signal arrived, even if the code that it interrupted dropped the exception.

    Python drops it in a destructor or a weak reference's callback, and before 3.13 in `hasattr`.
    """
    if _received:
        raise KeyboardInterrupt


def _interrupt(number: int, _: FrameType | None) -> None:
    _received.append(number)
    raise KeyboardInterrupt
