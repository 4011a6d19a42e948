"""Stop long computations between two steps, on request from another thread."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_requested = threading.Event()
_is_heard = ContextVar("_is_heard", default=True)


class StoppedError(RuntimeError):
    """A computation ended because a stop was requested."""


def request_stop() -> None:
    """Ask all computations of this process to end before their next step."""
    _requested.set()


def clear_stop_request() -> None:
    """Withdraw the request, so that a new run can begin."""
    _requested.clear()


def raise_if_stopped() -> None:
    """Raise StoppedError if a stop was requested and not cleared since."""
    if _requested.is_set() and _is_heard.get():
        raise StoppedError("stopped on request")


@contextmanager
def despite_stop() -> Iterator[None]:
    """Let the block go on when a stop was requested: it writes how a run ended."""
    token = _is_heard.set(False)
    try:
        yield
    finally:
        _is_heard.reset(token)
