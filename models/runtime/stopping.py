"""A request to stop, heard by long computations between their steps."""

import threading

_requested = threading.Event()


class StoppedError(RuntimeError):
    """A computation ended because it was asked to."""


def request_stop() -> None:
    """Ask every computation of this process to end at its next step."""
    _requested.set()


def clear_stop_request() -> None:
    """Take the request back: a new run begins."""
    _requested.clear()


def raise_if_stopped() -> None:
    """End here if a stop was requested.

    Raises
    ------
    StoppedError
        If it was.
    """
    if _requested.is_set():
        raise StoppedError("stopped on request")
