"""Extract the texts of pages that come in over a socket; run with `python -m`.

Usage: `python -m fineweb_mask.tasks.source.warc.page_worker SOCKET`, where SOCKET is an inherited file descriptor. For
each message, the bytes of a page, one comes back: `+` and the text in UTF-8, `-` for a page without one, or `!` and an
error. It ends when the other end is closed.
"""

import logging
import sys
from contextlib import suppress
from multiprocessing.connection import Connection

from fineweb_mask.models.pages import extract_text

TEXT, NO_TEXT, ERROR = b"+", b"-", b"!"
RECURSION = 10_000
"""Nested elements: trafilatura calls itself for each."""


def answer(page: bytes) -> bytes:
    """Return the message for a page."""
    try:
        text = extract_text(page)
    except (Exception, RecursionError) as error:  # noqa: BLE001 - of a hostile page, anything
        return ERROR + type(error).__name__.encode()
    return NO_TEXT if text is None else TEXT + text.encode(errors="replace")


def main() -> None:
    """Answer until the socket is closed."""
    logging.disable(logging.CRITICAL)  # of pages that cannot be parsed, which are counted
    sys.setrecursionlimit(RECURSION)
    connection = Connection(int(sys.argv[1]))
    with suppress(EOFError, ConnectionError, KeyboardInterrupt):
        while True:
            connection.send_bytes(answer(connection.recv_bytes()))


if __name__ == "__main__":
    main()
